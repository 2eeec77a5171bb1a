"""The asynchronous front: one thread owns the model, any number of coroutines wait for their events.

Everything that touches the engine is a small function put into the thread's inbox and called between two forwards; so
nothing in the engine needs a lock, and a cancelled request costs at most the forward that is under way. What makes
forwards of its own (fill, edit, decide) waits apart, one behind the other. Its forwards and those of requests take
turns; it is ended between two of its own when its caller has gone or the engine stops.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from redraft.engine.engine import Engine
from redraft.engine.request import Event, Failed, Finished, Request
from redraft.engine.stats import EngineStats
from redraft.errors import EngineError
from redraft.model.interruption import interruptible

T = TypeVar("T")

MOST_FAILURES = 3
"""Forwards that may fail in a row before the engine gives up."""

_log = logging.getLogger(__name__)


class _Mailbox:
    """Where one request's events wait for the coroutine that reads them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | EngineError] = asyncio.Queue()

    def put(self, event: Event | EngineError) -> None:
        """Called on the model's thread."""
        with suppress(RuntimeError):  # a loop that was closed has nobody left to tell
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def get(self) -> Event:
        """The next event; raises the `EngineError` that ended the request."""
        event = await self._queue.get()
        if isinstance(event, EngineError):
            raise event
        return event


class _Stream(AsyncGenerator[Event, None]):
    """A request's events. Unlike a generator function's, its end is noticed even if it was never started."""

    def __init__(self, front: AsyncEngine, request: Request, mailbox: _Mailbox) -> None:
        self._front, self._request, self._mailbox = front, request, mailbox
        self._over = False

    def __del__(self) -> None:
        self._close()

    async def asend(self, value: None) -> Event:
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._mailbox.get()
        except BaseException:
            self._close()
            raise
        self._over = isinstance(event, Finished)
        return event

    async def athrow(self, typ: object, val: object = None, tb: object = None) -> Event:
        self._close()
        if isinstance(typ, BaseException):
            raise typ
        assert isinstance(typ, type)
        assert issubclass(typ, BaseException)
        raise val if isinstance(val, BaseException) else typ()

    async def aclose(self) -> None:
        """Cancel the request, if it has not ended."""
        self._close()

    def forget(self) -> None:
        """Never cancel the request, which was not added."""
        self._over = True

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._front.cancel(self._request.request_id)


