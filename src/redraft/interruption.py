"""Lets long-running work yield to other work, or be ended, between two of its steps or by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import FrameType

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Inside this context `check_interrupted` calls `check`; an exception that it raises ends the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_interrupted() -> None:
    """Run the current check, if there is one.

    A `Model` calls this before every forward outside the engine, and other long work between its steps.
    """
    check = _check.get()
    if check is not None:
        check()


@contextmanager
def handling(number: signal.Signals, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Inside, `handler` is called for a signal.

    Python only delivers signals to its main thread; in other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def defer_signal(number: signal.Signals) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Inside, the first such signal waits for the end; a second one does not.

    Yields a function that makes contexts in which signals do not wait. Python only delivers signals to its main thread;
    in other threads nothing changes, nor where a signal has no handler in Python.
    """
    before, came = signal.getsignal(number), list[int]()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield nullcontext
        return

    def handler(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            before(number, frame)

    try:
        with handling(number, handler):
            yield partial(handling, number, before)
    finally:
        if len(came) == 1:
            before(number, None)
