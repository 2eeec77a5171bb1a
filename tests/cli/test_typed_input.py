"""A terminal of its own: several pasted lines are one message, as are those between triple quotes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

pty = pytest.importorskip("pty", reason="needs terminals as Unix has them")
pytest.importorskip("readline", reason="a paste is marked for readline")

PROGRAM = """
import fcntl, json, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from redraft.cli.prompt import TypedInput, enable_line_editing
enable_line_editing()
for text in iter(TypedInput(lambda line: line in ("/reset", "/help")).read, None):
    print(f"<{json.dumps(text)}>")
print("<null>")
"""


class Terminal:
    """The program above with a person, who types when it is ready."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "xterm"}
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment,
        )  # fmt: skip
        os.close(theirs)
        self._until("> ")

    def press(self, keys: str, until: str) -> None:
        """Press some keys and wait for a prompt."""
        os.write(self._ours, keys.encode())
        self._until(until)

    def enter(self, keys: str) -> str | None:
        """What the program reads when these keys are pressed."""
        self.press(keys, "<")
        return json.loads(self._until(">")[:-1])

    def interrupt(self, until: str) -> None:
        """Press Ctrl-C while the program sleeps: Python overlooks one between showing its prompt and waiting."""
        while psutil.Process(self.program.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        self.press("\x03", until)

    def _until(self, mark: str) -> str:
        seen = b""
        while not seen.endswith(mark.encode()):
            seen += os.read(self._ours, 1)
        return seen.decode()

    def close(self) -> None:
        """End it."""
        self.program.kill()
        self.program.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


def pasted(text: str) -> str:
    """As terminals mark a paste."""
    return f"\x1b[200~{text}\x1b[201~"


def test_a_marked_paste_is_one_message(terminal: Terminal) -> None:
    assert terminal.enter(pasted("def f(x):\r\treturn x\r\rf(1)") + "\r") == "def f(x):\n\treturn x\n\nf(1)"
    assert terminal.enter("Explain: " + pasted("a\rb\r") + "\r") == "Explain: a\nb"
    assert terminal.enter(pasted("/help\r") + "\r") == "/help"


def test_lines_that_arrive_together_are_one_message(terminal: Terminal) -> None:
    assert terminal.enter("def f(x):\n    return x\n\nf(1)\n") == "def f(x):\n    return x\n\nf(1)"
    assert terminal.enter("next\n") == "next"


def test_a_command_is_a_line_of_its_own(terminal: Terminal) -> None:
    assert terminal.enter("/reset\nHello\n/home\n/reset\n") == "/reset"
    assert [terminal.enter(""), terminal.enter("")] == ["Hello\n/home", "/reset"]


def test_lines_between_quotes_are_one_message(terminal: Terminal) -> None:
    assert terminal.enter('"""\r/a\r  b\r"""\r') == "/a\n  b\n"
    assert terminal.enter('"""\r/help\r"""\r') == "/help\n"


def test_ctrl_c_empties_a_block_and_ctrl_d_ends(terminal: Terminal) -> None:
    terminal.press('"""\r', "... ")
    terminal.press("a\r", "... ")
    terminal.interrupt("> ")
    assert terminal.enter("next\r") == "next"
    terminal.press("", "> ")
    assert terminal.enter("\x04") is None
    assert terminal.program.wait(120) == 0
