"""From hidden states to a step's decisions: what the model would write, what is kept, and what is redrawn.

Pure functions. Shapes: B requests, L canvas, R rows (some of its positions), V vocabulary, W tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft import kernels
from redraft.diffusion.constraint import CanvasConstraint
from redraft.kernels.vocabulary import NEVER, bias_row, chunks, one_each
from redraft.model import Model
from redraft.settings import Bias

LEAST_LOGPROB = -1e4
"""What is reported as the logarithm of a probability of 0."""

TILE_ELEMENTS = 1 << 22
"""Logits held at a time: rows are processed in tiles, so that [L,V] exists only for a constrained canvas."""
GPU_TILE_ELEMENTS = 1 << 26
"""The same on a GPU, where every tile costs a pass over the vocabulary: one canvas of the 26B model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopTokens:
    """Log-probabilities (nats, of the step's tempered and constrained distribution) of R positions, on the host.

    On a GPU they come from a separate product: if the step's logits, rounded to the working dtype, were nearly the
    same for two tokens, the other one may come out as more likely here.

    `chosen` [R] is for the canvas' own tokens; `token_ids` and `logprobs` [R][k] are the k most likely, best first.
    """

    chosen: tuple[float, ...]
    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution at R positions: `probabilities` [R,V] in fp32, `entropy` [R] in nats, and an `argmax` [R].

    Where a language spans the positions, the argmax is its most likely string, not the most likely token of each.
    """

    probabilities: Tensor
    argmax: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> Distribution:
        """The softmax of fp32 logits [R,V], which are overwritten."""
        return cls(*kernels.distribution(logits))

    def pick(self, uniform: Tensor) -> Tensor:
        """One exact categorical sample [R]: the cumulative distribution inverted at `uniform` fp64 [R] in [0,1).

        Works in two stages, first a chunk of the vocabulary, then a token in it, so it needs no noise and no cumulative
        sum over the whole vocabulary. If rounding hides the token, the argmax is used.
        """
        parts = chunks(self.probabilities)
        edges = parts.sum(-1).double().cumsum(-1)  # [R,V/chunk]
        target = uniform[:, None] * edges[:, -1:]
        which = torch.searchsorted(edges, target, right=True).clamp_(max=edges.shape[1] - 1)  # [R,1]
        before = torch.where(which > 0, edges.gather(1, (which - 1).clamp(min=0)), 0.0)
        inner = one_each(parts, which[:, 0])  # [R,chunk]
        inside = torch.searchsorted(inner.double().cumsum(-1), target - before, right=True)
        width = parts.shape[2]
        possible = (inside < width) & (inner.gather(1, inside.clamp(max=width - 1)) > 0)
        return torch.where(possible, which * width + inside, self.argmax[:, None])[:, 0]

    def top(self, tokens: Tensor, count: int) -> TopTokens:
        """Log-probabilities (not below `LEAST_LOGPROB`) of `tokens` [R] and of the `count` most likely ones."""
        values, ids = self.probabilities.topk(max(count, 1), dim=-1)  # [R,k]
        chosen = self.probabilities.gather(1, tokens[:, None])[:, 0]
        return TopTokens(
            chosen=tuple(chosen.log().clamp_(min=LEAST_LOGPROB).tolist()),
            token_ids=tuple(map(tuple, ids[:, :count].tolist())),
            logprobs=tuple(map(tuple, values[:, :count].log().clamp_(min=LEAST_LOGPROB).tolist())),
        )


def joined(*parts: Distribution) -> Distribution:
    """Concatenate the distributions of several runs of positions."""
    columns = zip(*((part.probabilities, part.argmax, part.entropy) for part in parts), strict=True)
    return Distribution(*map(torch.cat, columns))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one forward pass says about every position; all [L], except `soft` [L,D], which is None if not wanted."""

    argmax: Tensor
    candidate: Tensor
    entropy: Tensor
    soft: Tensor | None

    def split(self, sizes: Sequence[int]) -> list[Prediction]:
        """Split into the predictions for runs of `sizes` positions."""
        columns = [
            [None] * len(sizes) if column is None else column.split(list(sizes))
            for column in (self.argmax, self.candidate, self.entropy, self.soft)
        ]
        return [Prediction(*row) for row in zip(*columns, strict=True)]


