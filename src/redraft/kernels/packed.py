"""Weights and activations as the kernels read them: plain tensors with a name for each layout.

Shapes: E experts, N outputs, K inputs, T rows. `...` is [E] for experts and nothing for a dense weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

LARGEST_E4M3 = 448.0
"""The largest e4m3 value."""

INT4_UNIT = 2.0**-9
"""The value of a code of 1 in the kernels: four-bit codes become e4m3 numbers by moving bits, with this scale."""


@dataclass(frozen=True, slots=True)
class Rows8:
    """Activations in FP8: values e4m3 [T,D], scale fp32 [T,1]."""

    values: Tensor
    scale: Tensor

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[T,D]; products in fp32, rounded once."""
        return (self.values.float() * self.scale).to(dtype)


Rows = Tensor | Rows8
"""What enters a product [R,K]: in the working dtype, or rounded to FP8 with a scale per row."""


@dataclass(frozen=True, slots=True)
class PackedFp8:
    """A weight in FP8: values e4m3 [...,N,K], scale fp32 [...,N]. Files hold it in the same order."""

    values: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[...,N,K]"""
        return tuple(self.values.shape)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    def __getitem__(self, expert: int) -> Self:
        return type(self)(self.values[expert], self.scale[expert])

    def rows(self, index: Tensor) -> Self:
        """Rows of a weight [N,K] by index [...]; gathered as bytes, as not every device can index FP8."""
        values = self.values.view(torch.uint8)[index].view(self.values.dtype)
        return type(self)(values, self.scale[index])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        return (self.values.float() * self.scale[..., None]).to(dtype)


@dataclass(frozen=True, slots=True)
class _Int4:
    """What all INT4 layouts have in common: codes, their scales, and the number of inputs that share a scale."""

    codes: Tensor
    scale: Tensor
    group: int

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes

    def __getitem__(self, expert: int) -> Self:
        return type(self)(self.codes[expert], self.scale[expert], self.group)


class PackedInt4(_Int4):
    """A weight in INT4, in tiles in the order in which a kernel streams them.

    codes   uint8 [...,K/64,N,32]   byte j of block b holds input 64b + j low and input 64b + 32 + j high
    scale   bf16  [...,P,N,2]       of groups 2p and 2p + 1, over `INT4_UNIT`; 0 for a missing second group
    group   inputs that share a scale, 32 or 64

    A code has the sign in bit 3; the bits below hold v for a value v >= 0 and -v - 1 for a value v < 0.
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """[...,N,K]"""
        *lead, blocks, count, _ = self.codes.shape
        return (*lead, count, 64 * blocks)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        codes = torch.stack((self.codes & 0xF, self.codes >> 4), -2)  # [...,K/64,N,2,32]
        low = (codes & 7).float()
        values = torch.where(codes >= 8, -low - 1, low).movedim(-4, -3).flatten(-3)  # [...,N,K]
        grouped = values.unflatten(-1, (-1, self.group))  # [...,N,K/group,group]
        scale = (
            (self.scale.float() * INT4_UNIT).movedim(-3, -2).flatten(-2)[..., : grouped.shape[-2]]
        )  # [...,N,K/group]
        return (grouped * scale[..., None]).flatten(-2).to(dtype)


PANEL = 32
"""Outputs whose codes are stored together in `PanelInt4`."""


class PanelInt4(_Int4):
    """Experts' weights in INT4, in panels of 32 outputs with the inputs outermost, as the CPU product takes them.

    codes   uint8 [...,N/32,K,16]       byte j of a line holds output j of the panel low and 16 + j high, as value + 8
    scale   bf16  [...,N/32,K/group,32]
    group   inputs that share a scale
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """[...,N,K]"""
        *lead, panels, inputs, _ = self.codes.shape
        return (*lead, PANEL * panels, inputs)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [...,N,K]; products in fp32, rounded once."""
        codes = torch.cat((self.codes & 0xF, self.codes >> 4), -1)  # [...,N/32,K,32]
        grouped = (codes.float() - 8).unflatten(-2, (-1, self.group))  # [...,N/32,K/group,group,32]
        return (grouped * self.scale.float()[..., None, :]).flatten(-3, -2).mT.flatten(-3, -2).to(dtype)


Matrix = Tensor | PackedFp8
"""A dense weight [N,K], or the table of token embeddings [V,D]."""

Packed = Tensor | PackedFp8 | PackedInt4
"""A weight as the kernels read it; bf16 (or fp32 on a CPU) weights stay plain tensors [...,N,K]."""

ExpertWeight = Tensor | PanelInt4
"""One of a layer's two expert weights [E,N,K], as a model on a CPU keeps it."""


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """The experts of one layer: gate_up [E,2I,D] (gate rows first) and down [E,D,I], both in the same format."""

    gate_up: Packed
    down: Packed

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes


def values_and_scale(x: Tensor | Rows8 | PackedFp8) -> tuple[Tensor, Tensor | None]:
    """The values and scale of rows or a weight; plain ones have no scale."""
    return (x, None) if isinstance(x, Tensor) else (x.values, x.scale)


def rows_of(table: Matrix, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table [V,D] by index [...], as plain numbers [...,D]."""
    return table[index].to(dtype) if isinstance(table, Tensor) else table.rows(index).dequantize(dtype)


def dequantized(weight: Packed | PanelInt4, dtype: torch.dtype) -> Tensor:
    """A weight in any format as plain numbers [...,N,K]."""
    return weight.to(dtype) if isinstance(weight, Tensor) else weight.dequantize(dtype)
