"""Attention of the two streams as plain matrix products: clean tokens and a query's own canvas are two parts.

A canvas never sees another one, so no products between different canvases are computed, and nothing is masked within
its own. Query heads of one key/value head are rows of one product, so keys and values are not repeated. The backward
pass keeps queries, keys, values, the result and one number per row, and recomputes the scores.

Shapes: B rows, N query heads in G groups of R, M canvases of C tokens (encoding is one canvas without an `own` part), Q
= M*C queries, T clean tokens, H head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from redraft.train.compiling import compiled_if

CHUNK_ELEMENTS = 1 << 28
"""Scores that exist at a time; with longer rows, fewer are computed at a time."""
Part = tuple[Tensor, Tensor]
"""Keys and values [B,G,*,H]."""


def parted_attention(q: Tensor, clean: Part, own: Part | None, seen: Tensor, canvas: int, *, compiled: bool) -> Tensor:
    """q [B,N,Q,H] over the `clean` tokens that bool `seen` [B,Q,T] shows and its `own` canvas, scale 1 -> [B,Q,N*H].

    `canvas` is C. Without an `own` part every query must see a clean token.
    """
    out = _Parted.apply(canvas, compiled, *_Inputs(q, *clean, *(own or (None, None)), seen))
    return out.transpose(1, 2).flatten(2)


class _Inputs(NamedTuple):
    """q [B,N,Q,H], clean k and v [B,G,T,H], those of the canvases [B,G,Q,H], both or neither, and bool seen [B,Q,T]."""

    q: Tensor
    k: Tensor
    v: Tensor
    own_k: Tensor | None
    own_v: Tensor | None
    seen: Tensor

    def of_rows(self, rows: slice) -> _Inputs:
        """Those of some of the B rows."""
        return _Inputs(*(None if tensor is None else tensor[rows] for tensor in self))  # type: ignore[arg-type]


def _rows(x: Tensor, groups: int, canvas: int) -> Tensor:
    """[B,N,Q,X] -> [B,G,M,R*C,X]: what meets one key/value head in one canvas becomes contiguous."""
    split = x.unflatten(1, (groups, -1)).unflatten(3, (-1, canvas))  # [B,G,R,M,C,X]
    return split.transpose(2, 3).flatten(3, 4)


def _heads(rows: Tensor, canvas: int) -> Tensor:
    """[B,G,M,R*C,X] -> [B,N,Q,X]: the inverse of `_rows`."""
    return rows.unflatten(3, (-1, canvas)).transpose(2, 3).flatten(1, 2).flatten(2, 3)


def _clean_scores(rows: Tensor, k: Tensor, seen: Tensor, canvas: int) -> Tensor:
    """fp32 [B,G,M,R*C,T], -inf where nothing is seen."""
    scores = (rows.flatten(2, 3) @ k.mT).float().unflatten(2, (rows.shape[2], -1, canvas))  # [B,G,M,R,C,T]
    hidden = ~seen.unflatten(1, (-1, canvas))[:, None, :, None]
    return scores.masked_fill(hidden, -torch.inf).flatten(3, 4)


def _own(part: Tensor, canvas: int) -> Tensor:
    """[B,G,Q,H] -> [B,G,M,C,H]."""
    return part.unflatten(2, (-1, canvas))


def _forward(inputs: _Inputs, canvas: int) -> tuple[Tensor, Tensor]:
    """The result [B,N,Q,H] and the logarithms of the rows' sums [B,G,M,R*C,1]."""
    q, k, v, own_k, own_v, seen = inputs
    rows = _rows(q, k.shape[1], canvas)
    scores = _clean_scores(rows, k, seen, canvas)
    log_sum = scores.logsumexp(-1, keepdim=True)
    if own_k is None or own_v is None:
        out = _times((scores - log_sum).exp().to(v.dtype), v)
        return _heads(out, canvas), log_sum
    own_scores = (rows @ _own(own_k, canvas).mT).float()  # [B,G,M,R*C,C]
    log_sum = torch.logaddexp(log_sum, own_scores.logsumexp(-1, keepdim=True))
    out = _times((scores - log_sum).exp().to(v.dtype), v)
    out = out + (own_scores - log_sum).exp().to(v.dtype) @ _own(own_v, canvas)
    return _heads(out, canvas), log_sum


def _times(weights: Tensor, v: Tensor) -> Tensor:
    """[B,G,M,R*C,T] times [B,G,T,H]."""
    return (weights.flatten(2, 3) @ v).unflatten(2, weights.shape[2:4])


def _backward(
    gradient: Tensor, out: Tensor, log_sum: Tensor, inputs: _Inputs, canvas: int
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v and the own keys and values, from what `_forward` returned and its `gradient` [B,N,Q,H]."""
    q, k, v, own_k, own_v, seen = inputs
    rows, d_out, out = (_rows(x, k.shape[1], canvas) for x in (q, gradient, out))
    mean = (d_out.float() * out.float()).sum(-1, keepdim=True)  # [B,G,M,R*C,1]
    weights = (_clean_scores(rows, k, seen, canvas) - log_sum).exp()
    d_v = weights.to(v.dtype).flatten(2, 3).mT @ d_out.flatten(2, 3)
    d_weights = (d_out.flatten(2, 3) @ v.mT).unflatten(2, weights.shape[2:4])
    d_scores = (weights * (d_weights - mean)).to(q.dtype)
    d_k = d_scores.flatten(2, 3).mT @ rows.flatten(2, 3)
    d_rows = _times(d_scores, k)
    if own_k is None or own_v is None:
        return _heads(d_rows, canvas), d_k, d_v, None, None
    own_weights = ((rows @ _own(own_k, canvas).mT).float() - log_sum).exp()
    d_own_v = own_weights.to(v.dtype).mT @ d_out
    d_scores = (own_weights * (d_out @ _own(own_v, canvas).mT - mean)).to(q.dtype)
    d_own_k = d_scores.mT @ rows
    d_rows = d_rows + d_scores @ _own(own_k, canvas)
    return _heads(d_rows, canvas), d_k, d_v, d_own_k.flatten(2, 3), d_own_v.flatten(2, 3)


def _chunks(count: int, scores: int) -> Iterator[slice]:
    """Slices of `count` rows with `scores` scores each."""
    size = max(1, CHUNK_ELEMENTS // scores)
    return (slice(start, start + size) for start in range(0, count, size))


def _joined(parts: list[tuple[Tensor | None, ...]]) -> list[Tensor | None]:
    """Join the parts column by column; each column is all tensors or all None."""
    columns = zip(*parts, strict=True)
    return [None if column[0] is None else torch.cat(column) for column in columns]


class _Parted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, canvas: int, compiled: bool, *tensors: Any) -> Tensor:
        inputs = _Inputs(*tensors)
        q, k = inputs.q, inputs.k
        ctx.canvas, ctx.compiled = canvas, compiled
        ctx.scores = q.shape[1] * q.shape[2] * (k.shape[2] + (0 if inputs.own_k is None else canvas))
        body = compiled_if(_forward, compiled)
        out, log_sum = _joined([body(inputs.of_rows(part), canvas) for part in _chunks(len(q), ctx.scores)])
        assert out is not None
        ctx.save_for_backward(out, log_sum, *inputs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        out, log_sum, *tensors = ctx.saved_tensors
        inputs, body = _Inputs(*tensors), compiled_if(_backward, ctx.compiled)
        parts = [
            body(gradients[0][part], out[part], log_sum[part], inputs.of_rows(part), ctx.canvas)
            for part in _chunks(len(out), ctx.scores)
        ]
        return None, None, *_joined(parts), None
