"""A fingerprint of hand-written weights: what it tells apart besides the numbers."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from redraft.model.files import SINGLE_FILE, fingerprint


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
