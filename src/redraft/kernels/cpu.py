"""The same operations shaped for CPUs: few, large matrix products and no copies of key/value heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """`eager.attention` with the query heads of one key/value head packed into rows of one product."""
    batch, heads, count, dim = q.shape
    groups = k.shape[1]
    packed = q.reshape(batch, groups, heads // groups * count, dim)  # [B,G,N/G*T,H]
    scores = packed @ k.transpose(-1, -2)  # [B,G,N/G*T,S]
    if mask is not None:
        seen = mask.expand(batch, heads // groups, count, k.shape[2]).reshape(batch, 1, -1, k.shape[2])
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    out = (weights @ v).reshape(batch, heads, count, dim)
    return out.transpose(1, 2).reshape(batch, count, -1)


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`eager.experts` over tokens sorted by expert, so that each expert reads and writes one contiguous slice."""
    top_k = index.shape[1]
    order = index.flatten().argsort(stable=True)  # [T*K]
    counts = index.flatten().bincount(minlength=gate_up.shape[0]).tolist()
    rows = x[order // top_k]  # [T*K,D]
    hidden = rows.new_empty(len(order), gate_up.shape[1])  # [T*K,2I]
    for expert, part in enumerate(hidden.split(counts)):
        if part.shape[0]:
            start = part.storage_offset() // hidden.shape[1]
            torch.mm(rows[start : start + part.shape[0]], gate_up[expert].t(), out=part)
    gate, up = hidden.chunk(2, -1)
    act = F.gelu(gate, approximate="tanh") * up  # [T*K,I]
    out = torch.empty_like(rows)
    for expert, (part, source) in enumerate(zip(out.split(counts), act.split(counts), strict=True)):
        if part.shape[0]:
            torch.mm(source, down[expert].t(), out=part)
    out.mul_(weight.flatten()[order, None])
    unsorted = torch.empty_like(out)
    unsorted[order] = out
    return unsorted.view(x.shape[0], top_k, -1).sum(1)
