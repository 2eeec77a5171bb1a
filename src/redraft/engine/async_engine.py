"""The asynchronous front end: one thread owns the model, any number of coroutines wait for their events.

Everything that changes the engine is a small function put into the thread's inbox and called between two forwards, so
nothing in the engine needs a lock, and a cancelled request costs at most the forward in progress. Calls that run their
own forwards (fill, edit, decide) have a separate queue and run one at a time. Their forwards alternate with those of
requests; a call is ended between two of its forwards when its caller has gone or the engine stops.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import torch

from redraft.diffusion.records import DenoiseStep
from redraft.engine.engine import Engine
from redraft.engine.request import Event, Failed, Finished, Request
from redraft.engine.stats import EngineStats
from redraft.errors import EngineError
from redraft.interruption import interruptible

T = TypeVar("T")

MOST_FAILURES = 3
"""The engine gives up after this many failed forwards in a row."""

_log = logging.getLogger(__name__)


class _Mailbox:
    """Where one request's events wait for the coroutine that reads them."""

    def __init__(self, most: float) -> None:
        self._loop, self._most = asyncio.get_running_loop(), most
        self._queue: asyncio.Queue[Event | Failed] = asyncio.Queue()

    def put(self, event: Event | Failed) -> None:
        """Called on the model's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody is left to read it
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event | Failed) -> None:
        if not isinstance(event, DenoiseStep) or self._queue.qsize() < self._most:
            self._queue.put_nowait(event)

    async def get(self) -> Event:
        """The next event; raises the `EngineError` that ended the request."""
        event = await self._queue.get()
        if isinstance(event, Failed):
            raise event.error
        return event


class _Stream(AsyncGenerator[Event, None]):
    """A request's events. Unlike with a generator function, closing it is noticed even if it was never started."""

    def __init__(self, engine: AsyncEngine, request: Request, mailbox: _Mailbox) -> None:
        self._engine, self._request, self._mailbox = engine, request, mailbox
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

    async def athrow(self, typ: Any, val: Any = None, tb: object = None) -> Event:
        self._close()
        raise typ if val is None else val

    async def aclose(self) -> None:
        """Cancel the request, if it has not ended."""
        self._close()

    def forget(self) -> None:
        """Never cancel the request, because it was not added."""
        self._over = True

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._engine.cancel(self._request.request_id)


