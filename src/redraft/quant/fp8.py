"""FP8: e4m3 values with one scale per output channel, rounded to nearest from the weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from redraft.kernels.packed import LARGEST_E4M3


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight [...,N,K] in FP8: values e4m3 [...,N,K], scale fp32 [...,N,1]."""

    values: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    def to(self, device: torch.device) -> Self:
        return type(self)(self.values.to(device), self.scale.to(device))

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        return (self.values.float() * self.scale).to(dtype)


def quantize_fp8(weight: Tensor) -> Fp8Weight:
    """Round each row of a weight [...,N,K] to the nearest multiples of its largest magnitude over 448."""
    rows = weight.float()
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST_E4M3
    return Fp8Weight((rows / scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn), scale)
