"""Routing and experts as training needs them: differentiable, without host syncs, and with a balancing loss.

The sums over rows that index arithmetic would turn into atomic additions in the backward pass are gathers here, because
the order of the rows is known in both directions. Shapes: T tokens, D width, E experts, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels import eager
from redraft.model.moe import Experts, Router
from redraft.train.lora import LoraExperts


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


def balance_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """E * sum_e (share of choices) * (mean probability): 1 when tokens spread evenly, E when one expert takes all."""
    share = chosen.float().mean(0) / chosen.float().sum(-1).mean()
    return probabilities.shape[1] * (share * probabilities.mean(0)).sum()


Product = Callable[[Tensor, Tensor], Tensor]
"""(rows sorted by expert [R,I], weights [E,O,I]) -> [R,O]."""


def routed_experts(experts: Experts | LoraExperts, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Sum over each token's chosen experts, [T,D]; grouped products for bf16 on CUDA, else the eager definition."""
    if x.device.type == "cuda" and x.dtype == torch.bfloat16:
        return grouped_experts(x, index, weight, experts)
    return (
        experts(x, index, weight)
        if isinstance(experts, LoraExperts)
        else eager.experts(x, index, weight, experts.gate_up_proj, experts.down_proj)
    )


def grouped_experts(x: Tensor, index: Tensor, weight: Tensor, experts: Experts | LoraExperts) -> Tensor:
    """`eager.experts` as grouped products over rows sorted by expert."""
    order, inverse, ends = sort_by_expert(index, experts.gate_up_proj.shape[0])

    def product(rows: Tensor, weights: Tensor) -> Tensor:
        # Differentiable since torch 2.8, with a public name since 2.10.
        return torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)  # type: ignore[attr-defined]

    y = _through_experts(_Dispatch.apply(x, order, inverse), experts, product)  # [T*K,D]
    return _Combine.apply(y, weight, order, inverse)  # type: ignore[no-any-return]


def _through_experts(rows: Tensor, experts: Experts | LoraExperts, product: Product) -> Tensor:
    """Rows sorted by expert [R,D], each through its expert; the factors of adapted ones are products of their own."""
    inner = product(rows, experts.gate_up_proj)
    if isinstance(experts, LoraExperts):
        inner = inner + product(product(rows, experts.gate_up_a), experts.gate_up_b) * experts.scale
    gate, up = inner.chunk(2, -1)
    inner = F.gelu(gate, approximate="tanh") * up
    out = product(inner, experts.down_proj)
    if isinstance(experts, LoraExperts):
        out = out + product(product(inner, experts.down_a), experts.down_b) * experts.scale
    return out


def sort_by_expert(index: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of choices [T,K]: row -> choice [T*K], choice -> row [T,K], and each expert's exclusive end row, int32 [E]."""
    flat = index.flatten()
    # One byte per key makes the radix sort a single pass.
    keys = flat.to(torch.uint8 if count <= 256 else torch.int32)
    order = keys.sort(stable=True).indices
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    marks = flat[:, None] == torch.arange(count, device=flat.device)
    return order, inverse.view_as(index), marks.sum(0, dtype=torch.int32).cumsum(0, dtype=torch.int32)


class _Dispatch(torch.autograd.Function):
    """x [T,D] -> one row per choice, sorted by expert [T*K,D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x[order // inverse.shape[1]]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse].sum(1), None, None


class _Combine(torch.autograd.Function):
    """Rows y [T*K,D] and weights fp32 [T,K] -> weighted sum per token [T,D]."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(y, weight, order, inverse)
        return (y[inverse] * weight[..., None]).sum(1).to(y.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        y, weight, order, inverse = ctx.saved_tensors
        d_y = gradient[order // inverse.shape[1]] * weight.flatten()[order, None]
        d_weight = (y[inverse].to(weight.dtype) * gradient[:, None]).sum(-1)
        return d_y.to(y.dtype), d_weight, None, None
