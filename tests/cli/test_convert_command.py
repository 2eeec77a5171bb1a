"""`redraft convert`."""

import os
import signal
from pathlib import Path

import pytest
from outcome import Cli

from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.model import convert


def test_a_quantized_folder_in_full(cli: Cli, tmp_path: Path) -> None:
    assert cli("quantize", "tiny", tmp_path / "small", "--format", "int4").code == 0
    shown = cli("convert", tmp_path / "small", tmp_path / "out", "--dtype", "fp16", "--json").json
    assert shown == {"model": str(tmp_path / "small"), "out": str(tmp_path / "out"), "dtype": "float16",
                     "bytes": shown["bytes"]}  # fmt: skip
    assert cli("inspect", tmp_path / "out", "--json").json["files"]["bytes"] == {"F16": shown["bytes"]}
    assert cli("convert", tmp_path / "small", tmp_path / "again").out.endswith("GB in bfloat16\n")


def test_sigterm_ends_it_as_ctrl_c_does(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "is_finite", lambda _: os.kill(os.getpid(), signal.SIGTERM) is None)
    assert cli("convert", "tiny", tmp_path / "above" / "out").code == EXIT_INTERRUPTED
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere/at-all", "OUT", "--dtype", "fp8"), "dtype is 'fp8'; it must be one of bfloat16, float16, float32."),
        (("nowhere/at-all", "."), ". already exists; name a new one."),
        (("nowhere", "OUT"), "'nowhere' is neither"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = cli("convert", *(part.replace("OUT", str(tmp_path / "out")) for part in arguments))
    assert ran.code == 2
    assert words in ran.err
    assert not list(tmp_path.iterdir())
