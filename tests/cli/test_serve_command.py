"""`redraft serve` for a program: where it listens, as JSON."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from redraft.cli.main import main


def test_json_tells_the_address_once_it_answers(folder: Path) -> None:
    command = [sys.executable, "-m", "redraft", "serve", "--model", str(folder), "--name", "small"]
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
