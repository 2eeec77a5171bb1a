"""INT4: whole numbers from -8 to 7 in groups of inputs that share a scale, rounded from the weights alone.

UINT4, which is read and not written, has a zero point for each group besides: no kernel multiplies it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.errors import SettingError

INT4_GROUP = 64
"""Inputs that share a scale, unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class _FourBits:
    """What weights [...,N,K] in INT4 and UINT4 have in common.

    packed  uint8 [...,N,K/2]       two inputs a byte, the even one in the low nibble
    scale   bf16, fp16 or fp32 [...,N,K/group]
    """

    packed: Tensor
    scale: Tensor
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        """[...,N,K]"""
        return (*self.packed.shape[:-1], 2 * self.packed.shape[-1])

    def _dequantize(self, zero: Tensor | int, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K], in which codes of `zero` are 0; products in fp32, rounded once."""
        grouped = nibbles(self.packed).float().unflatten(-1, (-1, self.group))  # [...,N,K/group,group]
        return ((grouped - zero) * self.scale.float()[..., None]).flatten(-2).to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Weight(_FourBits):
    """A weight [...,N,K] in INT4; a code is the value plus 8."""

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        return self._dequantize(8, dtype)

    def in_groups_of(self, group: int) -> Int4Weight:
        """The same numbers in smaller groups, several of which have one scale; `group` must divide its own."""
        return Int4Weight(self.packed, self.scale.repeat_interleave(self.group // group, -1), group)


@dataclass(frozen=True, slots=True)
class Uint4Weight(_FourBits):
    """A weight [...,N,K] in UINT4; a code is the value plus the zero point of its group.

    zero    uint8 [...,N,K/group]   from 0 to 15
    """

    zero: Tensor

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes + self.zero.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        return self._dequantize(self.zero.float()[..., None], dtype)


def nibbles(packed: Tensor) -> Tensor:
    """The halves of bytes [...,n], the low one first: uint8 [...,2n]."""
    return torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2)


def check_group(inputs: int, group: int) -> None:
    """Raise `SettingError` if `quantize_int4` would refuse a weight with this many inputs."""
    if group < 1 or inputs % group:
        raise SettingError(f"group is {group}; it must divide the {inputs} inputs of the weight.")
    if inputs % 8:
        raise SettingError(f"The weight has {inputs} inputs; int4 needs a multiple of 8.")


def quantize_int4(weight: Tensor, group: int = INT4_GROUP) -> Int4Weight:
    """Round each group of inputs of a weight [...,N,K] to multiples of its largest magnitude over 7.5, scale in bf16.

    Raises `SettingError` if the group does not divide K, or K is not a multiple of 8, the codes in a word.
    """
    check_group(weight.shape[-1], group)
    grouped = weight.float().unflatten(-1, (-1, group))  # [...,N,K/group,group]
    scale = (grouped.abs().amax(-1).clamp(min=1e-12) / 7.5).to(torch.bfloat16)
    codes = ((grouped / scale.float()[..., None]).round().clamp(-8, 7) + 8).flatten(-2).to(torch.uint8)
    return Int4Weight(codes[..., 0::2] | codes[..., 1::2] << 4, scale, group)
