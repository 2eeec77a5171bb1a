"""Work of many forwards that somebody else may end between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Within this, `check` is called before every forward of a `Transformer` outside the engine; what it raises ends
    the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def before_forward() -> None:
    """Called by the model: let the check that is set, if there is one, end the work here."""
    check = _check.get()
    if check is not None:
        check()