def predict(
    model: Model,
    hidden: Tensor,
    uniform: Tensor,
    temperature: float,
    constraint: CanvasConstraint | None = None,
    not_first: Sequence[int] = (),
    bias: Bias = (),
    *,
    want_soft: bool,
) -> Prediction:
    """Head, temperature, candidates, entropy and soft embeddings of one canvas' hidden states [L,D].

    `uniform` fp64 [L] picks the candidates. All results come from the logits with the `bias` added, before they are
    divided by the temperature. A constraint sees the whole canvas; all results then come from the constrained
    distribution, and the argmax is its best string. Without one, the first position can have none of `not_first`.
    """
    if constraint is not None:
        return _constrained(model, hidden, uniform, temperature, constraint, bias, want_soft)
    size = rows_at_once(model)
    parts = [
        _predict_rows(model, logits, part, want_soft)
        for logits, part in zip(_logits(model, hidden, temperature, not_first, bias), uniform.split(size), strict=True)
    ]
    return parts[0] if len(parts) == 1 else _stacked(parts)


def top_tokens(
    model: Model,
    hidden: Tensor,
    tokens: Tensor,
    temperature: float,
    constraint: CanvasConstraint | None = None,
    not_first: Sequence[int] = (),
    bias: Bias = (),
    *,
    count: int,
) -> TopTokens:
    """Log-probabilities of a canvas' `tokens` int64 [L] and of the `count` most likely ones, from its hidden states.

    The distribution is that of `predict`. If few tokens are possible, the most likely ones may include impossible ones.
    """
    if constraint is not None:
        return _distribution(model, hidden, None, temperature, constraint, None, bias).top(tokens, count)
    own = tokens.split(rows_at_once(model))
    parts = [
        Distribution.of(logits).top(part, count)
        for logits, part in zip(_logits(model, hidden, temperature, not_first, bias), own, strict=True)
    ]
    return TopTokens(**{name: sum((getattr(part, name) for part in parts), ()) for name in TopTokens.__slots__})


def predict_together(
    model: Model,
    hidden: Sequence[Tensor],
    uniform: Sequence[Tensor],
    temperature: float,
    constraints: Sequence[CanvasConstraint | None],
    *,
    want_soft: bool,
) -> list[Prediction]:
    """`predict` for several canvases, B x [L,D] with `uniform` B x [L]: the vocabulary is read once for all of them.

    All their logits must fit in memory at once.
    """
    sizes = list(map(len, hidden))
    logits = model.logits(torch.cat(list(hidden)), temperature).split(sizes)
    distribution = joined(*map(_restricted, constraints, logits))
    soft = model.mean_embeddings(distribution.probabilities) if want_soft else None
    candidate = distribution.pick(torch.cat(list(uniform)))
    return Prediction(distribution.argmax, candidate, distribution.entropy, soft).split(sizes)


def _restricted(constraint: CanvasConstraint | None, logits: Tensor) -> Distribution:
    """The distribution of a whole canvas from its tempered logits [L,V], which are overwritten."""
    if constraint is None:
        return Distribution.of(logits)
    fixed = constraint.hold(torch.zeros(len(logits), dtype=torch.long, device=logits.device))
    return distribution_under(constraint, fixed, logits.shape[1], lambda rows: logits if rows is None else logits[rows])


