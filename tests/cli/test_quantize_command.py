"""`redraft quantize`."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from outcome import Cli

from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.model import quantize


def test_the_embedded_model_in_int4(cli: Cli, tmp_path: Path) -> None:
    shown = cli("quantize", "tiny", str(tmp_path / "out"), "--format", "int4", "--json").json
    assert set(shown["bytes_by_format"]) == {"not quantized", "fp8", "int4"}
    assert shown["bytes"] == sum(shown["bytes_by_format"].values())
    assert cli("inspect", str(tmp_path / "out"), "--json").code == 0


def test_sigterm_ends_it_as_ctrl_c_does(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "quantize_fp8", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert cli("quantize", "tiny", str(tmp_path / "above" / "out")).code == EXIT_INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) == before
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from redraft.cli.main import main
from redraft.model import quantize
quantize.quantize_fp8 = lambda _: os.kill(os.getpid(), signal.SIGKILL)
main(["quantize", "tiny", sys.argv[1]])
"""


def test_a_killed_one_can_be_run_again(cli: Cli, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "out").iterdir()
    assert cli("quantize", "tiny", str(tmp_path / "out")).code == 0
    assert not left.exists()
    assert cli("inspect", str(tmp_path / "out"), "--json").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny", "OUT", "--format", "fp4"), "format is 'fp4'"),
        (("tiny", "."), ". already exists; name a new one."),
        (("tiny", "TAKEN"), "taken already exists; name a new one."),
        (("tiny", "TAKEN/deeper/out"), "out cannot be made: "),
        (("tiny", "x" * 300), "cannot be made: File name too long."),
        (("tiny", "OUT", "--format", "int4", "--group", "48"), "group is 48"),
        (("tiny", "OUT/deeper", "--format", "int4", "--group", "48"), "group is 48"),
        (("tiny", "OUT", "--group", "32"), "group is 32, which needs format int4; fp8 has no groups"),
        (("nowhere", "OUT"), "neither"),
        (("nowhere/at-all", "TAKEN"), "taken already exists; name a new one."),
        (("nowhere/at-all", "OUT", "--format", "fp4"), "format is 'fp4'"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "taken").touch()
    places = {"OUT": str(tmp_path / "out"), "TAKEN": str(tmp_path / "taken")}
    ran = cli("quantize", *(re.sub("OUT|TAKEN", lambda found: places[found[0]], part) for part in arguments))
    assert ran.code == 2
    assert words in ran.err
    assert not (tmp_path / "out").exists()
