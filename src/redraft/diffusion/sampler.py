"""From hidden states to a step's decisions: what the model would write, what is kept, what is drawn anew.

Pure functions. Shapes: B requests, L canvas, R rows (a tile of canvas positions), V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.diffusion.constraint import CanvasConstraint
from redraft.model import Transformer

MASKED = -1e4
"""A logit that means "never": soft-capped logits stay within +-30, and exp(-1e4) is exactly 0."""

TILE_ELEMENTS = 1 << 22
"""Logits held at a time: rows are processed in tiles, so that [L,V] exists for a constrained canvas only."""


@dataclass(frozen=True, slots=True)
class Top:
    """Log-probabilities in nats of a canvas' argmax tokens [L], and the k most likely tokens of each position [L,k]."""

    chosen: Tensor
    token_ids: Tensor
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one forward pass says of every position; all [L], except `soft` [L,D] and `top`, None when not asked for."""

    argmax: Tensor
    candidate: Tensor
    entropy: Tensor
    soft: Tensor | None
    top: Top | None = None


def predict(
    model: Transformer,
    hidden: Tensor,
    uniform: Tensor,
    temperature: float,
    constraint: CanvasConstraint | None = None,
    *,
    want_soft: bool,
    logprobs: int | None = None,
) -> Prediction:
    """Head, temperature, candidates, entropy and soft embeddings of one canvas' hidden states [L,D].

    `uniform` fp64 [L] picks the candidates. `logprobs` asks for the argmax tokens' log-probabilities and those of as
    many of the most likely tokens. A constraint sees the whole canvas; everything then comes from its marginals, and
    the argmax is its best string.
    """
    tile = max(1, TILE_ELEMENTS // model.config.vocab_size)
    rows = [slice(i, i + tile) for i in range(0, hidden.shape[0], tile)]
    if constraint is None:
        tempered = (model.logits(hidden[part]).div_(temperature) for part in rows)
        return _joined(model, tempered, [uniform[part] for part in rows], [None] * len(rows), want_soft, logprobs)
    tiles = [model.logits(hidden[part]) for part in rows]
    logits = (torch.cat(tiles) if len(tiles) > 1 else tiles[0]).div_(temperature)  # [L,V]
    best = constraint.restrict(logits)
    chosen = [None if best is None else best[part] for part in rows]
    restricted = (logits[part] for part in rows)
    return _joined(model, restricted, [uniform[part] for part in rows], chosen, want_soft, logprobs)


def _joined(
    model: Transformer,
    tiles: Iterable[Tensor],
    uniforms: Sequence[Tensor],
    chosen: Sequence[Tensor | None],
    want_soft: bool,
    logprobs: int | None,
) -> Prediction:
    """The predictions of a canvas' tiles of tempered logits [R,V], put together; `chosen` overrules an argmax."""
    parts = [
        _read(model, logits, uniform, best, want_soft, logprobs)
        for logits, uniform, best in zip(tiles, uniforms, chosen, strict=True)
    ]
    columns = ([part.argmax for part in parts], [part.candidate for part in parts], [part.entropy for part in parts])
    argmax, candidate, entropy = map(torch.cat, columns)
    soft = torch.cat([part.soft for part in parts if part.soft is not None]) if want_soft else None
    tops = [(top.chosen, top.token_ids, top.logprobs) for part in parts if (top := part.top) is not None]
    top = Top(*map(torch.cat, zip(*tops, strict=True))) if tops else None
    return Prediction(argmax, candidate, entropy, soft, top)


def _read(
    model: Transformer, logits: Tensor, uniform: Tensor, best: Tensor | None, want_soft: bool, logprobs: int | None
) -> Prediction:
    soft = model.soft_embeddings(logits) if want_soft else None
    top = None if logprobs is None else _top(logits, best, logprobs)
    argmax, candidate, entropy = statistics(logits, uniform, sparse=best is not None)
    return Prediction(argmax if best is None else best, candidate, entropy, soft, top)


def _top(logits: Tensor, best: Tensor | None, count: int) -> Top:
    """Log-probabilities of tempered logits [R,V]: of the argmax (or `best` [R]) and of the `count` most likely."""
    total = logits.logsumexp(-1, keepdim=True)
    values, ids = logits.topk(max(count, 1), dim=-1)  # [R,k]
    chosen = values[:, :1] if best is None else logits.gather(1, best[:, None])
    return Top((chosen - total)[:, 0], ids[:, :count], (values - total)[:, :count])


def statistics(logits: Tensor, uniform: Tensor, *, sparse: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """argmax, one exact categorical sample and entropy in nats per row of fp32 logits [R,V]; overwrites the logits.

    The sample inverts the cumulative distribution at `uniform` fp64 [R] in [0,1), in two stages (first a chunk of the
    vocabulary, then a token in it), which needs no noise and no cumulative sum over the whole vocabulary. `sparse` says
    that most tokens are out of the question: the same result, without exponentials that underflow, which are slow.
    """
    peak, argmax = logits.max(-1)  # [R]
    shifted = logits.sub_(peak[:, None])
    weights = shifted.clamp(min=-87.0).exp_().mul_(shifted > -87.0) if sparse else shifted.exp()  # [R,V]
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
