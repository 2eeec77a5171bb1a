"""What all evaluations share: items are answered a batch at a time, answers become records, records are summed up.

A `Task` is the ordinary kind: a chat prompt for each item, and a judge of the answer's text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.eval.files import DATA
from redraft.eval.result import EvalResult, ItemRecord

T = TypeVar("T")


def _nothing(item: Any) -> dict[str, Any]:
    return {}


Progress = Callable[[int, int, int], None]
"""Called after every batch with (items done, items in all, solved so far)."""


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
    """The part of the model facade that tasks need."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = ...
    ) -> list[int]: ...

    def request(self, prompt: Any, **settings: Any) -> Any: ...

    def generate_batch(self, prompts: Any, **settings: Any) -> Sequence[Result]: ...


@dataclass(frozen=True, kw_only=True)
class Task(Generic[T]):
    """Questions in a chat, and how to judge the answers.

    file      the items that come with the package, in `redraft/eval/data`
    read      reads the items of a file; raises `InputError` naming file and line
    chat      an item's messages and its tools, if it declares any
    own       settings for an item's answer alone, such as its `json_schema`
    solved    whether a text answers an item; `expected` is the right answer, for people to read
    """

    file: str
    read: Callable[[Path], list[T]]
    chat: Callable[[T], tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]
    solved: Callable[[T, str], bool]
    expected: Callable[[T], str]
    id: Callable[[T], str]
    own: Callable[[T], dict[str, Any]] = _nothing
    max_tokens: int = 256

    def items(self, file: Path | None = None) -> list[T]:
        """The items of `file`, or those that come with the package."""
        return self.read(file or DATA / self.file)

    def prompt(self, llm: Generates, item: T) -> list[int]:
        """Token ids that ask for an item."""
        messages, tools = self.chat(item)
        return llm.encode_chat(messages, tools=tools)

    def evaluate(
        self,
        llm: Generates,
        items: Sequence[T],
        *,
        batch_size: int = 16,
        progress: Progress | None = None,
        **settings: Any,
    ) -> EvalResult:
        """Asks for every item; `settings` go to `generate_batch`; defaults are seed 0 and the task's `max_tokens`.

        Raises `PromptError`, `SettingError` or `ConstraintError` before any compute, naming the item.
        """
        settings = {"seed": 0, "max_tokens": self.max_tokens, **settings}

        def answer(batch: Sequence[tuple[T, list[int]]]) -> list[ItemRecord]:
            each = [self.own(item) for item, _ in batch]
            answers = llm.generate_batch([prompt for _, prompt in batch], each=each, **settings)
            return [self._record(item, answer) for (item, _), answer in zip(batch, answers, strict=True)]

        asked = [(item, self._checked_prompt(llm, item, settings)) for item in items]
        return evaluate_batches(asked, answer, batch_size=batch_size, progress=progress)

    def _checked_prompt(self, llm: Generates, item: T, settings: Mapping[str, Any]) -> list[int]:
        """An item's prompt. Raises an error that names the item if it cannot be asked."""
        with asking(self.id(item)):
            prompt = self.prompt(llm, item)
            llm.request(prompt, **{**settings, **self.own(item)})
        return prompt

    def _record(self, item: T, answer: Result) -> ItemRecord:
        return ItemRecord(
            id=self.id(item),
            solved=self.solved(item, answer.text),
            output=answer.text,
            expected=self.expected(item),
            steps=tuple(answer.stats.steps),
            tokens=len(answer.token_ids),
            forwards=answer.stats.forwards,
        )


@contextmanager
def asking(id: str) -> Iterator[None]:
    """Inside, a `PromptError`, `SettingError` or `ConstraintError` names the item that caused it."""
    try:
        yield
    except (PromptError, SettingError, ConstraintError) as error:
        raise type(error)(f"item {id}: {error}") from error


def evaluate_batches(
    items: Sequence[T],
    answer: Callable[[Sequence[T]], Iterable[ItemRecord]],
    *,
    batch_size: int = 1,
    progress: Progress | None = None,
) -> EvalResult:
    """Answers all items, `batch_size` at a time. Raises `SettingError` for an empty batch."""
    if batch_size < 1:
        raise SettingError(f"batch_size is {batch_size}; it must be at least 1.")
    started = time.perf_counter()
    records: list[ItemRecord] = []
    for start in range(0, len(items), batch_size):
        records += answer(items[start : start + batch_size])
        if progress is not None:
            progress(len(records), len(items), sum(record.solved for record in records))
    return EvalResult.of(records, time.perf_counter() - started)


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` items from all over a set, whose beginning may be easier than its end."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]
