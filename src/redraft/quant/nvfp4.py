"""NVFP4: 4-bit floats (e2m1) in groups of 16 inputs with an e4m3 scale each, and one fp32 scale per matrix.

Files hold the per-matrix scale either as a factor (modelopt) or as a divisor (compressed-tensors); here it is always
a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.quant.int4 import nibbles

GROUP = 16
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the 3 low bits of a code mean; the fourth is the sign."""


@dataclass(frozen=True, slots=True)
class Nvfp4Weight:
    """A weight [...,N,K] in NVFP4.

    codes   uint8 [...,N,K/2]     two inputs a byte, the even one in the low nibble
    scale   e4m3  [...,N,K/16]
    factor  fp32  [...,N,1]       of each row; files have one for a whole matrix
    """

    codes: Tensor
    scale: Tensor
    factor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.codes.shape[:-1], 2 * self.codes.shape[-1])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes + self.factor.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], device=self.codes.device)
        grouped = levels[nibbles(self.codes).int()].unflatten(-1, (-1, GROUP))  # [...,N,K/16,16]
        return (grouped * (self.scale.float() * self.factor)[..., None]).flatten(-2).to(dtype)
