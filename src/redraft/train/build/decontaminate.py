"""Removes training text that shares a run of eight words with an evaluation item.

Words are identifiers, keywords and numbers: spacing and punctuation cannot hide a copy. Only runs that touch the part
of an item that a model has to produce count: the context that the item shows is not secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from redraft.eval.edit import read_edits_jsonl
from redraft.eval.infill import read_infill_jsonl

WORDS = 8
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class EvaluationFilter:
    """The word runs of evaluation items; training text that contains one of them is contaminated."""

    runs: frozenset[tuple[str, ...]]

    @classmethod
    def from_items(cls, items: Iterable[tuple[str, str, str]]) -> EvaluationFilter:
        """Collects the runs of items (text before, answer, text after) that touch the answer."""
        return cls(runs=frozenset(run for before, answer, after in items for run in answer_runs(before, answer, after)))

    def __or__(self, other: EvaluationFilter) -> EvaluationFilter:
        """A filter of the items of both filters."""
        return EvaluationFilter(runs=self.runs | other.runs)

    def is_contaminated(self, text: str) -> bool:
        """Whether `text` shares a run with an evaluation item."""
        return not self.runs.isdisjoint(word_runs(_WORD.findall(text)))


def word_runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    """Every run of eight consecutive words."""
    return zip(*(words[start:] for start in range(WORDS)), strict=False)


def answer_runs(before: str, answer: str, after: str) -> Iterator[tuple[str, ...]]:
    """The runs of eight words with at least half of their words, or all words of the answer, inside the answer."""
    inside = _WORD.findall(answer)
    needed = min(WORDS // 2, len(inside))
    margin = WORDS - needed
    words = _WORD.findall(before)[-margin:] + inside + _WORD.findall(after)[:margin]
    return (run for run in word_runs(words) if needed >= 2 and _is_telling(run))


def _is_telling(run: tuple[str, ...]) -> bool:
    """Whether a run is more than digits and short names: counting from 1 to 8 is not a leak."""
    return len({word for word in run if not word.isdigit() and len(word) > 1}) >= 4


def infill_items(path: Path) -> Iterator[tuple[str, str, str]]:
    """The items of an infilling file."""
    return ((item.prefix, item.answer, item.suffix) for item in read_infill_jsonl(path))


def edit_items(path: Path) -> Iterator[tuple[str, str, str]]:
    """The items of a file of edits; the new text is the answer."""
    return ((item.before, item.new, item.behind) for item in read_edits_jsonl(path))


def human_eval_items(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """The problems of HumanEval: the solution is the answer, and so is the docstring in its prompt."""
    for line in lines:
        problem = json.loads(line)
        yield "", problem["prompt"] + problem["canonical_solution"], ""
