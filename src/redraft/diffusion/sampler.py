"""From hidden states to a step's decisions: what the model would write, what is kept, what is drawn anew.

Pure functions. Shapes: B requests, L canvas, R rows (canvas positions of one request), V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.model import Transformer

MASKED = -1e4
"""A logit that means "never": soft-capped logits stay within +-30, and exp(-1e4) is exactly 0."""

TILE_ELEMENTS = 1 << 22
"""Logits held at a time: rows are processed in tiles so that no [B,L,V] tensor ever exists."""

Restrict = Callable[[Tensor, int], None]
"""(logits [R,V] of one request, position of the first row): lowers in place what may not stand there to `MASKED`."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one forward pass says of every position; all [B,L], except `soft` [B,L,D] or None when not asked for."""

    argmax: Tensor
    candidate: Tensor
    entropy: Tensor
    soft: Tensor | None


def predict(
    model: Transformer,
    hidden: Tensor,
    temperature: float,
    uniform: Tensor,
    restrict: list[Restrict | None],
    *,
    want_soft: bool,
) -> Prediction:
    """Head, temperature, candidates, entropy and soft embeddings of hidden states [B,L,D], tile by tile.

    `uniform` fp64 [B,L] picks the candidates; `restrict` has one entry per request.
    """
    tile = max(1, TILE_ELEMENTS // model.config.vocab_size)
    tiles = [
        _predict_tile(model, hidden[b, i : i + tile], temperature, uniform[b, i : i + tile], restrict[b], i, want_soft)
        for b in range(hidden.shape[0])
        for i in range(0, hidden.shape[1], tile)
    ]
    argmax, candidate, entropy = (torch.cat(column).view_as(uniform) for column in list(zip(*tiles, strict=True))[:3])
    soft = torch.cat([part[3] for part in tiles if part[3] is not None]).view_as(hidden) if want_soft else None
    return Prediction(argmax, candidate, entropy, soft)


def _predict_tile(
    model: Transformer,
    hidden: Tensor,
    temperature: float,
    uniform: Tensor,
    restrict: Restrict | None,
    start: int,
    want_soft: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    logits = model.logits(hidden)  # [R,V]
    if restrict is not None:
        restrict(logits, start)
    logits = logits.div_(temperature)
    soft = model.soft_embeddings(logits) if want_soft else None
    return *statistics(logits, uniform), soft


def statistics(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """argmax, one exact categorical sample and entropy in nats per row of fp32 logits [R,V]; overwrites the logits.

    The sample inverts the cumulative distribution at `uniform` fp64 [R] in [0,1), in two stages (first a chunk of the
    vocabulary, then a token in it), which needs no noise and no cumulative sum over the whole vocabulary.
    """
    peak, argmax = logits.max(-1)  # [R]
    shifted = logits.sub_(peak[:, None])
    weights = shifted.exp()  # [R,V]
    total = weights.sum(-1)
    entropy = total.log() - torch.linalg.vecdot(weights, shifted) / total
    return argmax, _invert(weights, uniform, argmax), entropy.clamp_(min=0)


def _invert(weights: Tensor, uniform: Tensor, fallback: Tensor) -> Tensor:
    """Index per row where the cumulative weights [R,V] pass `uniform` of their sum; `fallback` if rounding hides it."""
    rows, vocab = weights.shape
    chunk = _chunk(vocab)
    parts = weights.view(rows, -1, chunk)
    edges = parts.sum(-1, dtype=torch.float64).cumsum(-1)  # [R,V/chunk]
    target = uniform[:, None] * edges[:, -1:]
    which = torch.searchsorted(edges, target, right=True).clamp_(max=edges.shape[1] - 1)  # [R,1]
    before = torch.where(which > 0, edges.gather(1, (which - 1).clamp(min=0)), 0.0)
    inner = parts[torch.arange(rows, device=weights.device), which[:, 0]]  # [R,chunk]
    inside = torch.searchsorted(inner.double().cumsum(-1), target - before, right=True)[:, 0]
    token = which[:, 0] * chunk + inside.clamp(max=chunk - 1)
    possible = (inside < chunk) & (weights.gather(1, token[:, None])[:, 0] > 0)
    return torch.where(possible, token, fallback)


def _chunk(vocab: int) -> int:
    """The largest power of two up to 128 that divides the vocabulary."""
    return min(vocab & -vocab, 128)


def accept(entropy: Tensor, entropy_bound: float) -> Tensor:
    """Positions to keep, bool [B,L]: by rising entropy, as long as the entropies *before* a position sum to <= bound.

    The bound limits the joint mutual information of what is accepted together (EB-Sampler, arXiv 2505.24857);
    the most certain position is always accepted.
    """
    ordered, order = entropy.sort(dim=-1, stable=True)
    kept = ordered.cumsum(-1) - ordered <= entropy_bound
    return torch.zeros_like(kept).scatter_(-1, order, kept)


def renoise(candidate: Tensor, accepted: Tensor, noise: Tensor) -> Tensor:
    """The next step's canvas [B,L]: accepted candidates, fresh uniform tokens elsewhere, even where once accepted."""
    return torch.where(accepted, candidate, noise)
