"""Edits: a span is changed as an instruction says; solved if it then reads exactly as it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redraft.eval.files import read_items
from redraft.eval.result import EvalResult, ItemRecord
from redraft.eval.task import Progress, asking, evaluate_batches

_FIELDS: dict[str, type] = dict.fromkeys(("id", "instruction", "before", "old", "new", "behind"), str)


@dataclass(frozen=True, kw_only=True, slots=True)
class EditItem:
    """``old`` should become ``new`` between ``before`` and ``behind``."""

    id: str
    instruction: str
    before: str
    old: str
    new: str
    behind: str


class Edits(Protocol):
    """The part of the model facade that is needed here."""

    def edit(self, text: str, span: tuple[int, int], instruction: str, **settings: Any) -> Any: ...


def read_edits_jsonl(path: str | Path) -> list[EditItem]:
    """Reads items with the string fields of `EditItem`. Raises `InputError` that names file and line."""
    return read_items(path, _FIELDS, lambda record: EditItem(**{name: record[name] for name in _FIELDS}))


def evaluate(llm: Edits, items: Sequence[EditItem], *, progress: Progress | None = None, **settings: Any) -> EvalResult:
    """Edits every item's span; ``settings`` go to ``edit``, with seed 0 if none is given."""
    given = {"seed": 0, **settings}
    return evaluate_batches(items, lambda batch: [_edited(llm, item, given) for item in batch], progress=progress)


def _edited(llm: Edits, item: EditItem, given: dict[str, Any]) -> ItemRecord:
    start = len(item.before)
    text = item.before + item.old + item.behind
    with asking(item.id):
        result = llm.edit(text, (start, start + len(item.old)), item.instruction, **given)
    return ItemRecord(
        id=item.id,
        solved=result.text == item.new,
        output=result.text,
        expected=item.new,
        steps=(result.steps,),
        tokens=len(result.tokens),
        forwards=result.forwards,
    )
