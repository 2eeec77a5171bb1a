"""The dynamic programme: the most likely string of an automaton on a canvas, and how likely each token is.

A denoising step gives every position its own distribution. Over all token strings that the automaton allows, weighted
by the product of these, forward and backward sums give the context of each token, and the maximum gives the most likely
string (as in DINGO, arXiv 2505.23061). A token's probability times its context is its exact marginal.

This is the CPU version, in NumPy: it takes one position after the other, and with the few thousand edges of a
constraint, a step costs little more than the call itself. `device.py` is the definition, for any device. Shapes: L
positions, Q states, E edges, U sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from redraft.constraints.tokens import TokenAutomaton
from redraft.kernels.triton.constrained import CONTEXT_WEIGHT
from redraft.kernels.vocabulary import NEVER

REACH = 640.0
"""Numbers may fall by e^-640 before they are scaled up again; fp64 ends at e^-708."""
LEAST = 1e-300
"""A weight below this counts as lost: smaller numbers have few digits left, and their inverse may overflow."""
NEGLIGIBLE = 1e-6
"""What a lost context may weigh at most, next to the likeliest set of its position."""

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Groups:
    """Items ordered so that each group is contiguous.

    order  int64 [N]  the items
    first  int64 [G]  where each group begins
    owner  int64 [G]  which group it is
    """

    order: Array
    first: Array
    owner: Array

    @classmethod
    def by(cls, keys: Array) -> Groups:
        """Items 0 .. N-1 grouped by their key."""
        order = np.argsort(keys, kind="stable")
        owner, first = np.unique(keys[order], return_index=True)
        return cls(order, first, owner)


@dataclass(frozen=True, eq=False)
class Ends:
    """Where a canvas' path through the automaton begins and may end.

    start  the state before the first position
    final  bool [Q], the possible states after the last one
    gate   (position, bool [Q]): the possible states before some position in between
    """

    start: int
    final: Array
    gate: tuple[int, Array] | None = None

    def inside(self, states: Array) -> tuple[slice, Ends]:
        """The positions around which more than one state is possible, from bool [L+1,Q], and the ends of that part."""
        open_ = np.flatnonzero(states.sum(1) > 1)
        if not len(open_):
            return slice(0, 0), self
        first, last = int(open_[0]) - 1, min(int(open_[-1]) + 1, len(states) - 1)
        gate = self.gate if self.gate is not None and first < self.gate[0] < last else None
        if gate is not None:
            gate = gate[0] - first, gate[1]
        return slice(first, last), Ends(int(states[first].argmax()), states[last], gate)


class Chain:
    """The dynamic programme of one automaton. Its tables are built on first use."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton = automaton

    def possible(self, allowed: Array | None, length: int, ends: Ends) -> tuple[Array, Array]:
        """The possible sets bool [L,U] at each position and states bool [L+1,Q] around them, regardless of probability.

        `allowed` bool [L,U] narrows the sets; None allows them all.
        """
        source, target, label = self.automaton.source, self.automaton.target, self.automaton.label
        live = np.ones((length, len(source)), dtype=bool) if allowed is None else allowed[:, label]  # [L,E]
        states = np.zeros((length + 1, self.automaton.states), dtype=bool)
        states[0, ends.start] = True
        for position in range(length):
            live[position] &= states[position][source]
            states[position + 1, target[live[position]]] = True
            if ends.gate is not None and ends.gate[0] == position + 1:
                states[position + 1] &= ends.gate[1]
        states[length] &= ends.final
        sets = np.zeros((length, self.automaton.sets), dtype=bool)
        for position in range(length - 1, -1, -1):
            edges = live[position] & states[position + 1][target]
            sets[position, label[edges]] = True
            states[position] = False
            states[position, source[edges]] = True
        return sets, states

    def best(self, weights: Array, ends: Ends) -> tuple[Array, float]:
        """The sets [L] of the most likely path, and the logarithm of its weight. `weights` are logarithms [L,U]."""
        way = self._ahead
        found = np.full((len(weights) + 1, self.automaton.states), NEVER)
        found[0, way.place[ends.start]] = 0.0
        values, edges = np.empty(len(way.label)), np.take(weights, way.label, axis=1)  # [L,E]
        arrivals = len(way.first)
        shut = None if ends.gate is None else (ends.gate[0], way.place[~ends.gate[1]])
        for position, added in enumerate(edges):
            np.take(found[position], way.source, out=values, mode="clip")
            values += added
            np.maximum.reduceat(values, way.first, out=found[position + 1, :arrivals])
            if shut is not None and shut[0] == position + 1:
                found[position + 1, shut[1]] = NEVER
        return way.trace(found, weights, ends.final)

    def shares(self, weights: Array, ends: Ends) -> tuple[Array, float] | None:
        """The context of each set [L,U]: paths to it times paths from it, up to a factor for each position.

        `weights` fp64 [L,U] are plain numbers here, not logarithms. Also returns the logarithm of the weight of all
        paths. None if numbers ran out of range, or if a context that did might count for something.
        """
        peak = weights.max(1, keepdims=True)
        if not peak.min() >= LEAST:
            return None
        weights = weights / peak
        least = weights[weights > 0].min(initial=1.0)
        found, scale = self._both_ways(weights, ends, max(1, int(REACH / max(1.0, -np.log(least)))))
        if found is None:
            return None
        around = np.take(found[:-1], self._label_source, axis=1)  # [L,E]
        around *= np.take(found[-2::-1], self._label_target, axis=1)
        shares = np.add.reduceat(around, self._by_label.first, axis=1)
        whole = np.einsum("lu,lu->l", shares, weights)  # of all paths, seen from each position
        if not (whole > 0).all():
            return None
        shares /= whole[:, None]
        seen = np.log(whole) + scale[:-1, 0] + scale[-2::-1, 1]
        lost = np.log(LEAST) + scale.max(0).sum() - seen[0]  # the most that a context which was lost can be
        sure = CONTEXT_WEIGHT * lost < np.log(NEGLIGIBLE) + _weight_of_likeliest(shares, weights).min()
        return (shares, float(seen[0] + np.log(peak).sum())) if sure and np.ptp(seen) < 1e-3 else None

    def _both_ways(self, weights: Array, ends: Ends, rescale: int) -> tuple[Array | None, Array]:
        """Weights of all paths to each state, from the start and, mirrored, from the end [L+1,2Q]; None if one is lost.

        Also returns the logarithms [L+1,2] of the factors taken out every `rescale` positions.
        """
        table, length = self._merged, len(weights)
        found = np.zeros((length + 1, 2 * self.automaton.states))
        scale = np.zeros((length + 1, 2))
        found[0, table.ahead[ends.start]] = 1.0
        found[0, table.back[ends.final]] = 1.0
        edges = np.take(np.concatenate([weights, weights[::-1]], axis=1), table.label, axis=1)  # [L,2E]
        values = np.empty(len(table.label))
        arrivals, half = len(table.first), table.half
        for position, factors in enumerate(edges):
            here = found[position + 1]
            np.take(found[position], table.source, out=values, mode="clip")
            values *= factors
            np.add.reduceat(values, table.first, out=here[:arrivals])
            if ends.gate is not None:
                if position + 1 == ends.gate[0]:
                    here[table.ahead[~ends.gate[1]]] = 0.0
                if position + 1 == length - ends.gate[0]:
                    here[table.back[~ends.gate[1]]] = 0.0
            if position % rescale == rescale - 1:
                most = here[:half].max(), here[half:arrivals].max()
                if min(most) < LEAST:
                    return None, scale
                here[:half] *= 1.0 / most[0]
                here[half:arrivals] *= 1.0 / most[1]
                scale[position + 1] = np.log(most)
        return found, np.cumsum(scale, axis=0)

    # --- tables ---------------------------------------------------------------------------------------------------

    @cached_property
    def _ahead(self) -> _Direction:
        automaton = self.automaton
        return _Direction.of(automaton.source, automaton.target, automaton.label, automaton.states)

    @cached_property
    def _merged(self) -> _Merged:
        automaton = self.automaton
        back = _Direction.of(automaton.target, automaton.source, automaton.label, automaton.states)
        return _Merged.of(self._ahead, back, automaton.sets)

    @cached_property
    def _by_label(self) -> Groups:
        return Groups.by(self.automaton.label)

    @cached_property
    def _label_source(self) -> Array:
        return self._merged.ahead[self.automaton.source[self._by_label.order]]

    @cached_property
    def _label_target(self) -> Array:
        return self._merged.back[self.automaton.target[self._by_label.order]]


