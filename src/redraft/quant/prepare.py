"""Rearranges weights from the natural order in which they are stored to the order in which the kernels read them.

bf16 and FP8 keep their order. INT4 is rearranged into the tiles that a kernel streams, with codes that become e4m3
numbers by moving bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.errors import SettingError
from redraft.kernels.packed import INT4_UNIT, PANEL, Packed, PackedFp8, PackedInt4, PanelInt4
from redraft.quant.int4 import Int4Weight, nibbles

Stored = Tensor | PackedFp8 | Int4Weight


def prepare(weight: Stored) -> Packed:
    """A stored weight [...,N,K] as the kernels read it; bf16 and FP8 share memory with the argument."""
    if isinstance(weight, Int4Weight):
        return _prepare_int4(weight)
    if isinstance(weight, PackedFp8):
        return PackedFp8(weight.values.contiguous(), weight.scale.contiguous())
    return weight.contiguous()


def in_panels(weight: Int4Weight) -> PanelInt4:
    """A stored weight [...,N,K] as a CPU reads it; N must be a multiple of 32."""
    first, second = weight.packed.unflatten(-2, (-1, 2, PANEL // 2)).unbind(-3)  # [...,N/32,16,K/2]
    codes = first.new_empty(*first.shape[:-2], first.shape[-1], 2, PANEL // 2)  # [...,N/32,K/2,2,16]
    codes[..., 0, :] = (first & 0xF | second << 4).mT
    codes[..., 1, :] = (first >> 4 | second & 0xF0).mT
    scale = weight.scale.unflatten(-2, (-1, PANEL)).mT.to(torch.bfloat16)  # [...,N/32,K/group,32]
    return PanelInt4(codes.flatten(-3, -2), scale.contiguous(), weight.group)


def takes_int4_group(group: int) -> bool:
    """Whether the GPU kernels can read groups of so many inputs: 32 and multiples of 64."""
    return group == 32 or group % 64 == 0


def _prepare_int4(weight: Int4Weight) -> PackedInt4:
    """Pair inputs 32 apart in a byte, so that a block of 64 inputs is two halves that a product takes in turn.

    A group of 128 inputs becomes two of 64 with the same scale, and so on. Raises `SettingError` for other groups.
    """
    if not takes_int4_group(weight.group):
        raise SettingError(f"int4 group is {weight.group}; the kernels take 32 and multiples of 64.")
    weight = weight.in_groups_of(min(weight.group, 64))
    codes = nibbles(weight.packed)  # [...,N,K], value + 8
    codes = torch.where(codes >= 8, codes - 8, 15 - codes)  # sign in bit 3, then v or -v - 1
    low, high = codes.unflatten(-1, (-1, 2, 32)).unbind(-2)  # [...,N,K/64,32]
    packed = (low | high << 4).movedim(-2, -3).contiguous()  # [...,K/64,N,32]
    return PackedInt4(packed, _paired(weight.scale.to(torch.bfloat16) / INT4_UNIT), weight.group)


def _paired(scale: Tensor) -> Tensor:
    """Scales [...,N,K/group] of neighbouring groups side by side, bf16 [...,P,N,2]; a missing second one is 0."""
    scale = F.pad(scale, (0, scale.shape[-1] % 2)).unflatten(-1, (-1, 2))  # [...,N,P,2]
    return scale.movedim(-3, -2).contiguous()
