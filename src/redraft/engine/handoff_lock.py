"""A lock that goes to another thread when one is waiting."""

from __future__ import annotations

import threading
from contextlib import nullcontext


class _Depth(threading.local):
    entered = 0


class HandoffLock:
    """A re-entrant lock: a thread that releases it while others wait gets it again only after one of them.

    With a plain lock, a thread that lets go briefly between two forwards has it back before another one wakes up. Which
    of several waiting threads is next is the operating system's choice.
    Garbage collection may close an iterator, and thereby enter the lock, between any two lines here.
    """

    def __init__(self) -> None:
        self._turn, self._lock = threading.RLock(), threading.RLock()
        self._mine = _Depth()

    def __enter__(self) -> None:
        # The thread that holds the turn may be waiting for this very thread.
        with nullcontext() if self._mine.entered else self._turn:
            self._lock.acquire()
            self._mine.entered += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._mine.entered -= 1
