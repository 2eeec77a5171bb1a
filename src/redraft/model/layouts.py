"""How a matrix is stored in a model folder: plain or quantized, with which companion tensors, in which shapes.

    stored as         tensors of one matrix [N,K]                                           written by
    plain             weight [N,K]
    fp8               weight e4m3 [N,K], weight_scale [N,1]                                 compressed-tensors
    int4              weight_packed i32 [N,K/8], weight_scale [N,K/group]                   compressed-tensors
    uint4             the same with weight_zero_point i32 [N/8,K/group]                     compressed-tensors
    nvfp4             weight_packed u8 [N,K/2], weight_scale e4m3 [N,K/16],
                      weight_global_scale, which divides                                    compressed-tensors
    nvfp4             weight u8 [N,K/2], weight_scale e4m3 [N,K/16],
                      weight_scale_2, which multiplies                                      modelopt

The files' headers show which one is used, tensor by tensor, so mixed folders need no special rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from redraft.kernels.packed import PackedFp8, PackedInt4
from redraft.model.files import DTYPES, HeaderEntry
from redraft.quant.int4 import Int4Weight, Uint4Weight, nibbles
from redraft.quant.nvfp4 import GROUP, Nvfp4Weight

Weight = Tensor | PackedFp8 | Int4Weight | Uint4Weight | Nvfp4Weight
"""A matrix [...,N,K] in full or in one of the number formats of `redraft.quant`."""

Source = Callable[[str], Weight]
"""One of the model's weights by our name (`Transformer.state_dict`), on any device, in any format."""

W = TypeVar("W", bound=Weight | PackedInt4)

EXPERTS_AT_A_TIME = 16

PLAIN_DTYPES = {name: DTYPES[name] for name in ("F32", "BF16", "F16")}
IGNORED = (".weight_shape", ".input_scale", ".input_global_scale", ".k_scale", ".v_scale", ".output_scale")
"""Companions that are not needed here: activations are quantized by their own values, and the cache is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One way to store a matrix: its tensors' suffixes, allowed dtypes and shapes, and how they make a weight.

    A matrix is stored so if the first of the tensors is there with its dtype. Shapes are for [N,K] and a number of
    scales per row, if that can vary; None stands for one number in any shape.
    """

    name: str
    suffixes: tuple[str, ...]
    dtypes: tuple[tuple[str, ...], ...]
    shapes: Callable[[int, int, int], tuple[tuple[int, ...] | None, ...]]
    read: Callable[..., Weight]


def _int4(packed: Tensor, scale: Tensor) -> Int4Weight:
    return Int4Weight(_pairs(packed), scale, 8 * packed.shape[-1] // scale.shape[-1])


def _uint4(zero: Tensor, packed: Tensor, scale: Tensor) -> Uint4Weight:
    """A word holds the zero points of 8 outputs."""
    zeros = nibbles(_pairs(zero).unflatten(-1, (-1, 4))).movedim(-1, -2)  # [N/8,8,K/group]
    zeros = zeros.flatten(0, 1)[: len(scale)].contiguous()
    return Uint4Weight(_pairs(packed), scale, 8 * packed.shape[-1] // scale.shape[-1], zeros)


def _pairs(words: Tensor) -> Tensor:
    """The 8 codes of a word [...,n] start at its low bits, so its bytes [...,4n] already are pairs of codes."""
    return words.contiguous().view(torch.uint8)


def _nvfp4(codes: Tensor, scale: Tensor, factor: Tensor) -> Nvfp4Weight:
    return Nvfp4Weight(codes, scale, factor.float().reshape(1, 1).expand(len(codes), 1))


_PLAIN = tuple(PLAIN_DTYPES)
LAYOUTS = (
    Layout(
        name="uint4",
        suffixes=(".weight_zero_point", ".weight_packed", ".weight_scale"),
        dtypes=(("I32",), ("I32",), _PLAIN),
        shapes=lambda n, k, scales: ((-(-n // 8), scales), (n, k // 8), (n, scales)),
        read=_uint4,
    ),
    Layout(
        name="int4",
        suffixes=(".weight_packed", ".weight_scale"),
        dtypes=(("I32",), _PLAIN),
        shapes=lambda n, k, scales: ((n, k // 8), (n, scales)),
        read=_int4,
    ),
    Layout(
        name="nvfp4",
        suffixes=(".weight_packed", ".weight_scale", ".weight_global_scale"),
        dtypes=(("U8",), ("F8_E4M3",), _PLAIN),
        shapes=lambda n, k, _: ((n, k // 2), (n, k // GROUP), None),
        read=lambda codes, scale, divisor: _nvfp4(codes, scale, 1 / divisor.float()),
    ),
    Layout(
        name="nvfp4",
        suffixes=(".weight", ".weight_scale", ".weight_scale_2"),
        dtypes=(("U8",), ("F8_E4M3",), _PLAIN),
        shapes=lambda n, k, _: ((n, k // 2), (n, k // GROUP), None),
        read=_nvfp4,
    ),
    Layout(
        name="fp8",
        suffixes=(".weight", ".weight_scale"),
        dtypes=(("F8_E4M3",), _PLAIN),
        shapes=lambda n, k, _: ((n, k), (n, 1)),
        read=lambda values, scale: PackedFp8(values, scale.float().squeeze(-1)),
    ),
)


def layout_of(base: str, stored: Mapping[str, HeaderEntry]) -> Layout | None:
    """How the matrix `base` (a name without ".weight") is stored; None if it is plain or absent."""
    for layout in LAYOUTS:
        first = stored.get(base + layout.suffixes[0])
        if first is not None and first.dtype in layout.dtypes[0]:
            return layout
    return None


def join(weights: Sequence[W], how: Callable[..., Tensor]) -> W:
    """Stack (`torch.stack`) or concatenate (`torch.cat`, along the first dimension) weights of one format."""
    return _mapped(how, *weights)


def each_tensor(weight: W, change: Callable[[Tensor], Tensor]) -> W:
    """A weight with its tensors changed one by one."""
    return _mapped(lambda tensors: change(tensors[0]), weight)


def leading(weight: W, part: slice) -> W:
    """Part of a weight's first dimension: some experts, or some outputs of a matrix. Shares memory."""
    return each_tensor(weight, lambda tensor: tensor[part])


def by_parts(weight: Weight, change: Callable[[Weight], Weight]) -> Weight:
    """Experts [E,...] changed a few at a time, so that `change` needs memory only for these."""
    return join([change(part) for part in chunks(weight)], torch.cat)


def chunks(weight: Weight, size: int = EXPERTS_AT_A_TIME) -> Iterator[Weight]:
    """Experts [E,...] of any format, `size` at a time."""
    for first in range(0, weight.shape[0], size):
        yield leading(weight, slice(first, first + size))


def _mapped(change: Callable[[list[Tensor]], Tensor], *weights: W) -> W:
    """A weight whose tensors `change` makes, each from the tensors of the same name in the given weights."""
    first = weights[0]
    if isinstance(first, Tensor):
        return change([*weights])  # type: ignore[return-value, arg-type]
    names = [field.name for field in dataclasses.fields(first) if isinstance(getattr(first, field.name), Tensor)]
    return dataclasses.replace(first, **{name: change([getattr(w, name) for w in weights]) for name in names})
