"""FP8: e4m3 values with one scale per output channel, rounded to nearest from the weights alone."""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.kernels.packed import LARGEST_E4M3, PackedFp8


def quantize_fp8(weight: Tensor) -> PackedFp8:
    """Round each row of a weight [...,N,K] to the nearest multiples of its largest magnitude over 448."""
    rows = weight.float()
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST_E4M3
    values = (rows / scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    return PackedFp8(values, scale.squeeze(-1))
