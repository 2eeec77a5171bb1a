"""The product with an adapted weight as one operator in each direction, adding the change in place.

As plain products, their sum would first copy the larger one. Shapes: T tokens, I inputs, O outputs, r rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def adapted_product(rows: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """rows [T,I] times a frozen weight [O,I] and scale B A, a [r,I] and b [O,r], all transposed: [T,O]."""
    return _forward(rows, weight, a, b, scale)[0]


@torch.library.custom_op("redraft::adapted_product", mutates_args=())
def _forward(rows: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The product, and rows A^T [T,r] for the backward pass."""
    low = rows @ a.t()
    return (rows @ weight.t()).addmm_(low, b.t(), alpha=scale), low


@_forward.register_fake
def _(rows: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return rows.new_empty(len(rows), len(weight)), rows.new_empty(len(rows), len(a))


@torch.library.custom_op("redraft::adapted_product_backward", mutates_args=())
def _backward(
    gradient: Tensor, rows: Tensor, low: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of rows, a and b."""
    d_low = (gradient @ b) * scale
    d_rows = (gradient @ weight).addmm_(d_low, a)
    return d_rows, d_low.t() @ rows, (gradient.t() @ low) * scale


@_backward.register_fake
def _(
    gradient: Tensor, rows: Tensor, low: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(rows), torch.empty_like(a), torch.empty_like(b)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    rows, weight, a, b, ctx.scale = inputs
    ctx.save_for_backward(rows, output[1], weight, a, b)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    d_rows, d_a, d_b = _backward(gradient, *ctx.saved_tensors, ctx.scale)
    return d_rows, None, d_a, d_b, None


_forward.register_autograd(_gradients, setup_context=_keep)
