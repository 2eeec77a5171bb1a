"""`redraft merge`: what it refuses to write."""

import json
from pathlib import Path

import pytest
import torch
from outcome import Cli
from safetensors.torch import load_file, save_file

from random_adapter import random_adapter
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
