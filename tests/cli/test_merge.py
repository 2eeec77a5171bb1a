"""`redraft merge`: what it refuses to write, and what is left of one that was stopped."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from outcome import Cli
from safetensors.torch import load_file, save_file

from random_adapter import random_adapter
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.model.adapters import save_adapter
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer
from redraft.model.weights import save_model


@pytest.mark.parametrize("name", ["norm", "layers.0.router.proj"])
def test_weights_that_are_no_numbers_are_named_and_nothing_is_left(cli: Cli, tmp_path: Path, name: str) -> None:
    model, base, out = Transformer(preset("nano")), tmp_path / "base", tmp_path / "out"
    initialise(model, 0)
    save_model(model, base)
    save_adapter(random_adapter(model, 0), tmp_path / "adapter", base_model="base")
    assert cli("merge", base, tmp_path / "adapter", tmp_path / "whole", "--json").json["weights_changed"]
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["dtype"] == "float32"
    tensors = load_file(base / "model.safetensors")
    tensors[f"model.decoder.{name}.weight"].view(-1)[3] = torch.nan
    save_file(tensors, base / "model.safetensors")
    refused = cli("merge", base, tmp_path / "adapter", out)
    assert refused.err == f"error: model.decoder.{name}.weight has infinite or NaN values.\n"
    assert not out.exists()


def test_a_target_that_is_taken_is_refused_before_a_model_is_fetched(cli: Cli, tmp_path: Path) -> None:
    refused = cli("merge", "nowhere/at-all", tmp_path, ".")
    assert (refused.code, refused.err) == (2, "error: . already exists; name a new one.\n")


STOPPED = """
import os, shutil, sys
from pathlib import Path
from redraft.cli.main import main

def stopped(source, target):
    Path(target).write_bytes(Path(source).read_bytes()[:100])
    os.kill(os.getpid(), int(sys.argv[1]))

shutil.copyfile = stopped
sys.exit(main(["merge", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_is_stopped_with_half_a_tokenizer_can_be_started_again(cli: Cli, tmp_path: Path, how: int) -> None:
    model, base, out = Transformer(preset("nano")), tmp_path / "base", tmp_path / "out"
    initialise(model, 0)
    save_model(model, base)
    (base / "tokenizer.json").write_text(json.dumps({"words": [*range(1000)]}))
    save_adapter(random_adapter(model, 0), tmp_path / "adapter", base_model="base")
    command = [sys.executable, "-c", STOPPED, str(int(how)), base, tmp_path / "adapter", out]
    assert subprocess.run(command, check=False).returncode in (EXIT_INTERRUPTED, -signal.SIGKILL)
    assert not (out / "config.json").exists()
    assert cli("merge", base, tmp_path / "adapter", out).code == 0
    assert {file.name for file in out.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