class AsyncEngine:
    """Runs an `Engine` in its own thread. Methods may be called from any event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: deque[_Call] = deque()
        self._calls: deque[_Call] = deque()
        self._wake = threading.Condition()
        self._ids = itertools.count(1)
        self._draining = self._stopping = self._gave_up = self._stopped = False
        self._failures = 0
        self._error = EngineError("The engine has stopped.")
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # from now on only the thread completes it
        self._thread = threading.Thread(target=self._run, name="redraft-engine", daemon=True)
        self._thread.start()

    def next_id(self) -> int:
        """A request id that has not been used before."""
        return next(self._ids)

    def rehearse(self, request: Request) -> None:
        """See `Engine.rehearse`; do not call it on the event loop, as it may take seconds."""
        self._engine.rehearse(request)

    async def submit(
        self, requests: Sequence[Request], *, most_unread: float = math.inf
    ) -> Sequence[AsyncGenerator[Event, None]]:
        """Queue all requests and return their event generators, or queue none and raise what `add_together` raised.

        Their time runs from this call, whatever the model's thread is doing. A generator ends after `Finished`; it
        raises `EngineError` if the engine or its own request breaks. Closing one, even if it was never started, cancels
        its request within one forward. One that has `most_unread` events yet to yield leaves out `DenoiseStep`s that
        come meanwhile.
        """
        boxes, since = [_Mailbox(most_unread) for _ in requests], self._engine.now()
        streams = [_Stream(self, request, box) for request, box in zip(requests, boxes, strict=True)]
        try:
            puts = [box.put for box in boxes]
            await self._called(lambda: self._engine.add_together(requests, puts, since=since), self._inbox)
        except Exception:  # refused, so there is nothing to cancel when the streams are dropped
            for stream in streams:
                stream.forget()
            raise
        except asyncio.CancelledError:  # they may have been added meanwhile
            for stream in streams:
                await stream.aclose()
            raise
        return streams

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request; like `submit`, but errors are raised when the first event is awaited."""
        (events,) = await self.submit([request])
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` on the model's thread, between two forwards; returns or raises what it does.

        For work that needs the model but is not a request (fill, edit, decide). One such call runs at a time, and open
        requests get a forward before each of its forwards. It ends before its next forward if this coroutine is
        cancelled, or with an `EngineError` if the engine is told to stop. A forward of its own that fails ends only the
        call, and counts for `MOST_FAILURES` as any other, unless the call wants more memory than there is.
        """
        return await self._called(function, self._calls)

    def cancel(self, request_id: int) -> None:
        """End a request before the next forward. Never waits; unknown and ended ids are ignored."""
        self._post(_Call(lambda: self._cancel(request_id)), self._inbox)

    @property
    def healthy(self) -> bool:
        """Whether requests are being served; False after `close` and after too many failed forwards in a row."""
        return not self._stopped

    @property
    def alive(self) -> bool:
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    async def ended(self) -> None:
        """Wait until the thread has ended: after `close`, or by itself after too many failed forwards in a row."""
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def stats(self) -> EngineStats:
        """See `Engine.stats`; never waits for the model."""
        return self._engine.stats()

    async def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Stop the thread. With `drain`, open requests and calls of `run` get up to `timeout` seconds to finish. All
        other requests end with `Finished(finish_reason="cancelled")`, and calls with an `EngineError`. New ones are
        refused from now on."""
        self._draining = True
        if drain:
            self._notify()
            await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=timeout)
        self.stop()
        await asyncio.wrap_future(self._ended)
        self._thread.join()  # at its last line

    def stop(self) -> None:
        """Like `close` without `drain`, but without waiting for what the thread is in the middle of."""
        self._draining = self._stopping = True
        self._notify()

    def _cancel(self, request_id: int) -> None:
        """Called on the model's thread, where nobody waits for what comes of it."""
        try:
            self._engine.cancel(request_id)
        except Exception as error:
            _log.exception("a cancelled request could not be cleaned up: %s", error)

    async def _called(self, function: Callable[[], T], queue: deque[_Call]) -> T:
        if self._draining and not self._stopped:
            raise EngineError("The engine is shutting down.")
        call = _Call(function)
        self._post(call, queue)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            call.abandoned = True
            raise

    def _post(self, call: _Call, queue: deque[_Call]) -> None:
        """Queue a call for the model's thread."""
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
        """The model's thread. However it ends, nobody is left waiting for it."""
        try:
            self._loop()
        except Exception as error:
            _log.exception("the engine is stopping: %s", error)
            self._give_up()
        finally:
            self._end_all()
            self._refuse()
            self._ended.set_result(None)

    def _loop(self) -> None:
        """Alternate between queued calls and requests for as long as there is anything to do."""
        while self._wait():
            if self._calls:
                self._call(self._calls.popleft())
            self._serve()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when it is time to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._busy or self._draining or self._stopping)
        return not self._stopping and (self._busy or not self._draining)

    @property
    def _busy(self) -> bool:
        return bool(self._inbox or self._calls) or self._engine.busy

    def _call(self, call: _Call) -> None:
        """Run one queued call; before each of its forwards, serve requests and check that it is still wanted."""
        began = False

        def before_forward() -> None:
            nonlocal began
            began = True
            if self._stopping:
                raise self._error
            if call.abandoned:
                raise EngineError("The caller has gone away.")
            with interruptible(lambda: None):
                self._serve()

        with interruptible(before_forward):
            error = call.run()
        if began and error is None:
            self._failures = 0
        elif began and _is_of_a_forward(error):
            self._count_failure(error)

    def _serve(self) -> None:
        """Run everything in the inbox, then one forward of requests."""
        while self._inbox:
            self._inbox.popleft().run()
        if self._engine.busy:
            self._step()

    def _step(self) -> None:
        """One forward. If it fails, so do the requests that hold a slot; if it keeps failing, the engine gives up."""
        forwards = self._engine.counters.forwards
        try:
            self._engine.step()
            if self._engine.counters.forwards > forwards:
                self._failures = 0
        except Exception as error:
            self._count_failure(error)
            self._fail_running(error)

    def _count_failure(self, error: BaseException | None) -> None:
        _log.error("a forward failed: %s", error, exc_info=error)
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._give_up()

    def _fail_running(self, error: Exception) -> None:
        """End the requests that hold a slot. If they cannot be cleaned up, the engine gives up."""
        try:
            self._engine.fail_running(error)
        except Exception as second:
            _log.exception("a failed forward could not be cleaned up: %s", second)
            self._give_up()

    def _give_up(self) -> None:
        """Stop after what the thread is doing, and end all requests with an error."""
        self._gave_up = self._stopping = True

    def _end_all(self) -> None:
        """End all requests: with an error if the engine has given up, else as cancelled."""
        left = self._engine.open_ids
        try:
            if self._gave_up:
                self._engine.fail_all(left, self._error)
            else:
                self._engine.cancel_all(left)
        except Exception as error:
            _log.exception("requests ended, and could not be cleaned up: %s", error)

    def _refuse(self) -> None:
        """Refuse everything from now on."""
        with self._wake:
            self._stopped = True
            for queue in (self._inbox, self._calls):
                for call in queue:
                    call.refuse(self._error)
                queue.clear()


def _is_of_a_forward(error: BaseException | None) -> bool:
    """Whether an error of a call that has begun tells of forwards, as a broken GPU's does wherever it is noticed."""
    return isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError)


class _Call:
    """A function for the model's thread, and the future of what it returns."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future: Future[Any] = Future()
        self.abandoned = False
        """Whether nobody waits for it any more; a future that is running cannot be cancelled to say so."""

    def run(self) -> BaseException | None:
        """Called on the model's thread; returns what the function raised."""
        if not self.future.set_running_or_notify_cancel():
            return None
        try:
            self.future.set_result(self._function())
        except BaseException as error:
            self.future.set_exception(error)
            return error
        return None

    def refuse(self, error: EngineError) -> None:
        """End without calling the function. If it was cancelled, it has already ended and the error goes nowhere."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
