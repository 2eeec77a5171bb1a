"""The dynamic programme: which strings of an automaton a canvas most likely holds, and how likely each token is.

A denoising step gives every position its own distribution. Of all token strings that the automaton allows, weighted by
the product of these, the forward and backward sums give each position's exact marginals, and the maximum gives the most
likely string (as DINGO, arXiv 2505.23061, does). Everything is in logarithms, because two alignments of one text may
differ by a factor of e^1000 and still both matter in the end.

Arrays here are NumPy on the processor: positions come one after the other, and at the few thousand edges that a
constraint has, the cost of a step is the cost of calling it. Shapes: L positions, Q states, E edges, U sets, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redraft.constraints.tokens import TokenAutomaton

NEVER = np.float32(-1e30)
"""The logarithm of zero, finite so that sums of it are no NaN."""

Floats = np.ndarray
Gates = dict[int, Floats]
"""Position -> log-weights [Q] of the states before it."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """Items ordered so that those of one group lie together.

    order  int64 [N]  the items
    first  int64 [G]  where each group begins
    owner  int64 [G]  which group it is
    part   int64 [N]  the group of each item, counted from 0
    """

    order: np.ndarray
    first: np.ndarray
    owner: np.ndarray
    part: np.ndarray

    @classmethod
    def by(cls, keys: np.ndarray) -> Grouping:
        """Items 0 .. N-1 grouped by their key."""
        order = np.argsort(keys, kind="stable")
        owner, first, part = np.unique(keys[order], return_index=True, return_inverse=True)
        return cls(order, first, owner, part)


def log_sum(values: Floats, grouping: Grouping) -> Floats:
    """log of the sum of exponentials of each group; `values` [...,N], in the grouping's order, are overwritten."""
    most = np.maximum.reduceat(values, grouping.first, axis=-1)
    values -= np.take(most, grouping.part, axis=-1)
    np.exp(values, out=values)
    total = np.add.reduceat(values, grouping.first, axis=-1)
    np.log(total, out=total)
    total += most
    return total


