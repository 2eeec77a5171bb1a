"""`redraft serve` for a program: where it listens, as JSON."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from redraft.cli.main import main
from redraft.cli.serve import _announce


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


@pytest.mark.parametrize(("host", "url"), [("::1", "http://[::1]:80"), ("127.0.0.1", "http://127.0.0.1:80")])
def test_an_address_is_told_as_browsers_take_it(host: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    listener = SimpleNamespace(getsockname=lambda: (host, 80, 0, 0))
    _announce(listener, ("tiny",), ("sql",), True, "cpu")  # type: ignore[arg-type]
    told = capsys.readouterr()
    assert json.loads(told.out) == {"models": ["tiny", "sql"], "device": "cpu", "url": url}
    assert f"tiny, sql on cpu at {url} (API: {url}/v1)" in told.err


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
        (("--random-weights", "--tokenizer", "x.json", "--dtype", "bf16"), "x.json"),
    ],
)
def test_random_weights_come_with_a_tokenizer_alone(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(["serve", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("serve", "--random-weights", "--port", "0", "--device", "cpu", "--model"), "26b-a4b take 51 GB"),
        (("bench", "train", "--device", "cpu", "--shape"), "26b-a4b take 101 GB"),
    ],
)
def test_a_shape_that_does_not_fit_into_memory_is_refused_before_any_weight_is_made(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    command: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr("redraft.bench.random_weights.machine_memory", lambda: 24 * 10**9)
    monkeypatch.setattr("redraft.bench.random_weights.random_source", lambda *_: pytest.fail("weights are made"))
    tokenizer = ("--tokenizer", str(folder / "tokenizer.json")) if command[0] == "serve" else ()
    assert main([*command, "26b-a4b", *tokenizer]) == 2
    assert f"{said} and this machine has 24" in capsys.readouterr().err


def test_a_name_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--name", "a", "--name", "b", "--name", "a", "--port", "0", "--model", "/no/such/model"]) == 2
    assert "The names of the model are a, b, a; each may be given only once." in capsys.readouterr().err
