"""A fingerprint of hand-written weights: what it tells apart besides the numbers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.files import INDEX_FILE, SINGLE_FILE, fingerprint


def test_the_same_bytes_in_another_shape_or_dtype_or_under_another_name_are_other_weights(tmp_path: Path) -> None:
    matrix, factor = torch.arange(8.0).view(1, 8), torch.tensor(2.0)

    def of(**tensors: Tensor) -> str:
        save_file(tensors, tmp_path / SINGLE_FILE)
        return fingerprint(tmp_path)

    found = [
        of(a=matrix, b=factor),
        of(a=matrix, b=factor + 1),
        of(a=matrix, c=factor),
        of(a=matrix[0].clone(), b=factor),
        of(a=matrix.view(torch.int32), b=factor),
    ]
    assert len(set(found)) == len(found)
    assert of(b=factor, a=matrix) == found[0]


def test_other_numbers_anywhere_in_a_large_tensor_are_noticed(tmp_path: Path) -> None:
    """Weights that share their first rows are told apart, and so are those that differ in their last number."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(64, 512, generator=generator)
    found = []
    for first in (64, 63, 32, 1):
        other = matrix.clone()
        other[first:] += 1
        save_file({"a": other}, tmp_path / SINGLE_FILE)
        found.append(fingerprint(tmp_path))
    matrix[-1, -1] += 1
    save_file({"a": matrix}, tmp_path / SINGLE_FILE)
    assert len({*found, fingerprint(tmp_path)}) == 5


def test_the_same_tensors_in_other_files_are_the_same_weights(tmp_path: Path) -> None:
    tensors = {name: torch.full((3,), number) for number, name in enumerate("abcd")}
    found = []
    for number, files in enumerate((["abcd"], ["ab", "cd"], ["bd", "ac"])):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for names in files:
            save_file({name: tensors[name] for name in names}, folder / f"{names}.safetensors")
        weight_map = {name: f"{names}.safetensors" for names in files for name in names}
        (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
        found.append(fingerprint(folder))
    assert len(set(found)) == 1


def test_an_empty_file_is_damaged(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).touch()
    with pytest.raises(CheckpointError, match=r"is damaged or truncated \(.*\); fetch it again\.$"):
        fingerprint(tmp_path)
