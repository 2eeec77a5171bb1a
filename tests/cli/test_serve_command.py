"""`redraft serve` for a program: where it listens, as JSON."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path


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
