"""The part that all prompt-and-answer evaluations share: ask in batches, judge each answer, sum up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from redraft.eval.result import EvalResult, ItemRecord, Progress, batches, generation_settings

T = TypeVar("T")


class Stats(Protocol):
    """What an answer cost."""

    @property
    def steps(self) -> Sequence[int]: ...
    @property
    def forwards(self) -> int: ...


class Result(Protocol):
    """An answer."""

    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def stats(self) -> Stats: ...


class Generates(Protocol):
    """The part of the model facade that evaluations need."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = ...
    ) -> list[int]: ...

    def generate_batch(self, prompts: Any, **settings: Any) -> Sequence[Result]: ...


def run(
    llm: Generates,
    items: Sequence[T],
    *,
    prompt: Callable[[T], list[int]],
    judge: Callable[[T, str], tuple[str, bool, str]],
    batch_size: int,
    steps: int | None,
    progress: Progress | None,
    settings: dict[str, Any],
) -> EvalResult:
    """Answers every item and judges it; ``judge`` maps (item, answer text) to (id, solved, expected text)."""
    started = time.perf_counter()
    records: list[ItemRecord] = []
    for batch in batches(items, batch_size):
        answers = llm.generate_batch([prompt(item) for item in batch], **generation_settings(steps, settings))
        records += [_record(judge(item, answer.text), answer) for item, answer in zip(batch, answers, strict=True)]
        if progress is not None:
            progress(len(records), len(items), sum(record.solved for record in records))
    return EvalResult.of(records, time.perf_counter() - started)


def _record(judged: tuple[str, bool, str], answer: Result) -> ItemRecord:
    identifier, solved, expected = judged
    return ItemRecord(
        id=identifier,
        solved=solved,
        output=answer.text,
        expected=expected,
        steps=tuple(answer.stats.steps),
        tokens=len(answer.token_ids),
        forwards=answer.stats.forwards,
    )
