"""A terminal of its own: keys that are typed while an answer settles are kept and not shown."""

import io
import os
import subprocess
import sys

import pytest

from redraft.cli.keyboard import silent_keyboard

pty = pytest.importorskip("pty", reason="needs terminals as Unix has them")
termios = pytest.importorskip("termios", reason="needs terminals as Unix has them")

PROGRAM = """
import sys
from redraft.cli.keyboard import silent_keyboard
with silent_keyboard():
    print("<settling>", flush=True)
    typed = sys.stdin.readline().strip()
print(f"<kept {typed!r}>", flush=True)
print("<again " + sys.stdin.readline().strip() + ">", flush=True)
"""


def _until(terminal: int, mark: str) -> str:
    seen = ""
    while mark not in seen:
        seen += os.read(terminal, 1024).decode()
    return seen


def test_keys_are_kept_and_not_shown() -> None:
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{PROGRAM}"],
        stdin=theirs, stdout=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        _until(ours, "<settling>")
        os.write(ours, b"hidden\n")
        assert _until(ours, ">").count("hidden") == 1
        os.write(ours, b"shown\n")
        assert _until(ours, "again shown>").count("shown") == 2
        assert program.wait(120) == 0
    finally:
        program.kill()
        os.close(ours)


@pytest.mark.parametrize("keyboard", [io.StringIO("x"), None])
def test_nothing_happens_where_nobody_types(keyboard: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with silent_keyboard(keyboard):
        pass


def test_a_process_in_the_background_leaves_the_terminal_alone() -> None:
    """It would be stopped for changing it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as keyboard, silent_keyboard(keyboard):  # not the terminal that this process belongs to
        assert termios.tcgetattr(keyboard)[3] & termios.ECHO
    os.close(ours)
