"""What a person types at a prompt: a line, several that are pasted, or a block between two lines of triple quotes."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from contextlib import suppress

QUOTES = '"""'
_TOGETHER = 0.02
"""Seconds within which a further line belongs to the same paste: nobody types that fast."""


def enable_line_editing() -> None:
    """Arrow keys, an input history, and pasted lines that wait for Enter, as far as Python's readline has them."""
    with suppress(ImportError):
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off; libedit ignores this


def read_typed(is_command: Callable[[str], bool]) -> str | None:
    """What is typed or pasted next, None at the end of input; only several lines have line ends between or after them.

    Ctrl-C empties the input. Nothing is added to a line for which `is_command` holds.
    """
    while True:
        try:
            line = _line("> ").rstrip("\n")  # of a paste
            if line.strip() == QUOTES:
                return _block()
            return line if is_command(line) else _with_waiting_lines(line)
        except EOFError:
            sys.stderr.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stderr.write("\n")


def _line(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)  # answers go to a file, where the prompt does not belong
    sys.stderr.flush()
    return input()


def _block() -> str:
    """The lines up to the closing quotes, each with its line end, so that not even a single one is a command."""
    lines = []
    while (line := _line("... ")).rstrip() != QUOTES:
        lines.append(line + "\n")
    return "".join(lines)


def _with_waiting_lines(line: str) -> str:
    """The line with those that arrived with it: a paste, where the terminal or readline does not mark its ends."""
    lines = [line]
    with suppress(EOFError):
        while _is_more_waiting():
            lines.append(_line("... "))
    return "\n".join(lines)


def _is_more_waiting() -> bool:
    try:
        return bool(select.select([sys.stdin], [], [], _TOGETHER)[0])
    except (OSError, ValueError):  # a replaced stdin, or a system that selects sockets alone
        return False
