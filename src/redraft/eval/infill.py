"""Infilling: a line or a span is removed from a text, and the model must write it back exactly.

Three methods show the benefit of seeing both sides: the hole's length found, the hole's length given, and left to
right, where the text after the hole is hidden and the answer is cut to the right length.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Protocol

from redraft.errors import InputError, SettingError, one_of
from redraft.eval.files import read_items
from redraft.eval.result import EvalResult, ItemRecord
from redraft.eval.task import Progress, asking, evaluate_batches

Method = Literal["found", "given", "left"]
METHODS: tuple[Method, ...] = ("found", "given", "left")
LEFT_STEPS = 12
"""Step cap of left to right where neither steps nor a preset are given; the same as for `fill`."""

_FIELDS: dict[str, type] = dict.fromkeys(("id", "prefix", "answer", "suffix", "source"), str)


@dataclass(frozen=True, kw_only=True, slots=True)
class InfillItem:
    """``prefix + answer + suffix`` is the original text; ``source`` says where it is from."""

    id: str
    prefix: str
    answer: str
    suffix: str
    source: str


class Encodes(Protocol):
    """The part of a tokenizer that says how long an answer is."""

    def encode(self, text: str, *, special: bool = ...) -> Sequence[int]: ...


class Fills(Protocol):
    """The part of the model facade that is needed here; `generate` for left to right only."""

    @property
    def tokenizer(self) -> Encodes: ...
    def fill(self, text: str, suffix: str, **settings: Any) -> Any: ...
    def generate(self, prompt: str, *, raw: bool = ..., **settings: Any) -> Any: ...


def read_infill_jsonl(path: str | Path) -> list[InfillItem]:
    """Reads items with string fields ``id``, ``prefix``, ``answer``, ``suffix`` and ``source``.

    Raises :class:`redraft.errors.InputError` that names file and line.
    """
    return read_items(path, _FIELDS, _item)


def _item(record: dict[str, Any]) -> InfillItem:
    if not record["answer"].strip():
        raise InputError("the field 'answer' is blank")
    return InfillItem(**{name: record[name] for name in _FIELDS})


def is_solved(item: InfillItem, text: str) -> bool:
    """Exact match except for trailing white space: indentation counts, a trailing newline does not."""
    return text.rstrip() == item.answer.rstrip()


def middle_of(item: InfillItem) -> InfillItem | None:
    """The item with only the middle of its answer missing: about a third of it, cut at words.

    None if the answer has fewer than three words.
    """
    words = re.findall(r"\s*\w+|\s*[^\w\s]+|\s+", item.answer)
    if len(words) < 3:
        return None
    first, last = len(words) // 3, len(words) - len(words) // 3
    lead, answer, tail = ("".join(part) for part in (words[:first], words[first:last], words[last:]))
    return dataclasses.replace(
        item, id=f"{item.id}-middle", prefix=item.prefix + lead, answer=answer, suffix=tail + item.suffix
    )


def evaluate(
    llm: Fills,
    items: Sequence[InfillItem],
    *,
    method: Method = "found",
    progress: Progress | None = None,
    **settings: Any,
) -> EvalResult:
    """Fills every item, one at a time (``fill`` itself tries several hole lengths in one batch).

    ``settings`` go to ``fill``, or to ``generate`` for left to right, with seed 0 by default.
    """
    if method not in METHODS:
        raise SettingError(f"method is {method!r}; it must be {one_of(METHODS)}.")
    if method != "found" and settings.get("max_tokens") is not None:
        raise SettingError(f"max_tokens is only for the method 'found'; {method!r} uses each answer's own length.")
    given = {"seed": 0, **settings}

    def answer(batch: Sequence[InfillItem]) -> list[ItemRecord]:
        return [_answered(llm, item, method, given) for item in batch]

    return evaluate_batches(items, answer, progress=progress)


@dataclass(frozen=True, slots=True)
class Compared:
    """Every method on the same items."""

    results: dict[Method, EvalResult]

    @property
    def pairs(self) -> list[tuple[Method, Method, int, int, float]]:
        """For each pair of methods: items only the first solved, only the second, and the sign test's probability."""
        return [
            (one, other, *sign_test(self.results[one], self.results[other])) for one, other in combinations(METHODS, 2)
        ]

    @property
    def records(self) -> list[ItemRecord]:
        """The records of all methods; the id begins with the method."""
        return [
            dataclasses.replace(record, id=f"{method}:{record.id}")
            for method, result in self.results.items()
            for record in result.records
        ]

    def summary(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        names = ("first", "second", "first_only", "second_only", "p")
        return {
            "methods": {method: result.summary() for method, result in self.results.items()},
            "pairs": [dict(zip(names, (*pair[:4], round(pair[4], 5)), strict=True)) for pair in self.pairs],
        }


def compare(
    llm: Fills,
    items: Sequence[InfillItem],
    *,
    progress: Progress | None = None,
    max_tokens: int | None = None,
    **settings: Any,
) -> Compared:
    """Every method on the same items; `max_tokens` applies when the length is found."""
    results: dict[Method, EvalResult] = {}
    for method in METHODS:
        done, solved = len(items) * len(results), sum(result.solved for result in results.values())

        def shown(now: int, total: int, right: int, done: int = done, solved: int = solved) -> None:
            if progress is not None:
                progress(done + now, total * len(METHODS), solved + right)

        most = {"max_tokens": max_tokens} if method == "found" and max_tokens is not None else {}
        results[method] = evaluate(llm, items, method=method, progress=shown, **settings, **most)
    return Compared(results)


def sign_test(one: EvalResult, other: EvalResult) -> tuple[int, int, float]:
    """How many items only `one` and only `other` solved, and the two-sided sign test's probability of that."""
    pairs = [(a.solved, b.solved) for a, b in zip(one.records, other.records, strict=True)]
    ahead, behind = pairs.count((True, False)), pairs.count((False, True))
    tail = sum(math.comb(ahead + behind, wins) for wins in range(min(ahead, behind) + 1))
    return ahead, behind, min(1.0, 2 * tail / 2 ** (ahead + behind))


def _answered(llm: Fills, item: InfillItem, method: Method, given: dict[str, Any]) -> ItemRecord:
    with asking(item.id):
        return _left(llm, item, given) if method == "left" else _filled(llm, item, method, given)


def _filled(llm: Fills, item: InfillItem, method: Method, given: dict[str, Any]) -> ItemRecord:
    exact = {"length": _length(llm, item)} if method == "given" else {}
    filled = llm.fill(item.prefix, item.suffix, **given, **exact)
    return _record(item, filled.text, filled.steps, filled)


def _left(llm: Fills, item: InfillItem, given: dict[str, Any]) -> ItemRecord:
    """The first characters that the model writes after the prefix, as many as the answer has."""
    capped = {} if given.get("preset") else {"steps": LEFT_STEPS}
    given = {**capped, **given, "max_tokens": 2 * _length(llm, item)}
    result = llm.generate(item.prefix or "\n", raw=True, **given)
    return _record(item, result.text[: len(item.answer)], sum(result.stats.steps), result.stats, result.token_ids)


def _length(llm: Fills, item: InfillItem) -> int:
    return len(llm.tokenizer.encode(item.answer, special=False))


def _record(item: InfillItem, text: str, steps: int, cost: Any, token_ids: Sequence[int] | None = None) -> ItemRecord:
    return ItemRecord(
        id=item.id,
        solved=is_solved(item, text),
        output=text,
        expected=item.answer,
        steps=(steps,),
        tokens=len(cost.token_ids if token_ids is None else token_ids),
        forwards=cost.forwards,
    )
