"""What answering returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from redraft.diffusion.records import FinishReason, Record, TokenConfidence
from redraft.engine.request import AnswerStats, Event, Finished
from redraft.text.tools import ToolCall


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateResult:
    """An answer: its text, its token ids (end-of-text excluded), why it ended, and what it cost.

    `tokens` says how sure the model was of each of `token_ids`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: AnswerStats
    tokens: tuple[TokenConfidence, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """A chat answer taken apart: visible content, reasoning if the model thought, and tool calls."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    result: GenerateResult


class AnswerStream(Iterator[Record]):
    """The records of one answer, as they happen. Closing it, leaving its `with` block or dropping it stops the work."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events
        self.result: GenerateResult | None = None
        """What `LLM.generate` would have returned, once the records have ended."""

    def __next__(self) -> Record:
        event = next(self._events)
        if not isinstance(event, Finished):
            return event
        self.result = result_of(event)
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the answer here."""
        self._events = iter(())


def result_of(finished: Finished) -> GenerateResult:
    """The result of an answer that was neither cancelled nor timed out."""
    assert finished.finish_reason in ("stop", "length")
    return GenerateResult(
        text=finished.text,
        token_ids=finished.token_ids,
        finish_reason=finished.finish_reason,
        stats=finished.stats,
        tokens=finished.tokens,
    )
