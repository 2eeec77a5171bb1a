"""Work outside the event loop, in daemon threads, which the server does not wait for when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from redraft.constraints.automaton import time_reported_to
from redraft.errors import ConstraintError

T = TypeVar("T")

LARGE = 64 * 2**10
"""Bytes from which reading a request may take seconds."""
SLOW_SECONDS = 0.5
"""Seconds of work on one constraint from which reading a request counts as slow, whatever its size."""
MOST = 6
MOST_LARGE, MOST_SLOW, MOST_PARSING = 2, 1, 1
"""More would only take the interpreter from each other, the event loop and the model's thread."""


class Threads:
    """Calls functions in threads of their own. Reading a request waits for room; small requests overtake large ones,
    and quick ones overtake those that build large constraints.

    When the caller of `read` is cancelled, a constraint that is being built is abandoned. Any other function runs on
    and keeps its room until it returns.
    """

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()
        self._room, self._room_for_large = asyncio.Semaphore(MOST), asyncio.Semaphore(MOST_LARGE)
        self._room_for_parsing = asyncio.Semaphore(MOST_PARSING)
        self._room_for_slow = threading.Semaphore(MOST_SLOW)

    @property
    def busy(self) -> bool:
        """Whether any function is still running."""
        return bool(self._running)

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function at once."""
        return await asyncio.wrap_future(self._begin(function))

    async def parse(self, function: Callable[[], T]) -> T:
        """Call a function that parses a large body, after others that do. Each takes only a fraction of a second."""
        async with self._room_for_parsing:
            return await self.call(function)

    async def read(self, function: Callable[[], T], size: int) -> T:
        """Call a function that reads a request of `size` bytes, as soon as there is room."""
        loop = asyncio.get_running_loop()
        with ExitStack() as places:
            for room in (self._room_for_large, self._room) if size >= LARGE else (self._room,):
                await room.acquire()
                places.callback(room.release)
            leave = places.pop_all().close

        def let_others_in() -> None:
            with suppress(RuntimeError):  # the loop may be closed already
                loop.call_soon_threadsafe(leave)

        reading = _Reading(self._room_for_slow, let_others_in)
        future = self._begin(lambda: reading.call(function))
        future.add_done_callback(lambda _: let_others_in())  # a second call does nothing
        try:
            return await asyncio.wrap_future(future)
        finally:
            reading.given_up = True

    def _begin(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on, only the thread can end it

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=call, name="redraft-serve", daemon=True)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            future.set_exception(error)
        return future


class _Reading:
    """A function that reads a request, in its thread. Once it is slow, it gives up its room and waits for another."""

    def __init__(self, room: threading.Semaphore, leave: Callable[[], None]) -> None:
        self._room, self._leave = room, leave
        self._slow = False
        self.given_up = False

    def call(self, function: Callable[[], T]) -> T:
        """Return or raise what the function does."""
        try:
            with time_reported_to(self._watch):
                return function()
        finally:
            if self._slow:
                self._room.release()

    def _watch(self, seconds: float) -> None:
        if seconds > SLOW_SECONDS and not self._slow:
            self._leave()
            while not self._room.acquire(timeout=0.1):
                self._end_if_given_up()
            self._slow = True
        self._end_if_given_up()

    def _end_if_given_up(self) -> None:
        if self.given_up:
            raise ConstraintError("The request that needed this constraint was cancelled.")
