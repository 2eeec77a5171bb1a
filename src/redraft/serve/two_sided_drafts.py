"""Fillings and edits as they settle, as server-sent events with the names that `/v1/drafts` has.

event: start     how many `canvases` there will be: one per hole, or per part of an edit
event: denoise   a HoleStep of the likeliest draft that is not done yet, at the hole's positions alone
event: commit    a Commit: the text that was chosen
event: done      what a request without `stream` gets
event: error     OpenAI's error body
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from redraft.diffusion.records import Commit
from redraft.filling.reporting import Foremost, HoleStep
from redraft.serve.answers import MOST_UNREAD
from redraft.serve.drafts import hole_data
from redraft.serve.faults import Fault
from redraft.serve.http import sse_event

Told = tuple[str, dict[str, Any]]
"""An event's name and data."""
Report = Callable[[str, dict[str, Any]], None]


def watching(report: Report, steps: int) -> dict[str, Callable[..., None]]:
    """The arguments with which `LLM.fill` or `LLM.edit`, with this cap on `steps`, reports what it does."""
    foremost = Foremost(steps)

    def on_progress(done: int, count: int) -> None:
        if done == 0:
            report("start", {"canvases": count})

    def on_record(record: HoleStep | Commit) -> None:
        if isinstance(record, Commit):
            report("commit", record.to_dict())
        elif foremost.takes(record):
            report("denoise", hole_data(record))

    return {"on_progress": on_progress, "on_record": on_record}


class Drafting:
    """Work that reports from the model's thread what its client is to see. The holder must close it, which ends it."""

    def __init__(self, begin: Callable[[Report], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        """`begin` begins the work, which returns what is done in the end."""
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Queue[Told | None]()
        self._first: Told | None = None
        self._work = asyncio.create_task(begin(self._report))
        self._work.add_done_callback(lambda _: self._told.put_nowait(None))

    def _report(self, name: str, data: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to read it
            self._loop.call_soon_threadsafe(self._take, name, data)

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name != "denoise" or self._told.qsize() < MOST_UNREAD:
            self._told.put_nowait((name, data))

    async def begun(self) -> None:
        """Wait for the first report. Raises what has ended the work before that."""
        self._first = await self._told.get()
        if self._first is None:
            await self._work

    async def events(self, fault: Callable[[Exception], Fault]) -> AsyncGenerator[str]:
        """Yield all events, once it has begun; `fault` says what a client is told about an error."""
        try:
            told = self._first
            while told is not None:
                name, data = told
                yield sse_event(data, name)
                told = await self._told.get()
            yield sse_event(await self._work, "done")
        except Exception as error:
            yield sse_event(fault(error).openai(), "error")

    async def close(self) -> None:
        """End the work, if it has not ended."""
        self._work.cancel()
        with suppress(asyncio.CancelledError, Exception):  # an error was told, or nobody is there to hear it
            await self._work