def _weight_of_likeliest(shares: Array, weights: Array) -> Array:
    """The logarithm of what the likeliest set at each position weighs, [L]."""
    likeliest = (shares * weights).argmax(1)[:, None]
    context, own = (np.take_along_axis(part, likeliest, 1)[:, 0] for part in (shares, weights))
    return CONTEXT_WEIGHT * np.log(context) + np.log(own)


@dataclass(frozen=True, eq=False)
class _Direction:
    """Edges grouped by the state they lead to. States with arrivals are placed first, in the order of the groups.

    place          int64 [Q]  the place of each state
    source, label  int64 [E]  places where edges begin, and their sets
    first          int64 [G]
    """

    place: Array
    source: Array
    label: Array
    first: Array

    @classmethod
    def of(cls, source: Array, target: Array, label: Array, states: int) -> _Direction:
        group = Groups.by(target)
        place = np.full(states, -1, dtype=np.int64)
        place[group.owner] = np.arange(len(group.owner))
        place[place < 0] = np.arange(len(group.owner), states)
        return cls(place, place[source[group.order]], label[group.order], group.first)

    def trace(self, found: Array, weights: Array, final: Array) -> tuple[Array, float]:
        """The sets [L] of the best path, read backwards from scores [L+1,Q], and its score."""
        ends = self.place[final]
        at = int(ends[found[-1, ends].argmax()])
        score = float(found[-1, at])
        assert score > NEVER / 2, "the canvas has no valid string"
        bounds = [*self.first.tolist(), len(self.source)]
        labels = np.zeros(len(weights), dtype=np.int64)
        for position in range(len(weights) - 1, -1, -1):
            low, high = bounds[at], bounds[at + 1]
            edge = low
            if high - low > 1:
                label = self.label[low:high]
                edge += int((found[position].take(self.source[low:high]) + weights[position].take(label)).argmax())
            labels[position], at = self.label[edge], int(self.source[edge])
        return labels, score


@dataclass(frozen=True, eq=False)
class _Merged:
    """Both directions as one table, so that one call works on both: [ahead's G, back's G, ahead's rest, back's rest].

    ahead, back    int64 [Q]   the place of each state in either direction
    source, label  int64 [2E]  labels of the way back are offset by U
    first          int64 [G]   of both; the first `half` places are arrivals ahead
    """

    ahead: Array
    back: Array
    source: Array
    label: Array
    first: Array
    half: int

    @classmethod
    def of(cls, ahead: _Direction, back: _Direction, sets: int) -> _Merged:
        half, other, states = len(ahead.first), len(back.first), len(ahead.place)
        shift = np.arange(states)
        from_ahead = np.where(shift < half, shift, shift + other)
        from_back = np.where(shift < other, shift + half, shift + states)
        return cls(
            ahead=from_ahead[ahead.place],
            back=from_back[back.place],
            source=np.concatenate([from_ahead[ahead.source], from_back[back.source]]),
            label=np.concatenate([ahead.label, back.label + sets]),
            first=np.concatenate([ahead.first, back.first + len(ahead.source)]),
            half=half,
        )
