"""Between the vocabulary and the automaton: logits to class weights, and marginals of sets back to logits.

A step's logits are [L,V] with V up to 262,144; the automaton knows some hundred classes of tokens. Shapes: L positions,
V vocabulary, W tokens that may stand somewhere, C classes, U sets.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from redraft.constraints.chain import NEVER, Floats, Grouping, log_sum
from redraft.constraints.tokens import TokenAutomaton
from redraft.diffusion.sampler import MASKED

_LIFT = np.float32(75.0)
"""Added to exponents below their row's maximum: fp32 then reaches from e^-162 of it to sums over a whole vocabulary."""
_LEAST = np.float32(-80.0)
"""A log-probability that counts as never."""
_scratch = threading.local()


@dataclass(frozen=True, eq=False)
class Weighed:
    """One step's distributions, by class. All in logarithms.

    tokens   [L,W]  the logits of the tokens that may stand somewhere, class by class
    most     [L,C]  of the best token of each class
    sums     [L,C]  not in logarithms: over each class, relative to e^`level` [L,1]
    """

    tokens: Floats
    most: Floats
    sums: Floats
    level: Floats


class Classes:
    """The classes of one automaton over a vocabulary of `size` logits."""

    def __init__(self, automaton: TokenAutomaton, size: int) -> None:
        self._automaton = automaton
        self._class_of = np.full(size, automaton.classes, dtype=np.int64)
        known = min(size, len(automaton.class_of))
        self._class_of[:known] = automaton.class_of[:known]
        order = np.argsort(self._class_of, kind="stable")
        self._sizes = np.bincount(self._class_of, minlength=automaton.classes + 1)[: automaton.classes]
        self.token = order[: int(self._sizes.sum())]
        self._bounds = np.concatenate([[0], np.cumsum(self._sizes)])
        owner = np.repeat(np.arange(automaton.sets), np.diff(automaton.set_first))
        self._members = Grouping(automaton.set_class, automaton.set_first[:-1], np.arange(automaton.sets), owner)
        self._sets = Grouping.by(automaton.set_class)
        self._set_of = owner[self._sets.order]

    def weigh(self, logits: Floats) -> Weighed:
        """Class weights of tempered logits [L,V]."""
        tokens, scratch = self._scratch("tokens", len(logits)), self._scratch("weights", len(logits))
        np.take(logits, self.token, axis=1, out=tokens, mode="clip")
        most = np.maximum.reduceat(tokens, self._bounds[:-1], axis=1)
        level = most.max(1, keepdims=True) - _LIFT
        np.subtract(tokens, level, out=scratch)
        np.exp(scratch, out=scratch)
        sums = np.add.reduceat(scratch, self._bounds[:-1], axis=1)
        most[most < MASKED / 2] = NEVER
        return Weighed(tokens, most, sums, level)

    def _scratch(self, name: str, rows: int, columns: int | None = None) -> Floats:
        """An array [rows,columns] (by default W columns) that is used again at every step; one per thread."""
        shape = (rows, len(self.token) if columns is None else columns)
        known = getattr(_scratch, name, None)
        if known is None or known.size < shape[0] * shape[1]:
            known = np.empty(shape[0] * shape[1], dtype=np.float32)
            setattr(_scratch, name, known)
        return known[: shape[0] * shape[1]].reshape(shape)

    def of_sets(self, weighed: Weighed) -> tuple[Floats, Floats]:
        """log of the best token's weight and of the summed weight of every set, both [L,U]."""
        members = self._members
        most = np.maximum.reduceat(np.take(weighed.most, members.order, axis=1), members.first, axis=1)
        total = np.add.reduceat(np.take(weighed.sums, members.order, axis=1), members.first, axis=1)
        lost = total < 1e-37  # too far below the maximum for a sum: the best token alone counts
        np.log(total, out=total, where=~lost)
        total += weighed.level
        np.copyto(total, most, where=lost)
        return most, total

    def marginals(self, logits: Floats, total: Floats, shares: Floats) -> None:
        """Turn tempered logits [L,V] in place into log-marginals, given each set's weight and surroundings [L,U]."""
        joint = total + shares
        peak = joint.max(1, keepdims=True)
        norm = peak + np.log(np.exp(joint - peak).sum(1, keepdims=True))  # [L,1], of all ways through the canvas
        by_class = log_sum(np.take(shares, self._set_of, axis=1), self._sets)
        around = np.full((len(logits), self._automaton.classes + 1), 2 * MASKED, dtype=np.float32)
        np.maximum(by_class - norm, 2 * MASKED, out=around[:, :-1])
        gain = self._scratch("gain", len(logits), len(self._class_of))
        np.take(around, self._class_of, axis=1, out=gain, mode="clip")
        logits += gain
        # What is below e^-80 is nothing, and would only slow arithmetic down as a denormal number.
        np.copyto(logits, np.float32(MASKED), where=logits < _LEAST)

    def tokens_of(self, weighed: Weighed, labels: np.ndarray) -> np.ndarray:
        """The best token [L] of the set at each position."""
        return np.array([self._best(weighed, position, label) for position, label in enumerate(labels.tolist())])

    def _best(self, weighed: Weighed, position: int, label: int) -> int:
        first = self._automaton.set_first
        members = self._automaton.set_class[first[label] : first[label + 1]]
        best = members[weighed.most[position, members].argmax()]
        low, high = self._bounds[best], self._bounds[best + 1]
        return int(self.token[low + weighed.tokens[position, low:high].argmax()])

    def forced(self, possible: np.ndarray) -> dict[int, int]:
        """Positions at which only one token can stand, given the sets that can [L,U]."""
        by_class = np.logical_or.reduceat(possible[:, self._set_of], self._sets.first, axis=1)  # [L,C]
        count = by_class @ self._sizes
        return {
            position: int(self.token[self._bounds[by_class[position].argmax()]])
            for position in np.flatnonzero(count == 1).tolist()
        }
