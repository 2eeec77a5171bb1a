"""Rotary positions: rotate-half over the whole head, angles in fp32. Full layers rotate only their first pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.config import ModelConfig


def inverse_frequencies(config: ModelConfig, *, sliding: bool) -> Tensor:
    """Angle per position of every rotated pair, fp32 [H/2].

    Sliding layers: theta^(-2j/H). Full layers ("proportional"): the same with their own theta for the first
    `partial_rotary_factor` of the pairs, and 0, no rotation, for the others.
    """
    dim = config.head_dim if sliding else config.global_head_dim
    theta = config.rope_theta if sliding else config.global_rope_theta
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if not sliding:
        rotated = int(config.partial_rotary_factor * dim // 2)
        frequencies[rotated:] = 0.0
    return frequencies


def rope_table(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin [B,T,1,H] of positions [B,T]; the head axis broadcasts.

    The first half of sin is negated, which saves `rotate` from negating half of every head.
    """
    angles = positions[..., None].float() * frequencies  # [B,T,H/2]
    cos, sin = angles.cos(), angles.sin()
    table = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)  # [B,T,H] each
    return table[0][:, :, None].to(dtype), table[1][:, :, None].to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (j, j + H/2) of x [B,T,N,H]."""
    cos, sin = table
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
