"""Routing and experts for training: differentiable, without host syncs on a GPU, and with a balancing loss.

Sums over rows that index arithmetic would turn into atomic additions in the backward pass are gathers here, because the
order of the rows is known in both directions. Shapes: T tokens, D width, E experts, K experts per token, I expert
width, R = T*K rows sorted by expert.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from redraft.kernels import eager
from redraft.model.moe import Router
from redraft.train.frozen import Frozen, Weights, dense
from redraft.train.rows import gate_gradients, sum_rows, take_rows


def choose(router: Router, probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Like `Router.choose`, as plain reductions: chosen experts int64 [T,K], weights fp32 [T,K], chosen mask [T,E]."""
    experts = torch.arange(probabilities.shape[1], device=probabilities.device)
    left, index, weight, scale = probabilities.detach(), [], [], []
    for _ in range(router.top_k):
        best = left.argmax(-1)
        mark = experts == best[:, None]  # [T,E]
        left = left.masked_fill(mark, -1.0)
        index.append(best)
        weight.append((probabilities * mark).sum(-1))
        scale.append((router.per_expert_scale.float() * mark).sum(-1))
    picked = torch.stack(weight, -1)
    picked = picked / picked.sum(-1, keepdim=True) * torch.stack(scale, -1)
    return torch.stack(index, -1), picked, left < 0


def balance_loss(probabilities: Tensor, chosen: Tensor, used: Tensor) -> Tensor:
    """E * sum_e (share of choices) * (mean probability): 1 when tokens spread evenly, E when one expert takes all.

    Only tokens that are `used`, bool [T], count; if there are none the loss is 0.
    """
    weight = used.float()[:, None] / used.float().sum().clamp(min=1.0)  # [T,1]
    share = (weight * chosen).sum(0) / chosen.float().sum(-1).mean()
    return probabilities.shape[1] * (share * (weight * probabilities).sum(0)).sum()


class LowRank(NamedTuple):
    """Trainable changes of all experts: factors [E,r,D] and [E,2I,r] of gate and up, [E,r,I] and [E,D,r] of down."""

    gate_up_a: Tensor
    gate_up_b: Tensor
    down_a: Tensor
    down_b: Tensor
    scale: float


def routed_experts(
    x: Tensor, index: Tensor, weight: Tensor, gate_up: Weights, down: Weights, change: LowRank | None = None
) -> Tensor:
    """What `eager.experts` defines, [T,D], as products over rows sorted by expert, plus each expert's `change`.

    x [T,D], chosen experts `index` and their `weight` [T,K], gate_up [E,2I,D] (gate rows first), down [E,D,I].
    """
    sorting = sort_by_expert(index, gate_up.shape[0])
    ends = sorting.ends
    if change is None and not any(isinstance(w, Tensor) and w.requires_grad for w in (gate_up, down)):
        return _FrozenExperts.apply(x, weight, *sorting, gate_up, down)
    rows = _Dispatch.apply(x, sorting.token, sorting.inverse)  # [R,D]
    inner = product(rows, gate_up, ends)
    if change is not None:
        inner = inner + product(product(rows, change.gate_up_a, ends), change.gate_up_b, ends) * change.scale
    hidden = eager.gelu_gate(*inner.chunk(2, -1))
    out = product(hidden, down, ends)
    if change is not None:
        out = out + product(product(hidden, change.down_a, ends), change.down_b, ends) * change.scale
    return _Combine.apply(out, weight, sorting.order, sorting.token, sorting.inverse)


class FrozenExperts(nn.Module):
    """The weights of all experts as two quantized tensors."""

    def __init__(self, gate_up: Frozen, down: Frozen) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = gate_up, down

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return routed_experts(x, index, weight, self.gate_up_proj, self.down_proj)


