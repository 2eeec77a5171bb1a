"""Shards as mapped files: of any size, read when used, and never written to."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.checkpoint import Checkpoint
from redraft.model.files import fingerprint
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer
from redraft.model.weights import save_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = Transformer(preset("nano"))
    initialise(model, 0)
    save_model(model, tmp_path / "model")
    return tmp_path / "model"


def test_a_shard_larger_than_memory_can_be_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    weight, digest = load_file(path)["model.decoder.norm.weight"].clone(), fingerprint(folder)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _pad(path, "padding.output_scale", 4 * memory)
    checkpoint = Checkpoint(folder)
    assert path.stat().st_size > 4 * memory
    torch.testing.assert_close(checkpoint.weight("norm.weight"), weight, rtol=0, atol=0)
    assert fingerprint(folder) != digest  # it has one tensor more


def _pad(shard: Path, name: str, size: int) -> None:
    """Add a tensor of zeros that takes no room on the disk."""
    data = shard.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [len(data) - start, len(data) - start + size]}
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with shard.open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written + data[start:])
        try:
            file.truncate(8 + len(written) + len(data) - start + size)
        except OSError as error:
            pytest.skip(f"no file of {size} bytes here: {error}")


def test_a_shard_that_cannot_be_mapped_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    checkpoint = Checkpoint(folder)
    monkeypatch.setattr("mmap.mmap", refused)
    for read in (lambda: checkpoint.weight("norm.weight"), lambda: fingerprint(folder)):
        with pytest.raises(CheckpointError, match=r"cannot be mapped into memory: Cannot allocate memory\.$"):
            read()


def test_what_is_written_to_a_weight_does_not_reach_its_file(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    weight = Checkpoint(folder).weight("norm.weight")
    assert isinstance(weight, Tensor)
    weight.fill_(3)
    assert (folder / "model.safetensors").read_bytes() == before