def rows_at_once(model: Model) -> int:
    """How many rows of logits are held at a time."""
    elements = TILE_ELEMENTS if model.device.type == "cpu" else GPU_TILE_ELEMENTS
    return max(1, elements // model.config.vocab_size)


def _logits(model: Model, hidden: Tensor, temperature: float, not_first: Sequence[int], bias: Bias) -> Iterator[Tensor]:
    """Tempered logits [R,V] of a canvas' hidden states [L,D], some rows at a time."""
    for number, rows in enumerate(hidden.split(rows_at_once(model))):
        logits = _biased(model.logits(rows, temperature), model, bias, temperature)
        if number == 0 and not_first:
            logits[0, list(not_first)] = NEVER
        yield logits


def _biased(logits: Tensor, model: Model, bias: Bias, temperature: float, tokens: Tensor | None = None) -> Tensor:
    """Tempered logits [R,V], or [R,W] of only `tokens`, with the bias added in place."""
    if bias:
        row = bias_row(bias, model.config.vocab_size, logits.device)
        logits += (row if tokens is None else row[tokens]) / temperature
    return logits


def _predict_rows(model: Model, logits: Tensor, uniform: Tensor, want_soft: bool) -> Prediction:
    """The prediction for some rows by themselves, from their tempered logits [R,V]."""
    soft = None
    if want_soft and model.dtype != logits.dtype:
        soft = model.soft_embeddings(logits)  # from rounded logits, whose probabilities differ
    distribution = Distribution.of(logits)
    if want_soft and soft is None:
        soft = model.mean_embeddings(distribution.probabilities)
    return Prediction(distribution.argmax, distribution.pick(uniform), distribution.entropy, soft)


def _constrained(
    model: Model,
    hidden: Tensor,
    uniform: Tensor,
    temperature: float,
    constraint: CanvasConstraint,
    bias: Bias,
    want_soft: bool,
) -> Prediction:
    """The prediction for a whole canvas [L,D]. The head sees only positions and tokens that are open to choice."""
    tokens = constraint.tokens(hidden.device)
    rows = None if tokens is None else model.embeddings(tokens)  # [W,D]
    distribution = _distribution(model, hidden, rows, temperature, constraint, tokens, bias)
    soft = model.mean_embeddings(distribution.probabilities, rows) if want_soft else None
    argmax, candidate = distribution.argmax, distribution.pick(uniform)
    if tokens is not None:
        argmax, candidate = tokens[argmax], tokens[candidate]
    return Prediction(argmax, candidate, distribution.entropy, soft)


def _distribution(
    model: Model,
    hidden: Tensor,
    table: Tensor | None,
    temperature: float,
    constraint: CanvasConstraint,
    tokens: Tensor | None,
    bias: Bias,
) -> Distribution:
    """What the constraint leaves of a canvas' distributions over `tokens` [W], whose rows are `table` [W,D], or all."""

    def logits_of(rows: Tensor | None) -> Tensor:
        logits = model.logits(hidden if rows is None else hidden[rows], temperature, table)
        return _biased(logits, model, bias, temperature, tokens)

    fixed = constraint.hold(torch.zeros(len(hidden), dtype=torch.long, device=hidden.device))
    fixed = fixed if tokens is None else torch.searchsorted(tokens, fixed)
    return distribution_under(constraint, fixed, model.config.vocab_size if tokens is None else len(tokens), logits_of)


def distribution_under(
    constraint: CanvasConstraint, fixed: Tensor, width: int, logits_of: Callable[[Tensor | None], Tensor]
) -> Distribution:
    """The constrained distribution of a whole canvas [L] over `width` tokens.

    `fixed` [L] are the tokens of positions that are not free. `logits_of` takes the rows of the free positions (None
    for all) and returns their tempered logits [F,W].
    """
    rows = constraint.free(len(fixed), fixed.device)
    if rows is None:
        return constraint.restrict(logits_of(None))
    certain = torch.zeros(len(fixed), width, device=fixed.device).scatter_(1, fixed[:, None], 1.0)
    entropy = torch.zeros_like(certain[:, 0])
    if not len(rows):
        return Distribution(certain, fixed, entropy)
    part = constraint.restrict(logits_of(rows))
    whole, new = (certain, fixed, entropy), (part.probabilities, part.argmax, part.entropy)
    return Distribution(*(old.index_copy_(0, rows, some) for old, some in zip(whole, new, strict=True)))


def _stacked(parts: Sequence[Prediction]) -> Prediction:
    """The predictions of a canvas' tiles, put together."""
    soft = [part.soft for part in parts if part.soft is not None]
    return Prediction(
        torch.cat([part.argmax for part in parts]),
        torch.cat([part.candidate for part in parts]),
        torch.cat([part.entropy for part in parts]),
        torch.cat(soft) if soft else None,
    )


def accept(entropy: Tensor, entropy_bound: float) -> Tensor:
    """Positions to keep, bool [B,L]: by rising entropy, while the entropies *before* a position sum to <= bound.

    The bound limits the joint mutual information of positions accepted together (EB-Sampler, arXiv 2505.24857);
    the most certain position is always accepted.
    """
    ordered, order = entropy.sort(dim=-1, stable=True)
    accepted = ordered.cumsum(-1) - ordered <= entropy_bound
    return torch.zeros_like(accepted).scatter_(-1, order, accepted)


def renoise(candidate: Tensor, accepted: Tensor, noise: Tensor) -> Tensor:
    """The next step's canvas [B,L]: accepted candidates, fresh uniform tokens elsewhere, even if accepted before."""
    return torch.where(accepted, candidate, noise)
