"""Weights in NVFP4, which Redraft reads and does not write."""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.quant.nvfp4 import GROUP, LEVELS, Nvfp4Weight

_LARGEST_SCALE = 448.0


def quantize_nvfp4(weight: Tensor) -> Nvfp4Weight:
    """Round a weight [...,N,K], K a multiple of 16, to the nearest NVFP4 values, each matrix with its own factor."""
    grouped = weight.float().unflatten(-1, (-1, GROUP))  # [...,N,K/16,16]
    peaks = grouped.abs().amax(-1)
    factor = peaks.amax((-1, -2), keepdim=True).clamp(min=1e-12) / (LEVELS[-1] * _LARGEST_SCALE)
    scale = (peaks / (LEVELS[-1] * factor)).to(torch.float8_e4m3fn)
    step = (scale.float() * factor)[..., None]
    ratio = torch.where(step > 0, grouped / step, 0.0)
    magnitude = (ratio.abs()[..., None] - torch.tensor(LEVELS, device=weight.device)).abs().argmin(-1)
    codes = (magnitude + 8 * (ratio < 0)).flatten(-2).to(torch.uint8)  # [...,N,K]
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    return Nvfp4Weight(packed, scale, factor.expand(*packed.shape[:-1], 1))