def product(rows: Tensor, weights: Weights, ends: Tensor) -> Tensor:
    """Sorted rows [R,in] times their experts' weights [E,out,in], transposed: [R,out]."""
    if isinstance(weights, Frozen):
        return _FrozenProduct.apply(rows, weights, ends)
    return _grouped(rows, weights.mT, ends)


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Sorted rows [R,in] times [E,in,out]: one grouped product in bf16 on a GPU, else one product per busy expert."""
    if rows.device.type == "cuda" and rows.dtype == torch.bfloat16:
        # Differentiable since torch 2.8, with a public name since 2.10.
        return torch._grouped_mm(rows, weights, offs=ends)  # type: ignore[attr-defined]
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    # Unbound, not indexed, so the backward pass writes each expert's gradient once.
    pairs = zip(rows.split(counts), weights.unbind(0), strict=True)
    return torch.cat([part @ matrix for part, matrix in pairs if len(part)])


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Frozen, ends: Tensor) -> Tensor:
        ctx.weights = weights
        ctx.save_for_backward(ends)
        return _grouped(rows, weights.dense(rows.dtype).mT, ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (ends,) = ctx.saved_tensors
        return _grouped(gradients[0], ctx.weights.dense(gradients[0].dtype), ends), None, None


class _FrozenExperts(torch.autograd.Function):
    """All of `routed_experts` when no expert weight is trained.

    Then the backward pass only needs the gates' inputs [R,2I]: no row's own input or output is kept. The gradient of a
    token's expert weight, <output, g>, is computed as <hidden, g W_down>, which the backward pass needs anyway.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, order: Tensor, token: Tensor, inverse: Tensor, ends: Tensor,
        gate_up: Weights, down: Weights,
    ) -> Tensor:  # fmt: skip
        inner = _grouped(_taken(x, token, inverse), dense(gate_up, x.dtype).mT, ends)  # [R,2I]
        out = _grouped(eager.gelu_gate(*inner.chunk(2, -1)), dense(down, x.dtype).mT, ends)  # [R,D]
        ctx.gate_up, ctx.down = gate_up, down
        ctx.save_for_backward(inner, weight, order, token, inverse, ends)
        return _summed(out, inverse, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inner, weight, order, token, inverse, ends = ctx.saved_tensors
        rows = _taken(gradients[0], token, inverse)  # [R,D]
        d_hidden = _grouped(rows, dense(ctx.down, rows.dtype), ends)  # [R,I], before the expert's weight
        d_inner, d_weight = gate_gradients(inner, d_hidden, weight.flatten()[order])
        d_rows = _grouped(d_inner, dense(ctx.gate_up, rows.dtype), ends)
        return _summed(d_rows, inverse), d_weight[inverse], *(None,) * 6


class Sorting(NamedTuple):
    """Choices in the order of their experts: the choice and token of each row, and the row of each choice."""

    order: Tensor
    """Row -> choice [R]."""
    token: Tensor
    """Row -> token [R]."""
    inverse: Tensor
    """Choice -> row [T,K]."""
    ends: Tensor
    """Each expert's exclusive end row, int32 [E]."""


def sort_by_expert(index: Tensor, count: int) -> Sorting:
    """Sort the choices [T,K] of `count` experts."""
    flat = index.flatten()
    # One byte per key makes the radix sort a single pass.
    keys = flat.to(torch.uint8 if count <= 256 else torch.int32)
    order = keys.sort(stable=True).indices
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    # Scattered, not order // K: a compiler would recompute that quotient for every number of a row.
    numbers = torch.arange(len(index), device=order.device)[:, None].expand_as(index).flatten()
    token = torch.empty_like(order).scatter_(0, inverse, numbers)
    marks = flat[:, None] == torch.arange(count, device=flat.device)
    ends = marks.sum(0, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return Sorting(order, token, inverse.view_as(index), ends)


FUSED = 2
"""Up to this many rows per token are gathered by indexing, which a compiler fuses with the norms around it. It then
reads them once per use, so separate kernels are better at moving more of them."""


def _taken(x: Tensor, token: Tensor, inverse: Tensor) -> Tensor:
    """The tokens x [T,D] as rows [R,D]."""
    return x[token] if inverse.shape[1] <= FUSED else take_rows(x, token)


def _summed(rows: Tensor, inverse: Tensor, weight: Tensor | None = None) -> Tensor:
    """The sums of each token's rows, weighted by fp32 `weight` [T,K] if given: [T,D]."""
    return (eager.sum_rows if inverse.shape[1] <= FUSED else sum_rows)(rows, inverse, weight)


class _Dispatch(torch.autograd.Function):
    """x [T,D] -> one row per choice, sorted by expert [T*K,D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return _taken(x, token, inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        return _summed(gradients[0], inverse), None, None


class _Combine(torch.autograd.Function):
    """Rows y [T*K,D] and weights fp32 [T,K] -> weighted sum per token [T,D]."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, order: Tensor, token: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(y, weight, order, token, inverse)
        return _summed(y, inverse, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        y, weight, order, token, inverse = ctx.saved_tensors
        d_y = _taken(gradient, token, inverse) * weight.flatten()[order, None]
        d_weight = (y[inverse].to(weight.dtype) * gradient[:, None]).sum(-1)
        return d_y.to(y.dtype), d_weight, None, None, None
