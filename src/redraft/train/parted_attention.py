"""Attention of the two streams as plain matrix products: clean tokens and a query's own canvas are two parts.

A canvas never sees another one, so no products between different canvases are computed, and nothing is masked within
its own. Query heads of one key/value head are rows of one product, so keys and values are not repeated. The backward
pass keeps queries, keys, values, the result and one number per row, and recomputes the scores.

Shapes: B rows, N query heads in G groups of R, M canvases of C tokens (encoding is one canvas without an `own` part), Q
= M*C queries, T clean tokens, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
    own_k, own_v = own or (None, None)
    out = _Parted.apply(q, *clean, own_k, own_v, seen, canvas, compiled)
    return out.transpose(1, 2).flatten(2)


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


def _forward(
    q: Tensor, k: Tensor, v: Tensor, own_k: Tensor | None, own_v: Tensor | None, seen: Tensor, canvas: int
) -> tuple[Tensor, Tensor]:
    """The result [B,N,Q,H] and the logarithms of the rows' sums [B,G,M,R*C,1]."""
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
    gradient: Tensor, out: Tensor, log_sum: Tensor, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor | None,
    own_v: Tensor | None, seen: Tensor, canvas: int,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of q, k, v and the own keys and values."""
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


def _cut(tensors: tuple[Tensor | None, ...], part: slice) -> list[Tensor | None]:
    return [None if tensor is None else tensor[part] for tensor in tensors]


def _joined(parts: list[tuple[Tensor | None, ...]]) -> list[Tensor | None]:
    """Join the parts column by column; each column is all tensors or all None."""
    columns = zip(*parts, strict=True)
    return [None if column[0] is None else torch.cat(column) for column in columns]


class _Parted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor | None, own_v: Tensor | None, seen: Tensor,
        canvas: int, compiled: bool,
    ) -> Tensor:  # fmt: skip
        ctx.canvas, ctx.compiled = canvas, compiled
        ctx.scores = q.shape[1] * q.shape[2] * (k.shape[2] + (0 if own_k is None else canvas))
        body: Callable[..., Any] = compiled_if(_forward, compiled)
        given = q, k, v, own_k, own_v, seen
        out, log_sum = _joined([body(*_cut(given, part), canvas) for part in _chunks(len(q), ctx.scores)])
        assert out is not None
        ctx.save_for_backward(out, log_sum, *given)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        body: Callable[..., Any] = compiled_if(_backward, ctx.compiled)
        given = gradients[0], *ctx.saved_tensors
        parts = [body(*_cut(given, part), ctx.canvas) for part in _chunks(len(gradients[0]), ctx.scores)]
        return *_joined(parts), None, None, None
