"""Ending a command from outside."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager

EXIT_INTERRUPTED = 130
"""The exit code that shells report for a program stopped by Ctrl-C."""


def stopped_by_sigterm() -> AbstractContextManager[None]:
    """Inside, SIGTERM ends a command as Ctrl-C does, so that what it has half written is removed."""
    from redraft.model.interruption import handling

    return handling(signal.SIGTERM, signal.default_int_handler)
