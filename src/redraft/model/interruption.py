"""Long work that lets others in, and may be ended, between two of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Within this, `give_way` calls `check`; what it raises ends the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def give_way() -> None:
    """Call the check that is set, if there is one.

    A `Transformer` does so before every forward outside the engine, other work between steps that take some time.
    """
    check = _check.get()
    if check is not None:
        check()
