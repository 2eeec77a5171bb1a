"""The same operations on CUDA with PyTorch's own fused kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels import eager
from redraft.kernels.packed import ExpertWeight


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`eager.rms_norm` in one kernel, which needs both in the same dtype; differentiable."""
    if weight is not None and weight.dtype != x.dtype:
        return eager.rms_norm(x, weight, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norms(x: Tensor, weights: Sequence[Tensor | None], eps: float) -> list[Tensor]:
    """`rms_norm` of the same rows with several weights."""
    return [rms_norm(x, weight, eps) for weight in weights]


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x + rms_norm(y), [...,D]."""
    return x + rms_norm(y, weight, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """`eager.attention` through scaled_dot_product_attention, which keeps the scores out of device memory."""
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(2)  # [B,T,N*H]


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: ExpertWeight, down: ExpertWeight) -> Tensor:
    """`eager.experts` as two grouped products over tokens sorted by expert; differentiable, no host sync.

    On a GPU these need bf16; anything else is left to `eager`, as are weights in INT4.
    """
    if not isinstance(gate_up, Tensor) or not isinstance(down, Tensor) or (x.is_cuda and x.dtype != torch.bfloat16):
        return eager.experts(x, index, weight, gate_up, down)
    top_k = index.shape[1]
    order = index.flatten().argsort(stable=True)  # [T*K]
    ends = _expert_ends(index, gate_up.shape[0])
    rows = x[order // top_k]  # [T*K,D]
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    y = F.grouped_mm(F.gelu(gate, approximate="tanh") * up, down.transpose(1, 2), offs=ends)
    y = y * weight.flatten()[order, None].to(y.dtype)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return y[inverse].view(x.shape[0], top_k, -1).sum(1)


def _expert_ends(index: Tensor, count: int) -> Tensor:
    """Exclusive end row of each expert's slice, int32 [E], computed on the device."""
    chosen = torch.zeros(count, dtype=torch.int32, device=index.device)
    chosen.scatter_add_(0, index.flatten(), torch.ones_like(index.flatten(), dtype=torch.int32))
    return chosen.cumsum(0, dtype=torch.int32)
