"""Answers in progress: several at once, each split into reasoning, content and tool calls."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from redraft.diffusion.records import Commit, DenoiseStep
from redraft.engine.request import Event, Finished
from redraft.errors import EngineError
from redraft.serve.faults import Fault, stopping, timed_out
from redraft.serve.logs import client_fault
from redraft.serve.planning import AnswerPlan
from redraft.text.marks import Marker
from redraft.text.reply import Content, Part, Reasoning, ReplyParser
from redraft.text.tokenizer import Tokenizer
from redraft.text.tools import ToolCall

MOST_UNREAD = 1000
"""Events that may wait for a client. One that does not read them would fill the memory with steps, so it misses any
that come meanwhile."""


class Answers:
    """The running answers of one plan. The holder must close it, which cancels unfinished answers."""

    def __init__(
        self,
        plan: AnswerPlan,
        streams: Sequence[AsyncGenerator[Event, None]],
        *,
        observe: Callable[[Finished | EngineError], None] = lambda ended: None,
        fault: Callable[[str, Exception], Fault] = client_fault,
    ) -> None:
        """`observe` is called when an answer ends by itself, or with the error that stopped it; `fault` with the
        request's id and the error at the end of its stream, and returns what the client is told."""
        self.plan, self.fault = plan, fault
        self._streams, self._observe = list(streams), observe
        self._pumps: list[asyncio.Task[None]] = []

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Yield the events of all answers as they arrive, each with its answer's index.

        Raises `Fault` if the server's shutdown cut an answer off, or if all answers timed out before any had text. If
        only some of them have no text, those are empty.
        """
        empty = 0
        try:
            async for index, event in self._merged():
                if isinstance(event, Finished):
                    self._observe(event)
                    if event.finish_reason == "cancelled":
                        raise stopping()
                    empty += event.finish_reason == "timeout" and not event.token_ids
                    if empty == len(self._streams):
                        raise timed_out(self.plan.timeout)
                yield index, event
        except EngineError as error:
            self._observe(error)
            raise

    async def _merged(self) -> AsyncIterator[tuple[int, Event]]:
        if len(self._streams) == 1:
            async for event in self._streams[0]:
                yield 0, event
            return
        queue: asyncio.Queue[tuple[int, Event | Exception | None]] = asyncio.Queue()
        self._pumps = [asyncio.create_task(_pump(i, stream, queue)) for i, stream in enumerate(self._streams)]
        left = len(self._pumps)
        while left:
            index, event = await queue.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                left -= 1
            else:
                yield index, event

    async def close(self) -> None:
        """Cancel the unfinished answers."""
        for pump in self._pumps:
            pump.cancel()
        for pump in self._pumps:
            with suppress(asyncio.CancelledError):
                await pump
        for stream in self._streams:
            await stream.aclose()


async def _pump(
    index: int, stream: AsyncGenerator[Event, None], queue: asyncio.Queue[tuple[int, Event | Exception | None]]
) -> None:
    try:
        async for event in stream:
            queue.put_nowait((index, event))
        queue.put_nowait((index, None))
    except Exception as error:
        queue.put_nowait((index, error))


@dataclass(slots=True)
class CallPiece:
    """A tool call, the `index`th of its answer, with the id that its result must refer to."""

    call: ToolCall
    index: int
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


Piece = Content | Reasoning | CallPiece


@dataclass(slots=True)
class ReplyBuilder:
    """One chat answer as it grows. `take` turns an event into the pieces it adds."""

    parser: ReplyParser
    marker: Marker
    pieces: list[Piece] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def content(self) -> str:
        """The visible text."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Content))

    @property
    def reasoning(self) -> str:
        """The thoughts."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Reasoning))

    def reasoning_tokens(self, tokenizer: Tokenizer) -> int:
        """The number of tokens of the thoughts, counted from their text."""
        return len(tokenizer.encode(self.reasoning, special=False)) if self.reasoning else 0

    @property
    def calls(self) -> list[CallPiece]:
        """The tool calls."""
        return [piece for piece in self.pieces if isinstance(piece, CallPiece)]

    @property
    def end(self) -> Finished:
        """The last event of a whole answer."""
        assert self.finished is not None, "an answer ends with its Finished event"
        return self.finished

    def take(self, event: Event) -> list[Piece]:
        """Return the pieces that an event adds to the answer."""
        if isinstance(event, DenoiseStep):
            return []
        if isinstance(event, Commit):
            return self._add(self.parser.push(self.marker.mark(event.text, event.token_ids)))
        self.finished = event
        return self._add(self.parser.finish())

    def _add(self, parts: list[Part]) -> list[Piece]:
        known = len(self.pieces)
        for part in parts:
            self.pieces.append(CallPiece(part, len(self.calls)) if isinstance(part, ToolCall) else part)
        return self.pieces[known:]


async def read_all(answers: Answers) -> list[ReplyBuilder]:
    """Wait until all answers are complete."""
    replies = new_replies(answers.plan)
    try:
        async for index, event in answers.events():
            replies[index].take(event)
    finally:
        await answers.close()
    return replies


def new_replies(plan: AnswerPlan) -> list[ReplyBuilder]:
    """Return an empty reply for each answer."""
    how = {"reasoning_open": plan.reasoning_open, "exact": plan.exact}
    return [ReplyBuilder(ReplyParser(**how), Marker(plan.tokenizer)) for _ in plan.requests]
