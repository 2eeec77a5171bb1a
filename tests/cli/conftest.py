"""A small random model in a folder, the command line as a function, and hand-made records."""

import io
import shutil
import sys
from pathlib import Path

import pytest
from outcome import CONTEXT, Cli, Outcome

from random_model import write_random_model
from redraft.cli.main import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's tokenizer and template around a random network with canvases of 16."""
    where = write_random_model(tmp_path_factory.mktemp("random"), canvas=16, context=CONTEXT)
    (where / "generation_config.json").write_text('{"eos_token_id": [1], "max_denoising_steps": 3}')
    return where


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command in this process, with `stdin` bytes where given, which a person may have typed."""

    def run(*args: object, stdin: bytes = b"", typed: bool = False) -> Outcome:
        source = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(source, "isatty", lambda: typed, raising=False)
        monkeypatch.setattr(sys, "stdin", source)
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run