class AsyncEngine:
    """Drives an `Engine` in a thread of its own. Methods may be called from any event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: deque[_Call] = deque()
        self._work: deque[_Call] = deque()
        self._wake = threading.Condition()
        self._mailboxes: dict[int, _Mailbox] = {}
        self._ids = itertools.count(1)
        self._stats = engine.stats()
        self._draining = self._stopping = self._stopped = False
        self._failures = 0
        self._error = EngineError("The engine has stopped.")
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # from now on only the thread ends it
        self._thread = threading.Thread(target=self._run, name="redraft-engine", daemon=True)
        self._thread.start()

    def next_id(self) -> int:
        """A request id that was not given out before."""
        return next(self._ids)

    def rehearse(self, request: Request) -> None:
        """See `Engine.rehearse`; not for the event loop, as it may take seconds."""
        self._engine.rehearse(request)

    async def submit(self, requests: Sequence[Request]) -> Sequence[AsyncGenerator[Event, None]]:
        """Queue all of the requests, or none and raise what `Engine.add` raised; returns their generators of events.

        Their time runs from this call, whatever the model's thread is at. A generator ends after `Finished`; it raises
        `EngineError` if the engine or its own request breaks. Closing one, also one that was never started, cancels its
        request within one forward.
        """
        boxes, since = [_Mailbox() for _ in requests], self._engine.now()
        streams = [_Stream(self, request, box) for request, box in zip(requests, boxes, strict=True)]
        try:
            await self._called(lambda: self._add(requests, boxes, since), self._inbox)
        except Exception:  # refused: there is nothing that dropping the streams would have to cancel
            for stream in streams:
                stream.forget()
            raise
        return streams

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request; as `submit`, but what it raises is raised by the first event."""
        (events,) = await self.submit([request])
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` on the model's thread, between two forwards; returns or raises what it does.

        For work that needs the model but is no request (fill, edit, decide). One such call runs at a time, and open
        requests have a forward before each of its own. It ends before its next forward when this is cancelled, or with
        an `EngineError` when the engine is told to stop.
        """
        return await self._called(function, self._work)

    async def _called(self, function: Callable[[], T], queue: deque[_Call]) -> T:
        call = _Call(function)
        self._post(call, queue)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            call.abandoned = True
            raise

    def cancel(self, request_id: int) -> None:
        """End a request before the next forward. Never waits; unknown and ended ids are ignored."""
        self._post(_Call(lambda: self._engine.cancel(request_id)), self._inbox)

    @property
    def healthy(self) -> bool:
        """Whether requests are being served; False after `close` and when forward after forward has failed."""
        return not self._stopped

    async def ended(self) -> None:
        """Wait until the thread has ended: after `close`, or by itself when forward after forward has failed."""
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def stats(self) -> EngineStats:
        """The engine's last snapshot; never waits for the model."""
        return self._stats

    async def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Stop the thread. With `drain` open requests are finished first, for at most `timeout` seconds; the rest, and
        all without `drain`, end with `Finished(finish_reason="cancelled")`. New requests are refused from now on."""
        self._draining = True
        if drain:
            self._notify()
            await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=timeout)
        self._stopping = True
        self._notify()
        await asyncio.wrap_future(self._ended)
        self._thread.join()  # at its last line

    def _add(self, requests: Sequence[Request], boxes: Sequence[_Mailbox], since: float) -> None:
        """On the model's thread: all or none."""
        if self._draining:
            raise EngineError("The engine is shutting down.")
        added: list[int] = []
        try:
            for request in requests:
                self._engine.add(request, since=since)
                added.append(request.request_id)
        except Exception:
            for request_id in added:
                self._engine.cancel(request_id)
            raise
        self._mailboxes |= {request.request_id: box for request, box in zip(requests, boxes, strict=True)}

    def _post(self, call: _Call, queue: deque[_Call]) -> None:
        """Have the model's thread call something from one of its queues."""
        with self._wake:
            if self._stopped:
                call.refuse(self._error)
                return
            queue.append(call)
            self._wake.notify()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        """The model's thread. However it ends, nobody waits for it any more."""
        try:
            self._loop()
        except Exception as error:
            _log.exception("the engine stops: %s", error)
        finally:
            self._refuse()
            self._ended.set_result(None)

    def _loop(self) -> None:
        """Some work, then whatever requests need, as long as there is anything to do."""
        while self._wait():
            if self._work:
                self._call(self._work.popleft())
            self._serve()
        self._engine.cancel_all(list(self._mailboxes))
        self._deliver(self._engine.tell())

    def _call(self, call: _Call) -> None:
        """One piece of work; before its forwards others have theirs, and it is seen whether anybody still wants it."""

        def let_others_in() -> None:
            if self._stopping:
                raise self._error
            if call.abandoned:
                raise EngineError("The caller has gone.")
            with interruptible(lambda: None):
                self._serve()

        with interruptible(let_others_in):
            call.run()

    def _serve(self) -> None:
        """All of the inbox, then one forward of requests."""
        while self._inbox:
            self._inbox.popleft().run()
        self._stats = self._engine.stats()
        if self._engine.busy:
            self._step()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when it is time to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._busy or self._draining or self._stopping)
        return not self._stopping and (self._busy or not self._draining)

    @property
    def _busy(self) -> bool:
        return bool(self._inbox or self._work) or self._engine.busy

    def _step(self) -> None:
        """One forward. If it fails, so do all open requests; if it keeps failing, the engine stops."""
        forwards = self._engine.counters.forwards
        try:
            self._deliver(self._engine.step())
            if self._engine.counters.forwards > forwards:
                self._failures = 0
        except Exception as error:
            _log.exception("a forward failed: %s", error)
            self._failures += 1
            self._stopping |= self._failures >= MOST_FAILURES  # `close` may have said so meanwhile
            self._fail(EngineError(f"A forward failed with {type(error).__name__}: {error}"))

    def _fail(self, error: EngineError) -> None:
        """Everyone who waits hears of it; the engine forgets them, and stops if that fails, too."""
        told = list(self._mailboxes)
        self._tell_all(error)
        try:
            self._engine.cancel_all(told)
        except Exception as second:
            _log.exception("a failed forward could not be cleaned up: %s", second)
            self._stopping = True

    def _tell_all(self, error: EngineError) -> None:
        for box in self._mailboxes.values():
            box.put(error)
        self._mailboxes.clear()

    def _deliver(self, events: Sequence[Event | Failed]) -> None:
        self._stats = self._engine.stats()
        for event in events:
            box = self._mailboxes.get(event.request_id)
            if isinstance(event, Finished | Failed):
                self._mailboxes.pop(event.request_id, None)
            if box is not None:
                box.put(event.error if isinstance(event, Failed) else event)

    def _refuse(self) -> None:
        """End whatever is still open, and refuse everything from now on."""
        self._tell_all(self._error)
        with self._wake:
            self._stopped = True
            for queue in (self._inbox, self._work):
                for call in queue:
                    call.refuse(self._error)
                queue.clear()


class _Call:
    """A function for the model's thread, and the future of what it returns."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future: Future[Any] = Future()
        self.abandoned = False
        """Whether nobody waits for it any more; a future that has begun cannot say so."""

    def run(self) -> None:
        """Called on the model's thread."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except BaseException as error:
            self.future.set_exception(error)

    def refuse(self, error: EngineError) -> None:
        """End without a call. One that was cancelled has ended already, and nobody hears of it."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