class Chain:
    """The dynamic programme of one automaton."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton = automaton
        source, target, label = automaton.source, automaton.target, automaton.label
        self._ahead = _Direction(source, target, label, automaton.states)
        self._back = _Direction(target, source, label, automaton.states)
        self._by_label = Grouping.by(label)
        self._label_source = source[self._by_label.order]
        self._label_target = target[self._by_label.order]

    def shares(self, weights: Floats, start: Floats, final: Floats, gates: Gates, floor: float) -> Floats:
        """log of what stands around each set at each position [L,U]: ways to it times ways on. `weights` are [L,U].

        `start` and `final` [Q] weigh the states before the first and behind the last position, `gates` those before
        others. `floor` is the logarithm of the best way's weight, below which the sum of all ways cannot be.
        """
        plain = self._plain_shares(weights, start, final, gates, floor)
        return self._log_shares(weights, start, final, gates) if plain is None else plain

    def _plain_shares(self, weights: Floats, start: Floats, final: Floats, gates: Gates, floor: float) -> Floats | None:
        """The same without logarithms, scaled at every position; None if numbers ran out of range."""
        level = weights.max(1, keepdims=True)
        plain = np.exp(np.maximum(weights - level, -700.0).astype(np.float64))
        plain[weights < NEVER / 2] = 0.0
        ahead, scale_ahead = self._ahead.sums(plain, np.exp(start), gates)
        back, scale_back = self._back.sums(plain[::-1], np.exp(final), _mirrored(gates, len(weights)))
        back, scale_back = back[::-1], scale_back[::-1]
        around = np.take(ahead[:-1], self._label_source, axis=1)  # [L,E]
        around *= np.take(back[1:], self._label_target, axis=1)
        shares = np.add.reduceat(around, self._by_label.first, axis=1)
        with np.errstate(divide="ignore"):
            whole = np.log((shares * plain).sum(1)) + scale_ahead[:-1] + scale_back[1:]  # of all ways, seen from each
            shares = np.log(shares)
        if not np.isfinite(whole).all() or np.ptp(whole) > 1e-3 or whole[0] + level.sum() < floor - 0.05:
            return None
        return np.maximum(shares, NEVER).astype(np.float32)

    def _log_shares(self, weights: Floats, start: Floats, final: Floats, gates: Gates) -> Floats:
        ahead = self._ahead.run(weights, start, gates)
        back = self._back.run(weights[::-1], final, _mirrored(gates, len(weights)))[::-1]
        around = ahead[:-1][:, self._label_source]  # [L,E]
        around += back[1:][:, self._label_target]
        np.maximum(around, NEVER, out=around)
        return log_sum(around, self._by_label)

    def possible(self, length: int, start: Floats, final: Floats, gates: Gates) -> Floats:
        """bool [L,U]: the sets that can stand at each position, whatever the weights are."""
        even = np.zeros((length, self.automaton.sets), dtype=np.float32)
        return self._log_shares(even, start, final, gates) > NEVER / 2

    def best(self, weights: Floats, start: Floats, final: Floats, gates: Gates) -> np.ndarray:
        """The set of each position [L] on the most likely way."""
        scores = self._ahead.best(weights, start, gates)
        return self._ahead.trace(scores, weights, final)


def _mirrored(gates: Gates, length: int) -> Gates:
    return {length - position: gate for position, gate in gates.items()}


class _Direction:
    """Edges grouped by where they arrive."""

    def __init__(self, source: np.ndarray, target: np.ndarray, label: np.ndarray, states: int) -> None:
        self._group = Grouping.by(target)
        self._source, self._label = source[self._group.order], label[self._group.order]
        self._states = states
        self._bounds = np.append(self._group.first, len(source))
        self._place = np.full(states, -1, dtype=np.int64)
        self._place[self._group.owner] = np.arange(len(self._group.owner))

    def sums(self, weights: Floats, start: Floats, gates: Gates) -> tuple[Floats, Floats]:
        """Weights of all ways to each state [L+1,Q], fp64, and the logarithms [L+1] of what was taken off them."""
        group, source = self._group, self._source
        found = np.zeros((len(weights) + 1, self._states))
        scale = np.zeros(len(weights) + 1)
        found[0] = start
        edges = np.take(weights, self._label, axis=1)  # [L,E]
        for position in range(len(weights)):
            values = found[position].take(source)
            values *= edges[position]
            total = np.add.reduceat(values, group.first)
            here = found[position + 1]
            here[group.owner] = total
            if position + 1 in gates:
                here *= np.exp(gates[position + 1])
            most = here.max()
            if most == 0.0:
                break
            here *= 1.0 / most
            scale[position + 1] = np.log(most)
        return found, np.cumsum(scale)

    def run(self, weights: Floats, start: Floats, gates: Gates) -> Floats:
        length, group, source = len(weights), self._group, self._source
        found = np.full((length + 1, self._states), NEVER, dtype=np.float32)
        found[0] = start
        edges = weights[:, self._label]  # [L,E]
        here = found[0]
        for position in range(length):
            values = here.take(source)
            values += edges[position]
            most = np.maximum.reduceat(values, group.first)
            values -= most.take(group.part)
            np.exp(values, out=values)
            total = np.add.reduceat(values, group.first)
            np.log(total, out=total)
            total += most
            here = found[position + 1]
            here[group.owner] = total
            _settle(here, gates.get(position + 1))
        return found

    def best(self, weights: Floats, start: Floats, gates: Gates) -> Floats:
        """log of the weight of the best way to each state [L+1,Q]; a constant is taken off at every position."""
        length, group, source = len(weights), self._group, self._source
        found = np.full((length + 1, self._states), NEVER, dtype=np.float32)
        found[0] = start
        edges = weights[:, self._label]
        here = found[0]
        for position in range(length):
            values = here.take(source)
            values += edges[position]
            here = found[position + 1]
            here[group.owner] = np.maximum.reduceat(values, group.first)
            _settle(here, gates.get(position + 1))
        return found

    def trace(self, scores: Floats, weights: Floats, final: Floats) -> np.ndarray:
        """The sets [L] of the best way, read backwards."""
        state = int((scores[-1] + final).argmax())
        assert scores[-1][state] + final[state] > NEVER / 2, "the canvas has no valid string"
        labels = np.zeros(len(weights), dtype=np.int64)
        for position in range(len(weights) - 1, -1, -1):
            low, high = self._bounds[self._place[state]], self._bounds[self._place[state] + 1]
            values = scores[position].take(self._source[low:high]) + weights[position].take(self._label[low:high])
            edge = low + int(values.argmax())
            labels[position], state = self._label[edge], int(self._source[edge])
        return labels


def _settle(here: Floats, gate: Floats | None) -> None:
    """Close a gate, take off the maximum, and keep impossible states at `NEVER`."""
    if gate is not None:
        here += gate
    most = here.max()
    if most > NEVER / 2:
        here -= most
    here[here < NEVER / 2] = NEVER
