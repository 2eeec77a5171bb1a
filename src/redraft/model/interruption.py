"""Lets long-running work yield to other work, or be ended, between two of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Inside this context `give_way` calls `check`; an exception that it raises ends the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def give_way() -> None:
    """Run the current check, if there is one.

    A `Transformer` calls this before every forward outside the engine, and other long work between its steps.
    """
    check = _check.get()
    if check is not None:
        check()
