"""Ending a command from outside."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
"""The exit code that shells report for a program stopped by Ctrl-C."""


def stopped_by_sigterm() -> AbstractContextManager[None]:
    """Inside, SIGTERM ends a command as Ctrl-C does, so that what it has half written is removed."""
    from redraft.interruption import handling

    return handling(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def ctrl_c_after_imports() -> Iterator[None]:
    """Inside, Ctrl-C waits while torch is imported: its C++ code imports NumPy and swallows exceptions there."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # a shell's background jobs ignore it
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
        signal.default_int_handler(number, frame)
    again = threading.Timer(0.05, _thread.interrupt_main)
    again.daemon = True
    again.start()
