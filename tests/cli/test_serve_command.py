"""`redraft serve` for a program: where it listens, as JSON."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from redraft.cli.main import main


@pytest.mark.parametrize("random", [False, True])
def test_json_tells_the_address_once_it_answers(folder: Path, random: bool) -> None:
    command = [sys.executable, "-m", "redraft", "serve", "--model", str(folder), "--name", "small"]
    command += ["--random-weights", "--tokenizer", str(folder / "tokenizer.json")] if random else []
    with subprocess.Popen([*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            assert told["models"] == ["small"]
            with urllib.request.urlopen(f"{told['url']}/ready", timeout=60) as answer:
                assert answer.status == 200
        finally:
            server.terminate()
    assert server.returncode == 0


def test_an_empty_host_does_not_let_everybody_in(capsys: pytest.CaptureFixture[str]) -> None:
    """As `--host "$HOST"` is where the variable is not set."""
    assert main(["serve", "--host", "", "--port", "0", "--model", "/no/such/model"]) == 2
    assert "host is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tokenizer", "x.json"), "--tokenizer needs --random-weights"),
        (("--random-weights",), "Random weights have no tokenizer"),
        (("--random-weights", "--tokenizer", "x.json", "--adapter", "a=b"), "An adapter belongs to the weights"),
        (("--random-weights", "--tokenizer", "x.json", "--dtype", "float32"), "random weights are in bfloat16"),
        (("--random-weights", "--tokenizer", "x.json"), "x.json"),
    ],
)
def test_random_weights_come_with_a_tokenizer_alone(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(["serve", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err
