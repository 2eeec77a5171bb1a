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


class TypedInput:
    """Messages and commands as a person enters them; a line for which `is_command` holds is always one by itself."""

    def __init__(self, is_command: Callable[[str], bool]) -> None:
        self._is_command = is_command
        self._next: str | None = None
        """A command that was found behind other lines."""

    def read(self) -> str | None:
        """What is typed or pasted next, None at the end of input; only what has a line end is several lines.

        Ctrl-C empties the input.
        """
        while True:
            try:
                line, self._next = self._next or _line("> ").rstrip("\n"), None  # a paste may end with line ends
                if line.strip() == QUOTES:
                    return _block()
                return line if self._is_command(line) else self._with_waiting_lines(line)
            except EOFError:
                sys.stderr.write("\n")
                return None
            except KeyboardInterrupt:
                sys.stderr.write("\n")

    def _with_waiting_lines(self, line: str) -> str:
        """The line with those that arrived with it: a paste, where the terminal or readline does not mark its ends."""
        lines = [line]
        with suppress(EOFError):
            while _is_more_waiting():
                following = _line("... ")
                if self._is_command(following):
                    self._next = following
                    break
                lines.append(following)
        return "\n".join(lines)


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


def _is_more_waiting() -> bool:
    try:
        return bool(select.select([sys.stdin], [], [], _TOGETHER)[0])
    except (OSError, ValueError):  # a replaced stdin, or a system that selects sockets alone
        return False
