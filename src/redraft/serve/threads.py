"""Work away from the event loop, in daemon threads: nobody waits for them when the server ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 64 * 2**10
"""Bytes of a request from which on what reads it may take seconds."""
MOST = 6
MOST_LARGE = 2
"""More of them would only take the interpreter from each other, the event loop and the model's thread."""


class Threads:
    """Calls functions in threads of their own. What reads requests waits for room, where a small one passes large ones.

    A function cannot be ended: when its caller is cancelled it goes on, and keeps its room until it returns.
    """

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()
        self._room, self._room_for_large = asyncio.Semaphore(MOST), asyncio.Semaphore(MOST_LARGE)

    @property
    def busy(self) -> bool:
        """Whether some function has not returned yet."""
        return bool(self._running)

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function at once."""
        return await asyncio.wrap_future(self._begin(function))

    async def read(self, function: Callable[[], T], size: int) -> T:
        """Call a function that reads a request of `size` bytes, as soon as there is room for it."""
        loop = asyncio.get_running_loop()
        with ExitStack() as places:
            for room in (self._room_for_large, self._room) if size >= LARGE else (self._room,):
                await room.acquire()
                places.callback(room.release)
            future = self._begin(function)
            leave = places.pop_all().close

        def ended(future: Future[T]) -> None:
            with suppress(RuntimeError):  # a loop that was closed lets nobody in any more
                loop.call_soon_threadsafe(leave)

        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def _begin(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on only the thread ends it

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=call, name="redraft-serve", daemon=True)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        thread.start()
        return future
