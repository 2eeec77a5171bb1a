"""Plain PyTorch definitions of every operation of `kernels.TABLE` and, last, of those that only training has: correct
on any device and in any dtype, and the reference for faster versions.

Shapes: T tokens (of any number of requests), D width, E experts, K experts per token, I expert width,
N query heads, G key/value heads, H head dim, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels.packed import ExpertWeight, dequantized


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., D] over its root mean square, times `weight` [D] as it is (no +1); fp32 inside, x's dtype outside."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)


def rms_norms(x: Tensor, weights: Sequence[Tensor | None], eps: float) -> list[Tensor]:
    """`rms_norm` of the same rows with several weights."""
    return [rms_norm(x, weight, eps) for weight in weights]


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x + rms_norm(y), [...,D]."""
    return x + rms_norm(y, weight, eps)


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up, with the tanh form of gelu."""
    return F.gelu(gate, approximate="tanh") * up


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [...,I] times a weight [O,I]: [...,O]."""
    return F.linear(x, weight)


def head(hidden: Tensor, weight: Tensor, cap: float, temperature: float) -> Tensor:
    """hidden [...,D] times the tied embedding [V,D], soft-capped to +-cap and over temperature, in fp32: [...,V]."""
    return (F.linear(hidden, weight).float() / cap).tanh() * cap / temperature


def distribution(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax of fp32 logits [R,V], the first of each row's most likely tokens [R], and its entropy [R] in nats.

    May overwrite the logits.
    """
    logs = logits.log_softmax(-1)
    probabilities = logs.exp()
    return probabilities, logits.argmax(-1), -(probabilities * logs).sum(-1)


def soft_probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """The softmax [...,V] of logits rounded to `dtype`: computed in fp32, then rounded to `dtype`."""
    return logits.to(dtype).softmax(-1, dtype=torch.float32).to(dtype)


def expectation(probabilities: Tensor, weight: Tensor) -> Tensor:
    """Rows of the embedding [V,D] weighted by probabilities [...,V] and summed: [...,D]."""
    return probabilities @ weight


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Grouped-query attention with scale 1: q [B,N,T,H], k and v [B,G,S,H], mask [B|1,1,T,S] True where seen.

    Returns [B,T,N*H]. Scores in the inputs' dtype, softmax in fp32.
    """
    batch, heads, count, _ = q.shape
    repeat = heads // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)  # [B,N,S,H]
    scores = q @ k.transpose(-1, -2)  # [B,N,T,S]
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return (weights @ v).transpose(1, 2).reshape(batch, count, -1)


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: ExpertWeight, down: ExpertWeight) -> Tensor:
    """The weighted sum of each token's chosen experts, [T,D].

    x [T,D], chosen experts `index` and their `weight` [T,K], gate_up [E,2I,D] (gate rows first), down [E,D,I], both
    plain or in INT4.
    """
    out = torch.zeros_like(x)
    for expert in range(gate_up.shape[0]):
        token, rank = torch.where(index == expert)
        if token.numel() == 0:
            continue
        gate, up = F.linear(x[token], dequantized(gate_up[expert], x.dtype)).chunk(2, -1)
        y = F.linear(gelu_gate(gate, up), dequantized(down[expert], x.dtype))
        out.index_add_(0, token, (y * weight[token, rank, None]).to(out.dtype))
    return out


def sum_rows(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    """rows [R,D], each token's places among them [T,K], fp32 weights [T,K] or none -> weighted sums [T,D].

    Rows are added one by one in fp32 (fp64 for fp64), and the sum is rounded once.
    """
    total = torch.zeros((), dtype=torch.promote_types(rows.dtype, torch.float32), device=rows.device)
    for rank in range(place.shape[1]):
        line = rows[place[:, rank]].to(total.dtype)
        total = total + (line if weight is None else line * weight[:, rank, None])
    return total.to(rows.dtype)


def gate_gradients(inner: Tensor, d_hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The backward pass of rows' gates: `inner` [R,2I] (gate, up), `d_hidden` [R,I] before the rows' fp32 `weight` [R].

    Returns the gradients of `inner` and, in fp32, of every row's weight; all in fp32 (fp64 for fp64), rounded once.
    """
    exact = torch.promote_types(inner.dtype, torch.float32)
    gate, up = inner.to(exact).chunk(2, -1)
    gradient = d_hidden.to(exact)
    activated = F.gelu(gate, approximate="tanh")
    d_weight = (activated * up * gradient).sum(-1)
    gradient = gradient * weight[:, None]
    d_gate = torch.ops.aten.gelu_backward(gradient * up, gate, approximate="tanh")
    return torch.cat((d_gate, gradient * activated), -1).to(inner.dtype), d_weight
