"""Keys and values in FP8 (e4m3) without stored scales: half of bfloat16's bytes.

Both are normed before they are stored, so their range is known in advance. A value is at most sqrt(H) times its root
mean square, which is 1; a key at most max|k_norm| * sqrt(H), as rotation keeps lengths. So values are stored as they
are, and keys in units of their layer's power of two, which the queries make up for: exact in every binary format.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
_SPARE = 2.0**4
"""Heads of up to 784 numbers stay below e4m3's largest, 448: sqrt(784) * 16."""


def key_unit(k_norm: Tensor) -> float:
    """The power of two that is the unit of keys, from the weight [H] of their norm; 1 if that is zero or not finite.

    A damaged norm that is not finite stays that way, so it shows in the answers.
    """
    largest = float(k_norm.detach().abs().max())
    return 2.0 ** math.ceil(math.log2(largest)) / _SPARE if 0 < largest < math.inf else 1.0


def to_fp8_bits(x: Tensor) -> Tensor:
    """x in FP8, as uint8."""
    return x.to(FP8).view(torch.uint8)


def from_fp8_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that `to_fp8_bits` stored, in the given dtype."""
    return bits.view(FP8).to(dtype)
