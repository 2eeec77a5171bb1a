"""Between the vocabulary and the automaton: logits to weights of sets, and contexts of sets back to tokens.

A step's logits are [F,W] with W up to 262,144; the automaton knows some hundred classes of tokens. Every pass over the
vocabulary costs as much as the dynamic programme itself, so there are few of them, and exponentials are taken once.
Shapes: F free positions, W tokens, C classes, U sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.constraints.chain import Array, Groups
from redraft.constraints.tokens import TokenAutomaton
from redraft.diffusion.sampler import Distribution
from redraft.kernels.triton.constrained import CONTEXT_WEIGHT
from redraft.kernels.vocabulary import blocks

_LIFT = {torch.float32: 75.0, torch.float64: 600.0}
"""Added to exponents relative to their row's maximum, to make room for small numbers; sums still do not overflow."""
_SPAN = 160.0
"""How far below the maximum fp32 can hold exponents, with that lift."""


@dataclass(frozen=True, eq=False)
class Weighed:
    """One step's distributions: weights relative to e^`level` [F] of the row, fp32, or fp64 where that is too narrow.

    tokens  [F,W]  of each token
    most    [F,C]  of the best token of each class
    sums    [F,C]  of each class
    """

    tokens: Tensor
    most: Array
    sums: Array
    level: Tensor


class Classes:
    """The classes of one automaton over W tokens, whose classes are `class_of` [W]; C marks tokens without a class."""

    def __init__(self, automaton: TokenAutomaton, class_of: Array) -> None:
        self._automaton, self._class_of = automaton, torch.from_numpy(class_of)
        order = np.argsort(class_of, kind="stable")
        self._sizes = np.bincount(class_of, minlength=automaton.classes + 1)[: automaton.classes]
        self._bounds = np.concatenate([[0], np.cumsum(self._sizes)])
        self._token = torch.from_numpy(order[: self._bounds[-1]])
        owner = np.repeat(np.arange(automaton.sets), np.diff(automaton.set_first))
        self._sets = Groups.by(automaton.set_class)
        self._set_of = owner[self._sets.order]
        leader = automaton.set_class[automaton.set_first[:-1]]  # [U], each set's first class
        alone = (np.diff(automaton.set_first) == 1) & (self._sizes[leader] == 1)
        self._only = np.where(alone, order[self._bounds[leader]], -1)  # [U], the token of sets that hold one

    def weigh(self, logits: Tensor) -> Weighed:
        """Weights of tempered logits [F,W]."""
        peak = logits.amax(1, keepdim=True)
        dtype = torch.float64 if bool((peak - logits.amin(1, keepdim=True)).max() > _SPAN) else torch.float32
        level = peak.to(dtype) - _LIFT[dtype]
        tokens = torch.empty_like(logits, dtype=dtype)
        most, sums = np.empty((2, len(logits), len(self._sizes)), dtype=tokens.numpy().dtype)
        for rows in blocks(logits):
            torch.sub(logits[rows], level[rows], out=tokens[rows]).exp_()
            part = tokens[rows].index_select(1, self._token).numpy()  # class by class
            most[rows] = np.maximum.reduceat(part, self._bounds[:-1], axis=1)
            sums[rows] = np.add.reduceat(part, self._bounds[:-1], axis=1)
        return Weighed(tokens, most, sums, level[:, 0])

    def of_sets(self, weighed: Weighed) -> tuple[Array, Array]:
        """The log of every set's best token weight, and every set's total weight: [F,U] each, relative to e^`level`."""
        automaton = self._automaton
        members, first = automaton.set_class, automaton.set_first[:-1]
        most = np.maximum.reduceat(np.take(weighed.most, members, axis=1), first, axis=1)
        total = np.add.reduceat(np.take(weighed.sums, members, axis=1), first, axis=1)
        return np.log(most, dtype=np.float64), total.astype(np.float64)

    def restricted(self, logits: Tensor, weighed: Weighed, shares: Array, labels: Array) -> Distribution:
        """The constrained distribution of tempered logits [F,W]; overwrites the logits and `weighed`.

        `shares` [F,U] is the context of each set, up to a factor for each row, whose weight is `CONTEXT_WEIGHT`;
        `labels` [F] are the sets of the most likely string.
        """
        context = np.add.reduceat(np.take(shares, self._set_of, axis=1), self._sets.first, axis=1)  # [F,C]
        factor = context**CONTEXT_WEIGHT
        factor /= np.einsum("fc,fc->f", factor, weighed.sums)[:, None]
        masses = factor * weighed.sums
        chosen = self._only[labels]
        for row in np.flatnonzero(chosen < 0).tolist():
            chosen[row] = self._best(weighed, row, int(labels[row]))
        best = torch.from_numpy(chosen)
        # Relative to the best token, so that the entropy of a near certainty is not a difference of large numbers.
        peak = logits.gather(1, best[:, None])
        factors = torch.from_numpy(np.pad(factor, ((0, 0), (0, 1)))).to(weighed.tokens.dtype)
        products, inner = weighed.tokens, torch.empty_like(weighed.tokens[:, 0])
        for rows in blocks(logits):
            part = products[rows].mul_(factors[rows].index_select(1, self._class_of))
            inner[rows] = torch.linalg.vecdot(part, logits[rows].sub_(peak[rows]).to(part.dtype))
        rise = (peak[:, 0].to(weighed.level.dtype) - weighed.level).double().numpy()[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            outer = np.where(masses > 0, masses * (np.log(factor) + rise), 0.0).sum(1)
        entropy = -(inner.double() + torch.from_numpy(outer))
        return Distribution(products.float(), best, entropy.clamp_(min=0).float())

    def _best(self, weighed: Weighed, row: int, label: int) -> int:
        """The best token of a set."""
        first = self._automaton.set_first
        members = self._automaton.set_class[first[label] : first[label + 1]]
        best = members[weighed.most[row, members].argmax()]
        low, high = self._bounds[best], self._bounds[best + 1]
        tokens = self._token[low:high]
        return int(tokens[weighed.tokens[row, tokens].argmax()])

    def forced(self, possible: Array) -> dict[int, int]:
        """Positions at which only one token can stand, given the sets that can [L,U]."""
        by_class = np.logical_or.reduceat(possible[:, self._set_of], self._sets.first, axis=1)  # [L,C]
        count = by_class @ self._sizes
        return {
            position: int(self._token[self._bounds[by_class[position].argmax()]])
            for position in np.flatnonzero(count == 1).tolist()
        }
