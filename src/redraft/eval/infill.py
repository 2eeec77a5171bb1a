"""Infilling: a line or a span is taken out of a text, and the model, seeing both sides, must write it back exactly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redraft.eval.files import fail, json_lines
from redraft.eval.result import EvalResult, ItemRecord, Progress, generation_settings

_FIELDS: dict[str, type] = dict.fromkeys(("id", "prefix", "answer", "suffix", "source"), str)


@dataclass(frozen=True, kw_only=True, slots=True)
class InfillItem:
    """``prefix + answer + suffix`` is the original text; ``source`` says where it is from."""

    id: str
    prefix: str
    answer: str
    suffix: str
    source: str


class Filled(Protocol):
    """A filling and its cost: ``steps`` of the hole length that was chosen, ``forwards`` of all that were tried."""

    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def steps(self) -> int: ...
    @property
    def forwards(self) -> int: ...


class Fills(Protocol):
    """The part of the model facade that is needed here."""

    def fill(self, prefix: str, suffix: str, **settings: Any) -> Filled: ...


def read_infill_jsonl(path: str | Path, *, limit: int | None = None) -> list[InfillItem]:
    """Reads items with string fields ``id``, ``prefix``, ``answer``, ``suffix`` and ``source``; at most ``limit``.

    Raises :class:`redraft.errors.InputError` that names file and line.
    """
    items: list[InfillItem] = []
    for line, record in json_lines(path, _FIELDS):
        if limit is not None and len(items) >= limit:
            break
        if not record["answer"].strip():
            fail(Path(path), line, "the field 'answer' is blank")
        items.append(InfillItem(**{name: record[name] for name in _FIELDS}))
    return items


def is_solved(item: InfillItem, text: str) -> bool:
    """Exact match, white space at the end apart: indentation counts, a trailing newline does not."""
    return text.rstrip() == item.answer.rstrip()


def evaluate(
    llm: Fills,
    items: Sequence[InfillItem],
    *,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **settings: Any,
) -> EvalResult:
    """Fills every item, one after the other (``fill`` tries several hole lengths in one batch by itself).

    Further ``settings`` go to ``fill`` as they are.
    """
    started = time.perf_counter()
    given = generation_settings(steps, {"seed": seed, **settings})
    records: list[ItemRecord] = []
    for item in items:
        records.append(_record(item, llm.fill(item.prefix, item.suffix, **given)))
        if progress is not None:
            progress(len(records), len(items), sum(record.solved for record in records))
    return EvalResult.of(records, time.perf_counter() - started)


def _record(item: InfillItem, filled: Filled) -> ItemRecord:
    return ItemRecord(
        id=item.id,
        solved=is_solved(item, filled.text),
        output=filled.text,
        expected=item.answer,
        steps=(filled.steps,),
        tokens=len(filled.token_ids),
        forwards=filled.forwards,
    )
