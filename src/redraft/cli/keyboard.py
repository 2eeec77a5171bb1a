"""The keyboard while an answer settles: input is kept for the next question and does not disturb the display."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def silent_keyboard(keyboard: TextIO | None = None) -> Iterator[None]:
    """Inside, keys are not echoed but kept, and Ctrl-C works; without a person at the keyboard nothing changes."""
    descriptor = _terminal(sys.stdin if keyboard is None else keyboard)
    if descriptor is None:
        yield
        return
    import termios

    before = termios.tcgetattr(descriptor)
    silent = termios.tcgetattr(descriptor)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _terminal(keyboard: TextIO | None) -> int | None:
    """The descriptor of a terminal that this process may change; a background process would be stopped for it."""
    try:
        if keyboard is None or not keyboard.isatty():
            return None
        descriptor = keyboard.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):  # closed, replaced, another's, or a system without process groups
        return None
