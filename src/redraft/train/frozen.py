"""Weights that are stored quantized and never trained: LoRA over an FP8 or INT4 model.

They are converted to the compute dtype for one product at a time, once forward and again backward; in between only the
quantized form is kept. Shapes: E experts, O outputs, I inputs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft.kernels.packed import PackedFp8
from redraft.model.layouts import chunks
from redraft.quant.int4 import Int4Weight, Uint4Weight
from redraft.quant.nvfp4 import Nvfp4Weight

Quantized = PackedFp8 | Int4Weight | Uint4Weight | Nvfp4Weight


class Frozen(nn.Module):
    """One quantized weight [...,O,I]. Its parts are kept as bytes, so changing the model's dtype does not affect it."""

    def __init__(self, weight: Quantized) -> None:
        super().__init__()
        parts = {field.name: getattr(weight, field.name) for field in dataclasses.fields(weight)}
        self.shape, self._kind = weight.shape, type(weight)
        self._dtypes = {name: part.dtype for name, part in parts.items() if isinstance(part, Tensor)}
        self._rest = {name: part for name, part in parts.items() if name not in self._dtypes}
        for name in self._dtypes:
            self.register_buffer(name, parts[name].contiguous().view(torch.uint8), persistent=False)

    def stored(self) -> Quantized:
        """The weight in its stored form; shares memory."""
        parts = {name: self.get_buffer(name).view(dtype) for name, dtype in self._dtypes.items()}
        return self._kind(**parts, **self._rest)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The full weight; experts are converted a few at a time, so only those exist in fp32."""
        weight = self.stored()
        if len(self.shape) == 2:
            return weight.dequantize(dtype)
        parts = [part.dequantize(dtype) for part in chunks(weight)]  # type: ignore[union-attr]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


Weights = Tensor | Frozen
"""The weight of a product: plain, or frozen in a number format."""


def dense(weight: Weights, dtype: torch.dtype) -> Tensor:
    """The full weight."""
    return weight if isinstance(weight, Tensor) else weight.dense(dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Frozen) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.dense(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0] @ ctx.weight.dense(gradients[0].dtype), None


def linear(x: Tensor, weight: Weights) -> Tensor:
    """x [...,I] times a weight [O,I], transposed: [...,O]."""
    return F.linear(x, weight) if isinstance(weight, Tensor) else _Linear.apply(x, weight)


class FrozenLinear(nn.Module):
    """A linear module with a quantized weight."""

    def __init__(self, weight: Frozen) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)
