"""`redraft quantize`."""

import re
from pathlib import Path

import pytest
from outcome import Cli


def test_the_embedded_model_in_int4(cli: Cli, tmp_path: Path) -> None:
    shown = cli("quantize", "tiny", str(tmp_path / "out"), "--format", "int4", "--json").json
    assert set(shown["bytes_by_format"]) == {"not quantized", "fp8", "int4"}
    assert shown["bytes"] == sum(shown["bytes_by_format"].values())
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
        (("tiny", "OUT", "--group", "32"), "--group needs --format int4; fp8 has no groups"),
        (("nowhere", "OUT"), "neither"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "taken").touch()
    places = {"OUT": str(tmp_path / "out"), "TAKEN": str(tmp_path / "taken")}
    ran = cli("quantize", *(re.sub("OUT|TAKEN", lambda found: places[found[0]], part) for part in arguments))
    assert ran.code == 2
    assert words in ran.err
    assert not (tmp_path / "out").exists()
