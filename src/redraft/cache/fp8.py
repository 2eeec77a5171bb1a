"""Keys and values in FP8 (e4m3) without a scale beside them: half of bfloat16's bytes.

Both are normed before they are stored, so their size is known beforehand. A value has at most sqrt(H) times its root
mean square, which is 1; a key at most max|k_norm| * sqrt(H), as rotating keeps lengths. So values are stored as they
are, and keys in units of a power of two of their layer, which the queries make good: exact in every binary format.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
_SPARE = 2.0**4
"""Heads of up to 784 numbers stay below e4m3's largest, 448: sqrt(784) * 16."""


def key_unit(k_norm: Tensor) -> float:
    """The power of two that keys are counted in, from the weight [H] of their norm; 1 where that has no size.

    A damaged norm, which is not finite, stays so, and the answers tell.
    """
    largest = float(k_norm.detach().abs().max())
    return 2.0 ** math.ceil(math.log2(largest)) / _SPARE if 0 < largest < math.inf else 1.0


def to_fp8_bits(x: Tensor) -> Tensor:
    """x in FP8, as uint8."""
    return x.to(FP8).view(torch.uint8)


def from_fp8_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """What `to_fp8_bits` kept, in a dtype."""
    return bits.view(FP8).to(dtype)
