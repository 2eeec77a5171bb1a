"""The items of an array and their commas; some items may have to obey more than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import prod
from typing import TypeAlias, TypeVar

from redraft.constraints.automaton import Budget
from redraft.constraints.expression import EMPTY, NOTHING, Expression, graph, joined, optional, repeat, seq
from redraft.constraints.json_schema.shapes import Array, Node, Some, item_of

ANY_ORDER = 3
"""Up to this many conditions may be met in any order; more only in one fixed order, unless one has a maximum."""
Conditions: TypeAlias = tuple[int, ...]
"""Some of an array's conditions, by number."""
Counts: TypeAlias = tuple[int, ...]
"""How many items meet each condition, counted as far as it matters."""
State = TypeVar("State")


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """`prefix` are the first items, `rest` any other; `write` gives the expression of what obeys one node and
    fails every schema of another."""

    shape: Array
    prefix: Sequence[Expression]
    rest: Expression
    comma: Expression
    most: int | None
    write: Callable[[Node, Node], Expression]
    budget: Budget

    def expression(self) -> Expression:
        """All of the items."""
        return self._told_apart() if self.shape.some else self._alike()

    def _told_apart(self) -> Expression:
        """A graph whose states are how many items there are and how many of them meet each condition."""
        some, last = self.shape.some, self._last()
        self.budget.check(last * ways(some), "The schema")

        def after(state: tuple[int, Counts]) -> Iterator[tuple[Expression, tuple[int, Counts]]]:
            place, counts = state
            for met in self._met(counts, place) if self.most is None or place < last else ():
                yield self._item(place, met), (min(place + 1, last), _counting(counts, met))

        return _graph((0, (0,) * len(some)), after, lambda state: _enough(self.shape, *state), self.budget)

    def chosen(self, values: Sequence[tuple[Expression, Conditions]]) -> Expression:
        """Some of the values, each once and in their order; with each value come the conditions that it meets."""
        some, last = self.shape.some, self._last()

        def after(state: tuple[int, int, Counts]) -> Iterator[tuple[Expression, tuple[int, int, Counts]]]:
            number, place, counts = state
            if number == len(values):
                return
            yield EMPTY, (number + 1, place, counts)
            value, obeyed = values[number]
            met = tuple(
                i for i in obeyed if some[i].holds(place) and (some[i].most is not None or counts[i] < some[i].least)
            )
            if (self.most is None or place < last) and all(counts[i] < some[i].counted for i in met):
                follows = number + 1, min(place + 1, last), _counting(counts, met)
                yield seq(self.comma if place else EMPTY, value), follows

        start = 0, 0, (0,) * len(some)
        return _graph(start, after, lambda state: _enough(self.shape, *state[1:]), self.budget)

    def _met(self, counts: Counts, place: int) -> Iterator[Conditions]:
        """The sets of conditions that the item at a place may be counted for, beginning with the empty set."""
        some = self.shape.some
        missing = tuple(i for i in _in_order(some) if counts[i] < some[i].least)
        here = tuple(i for i, one in enumerate(some) if one.holds(place) and counts[i] < one.counted)
        if len(missing) <= ANY_ORDER or _limited(some):
            return chain.from_iterable(combinations(here, count) for count in range(len(here) + 1))
        return (missing[:count] for count in range(len(missing) + 1) if set(missing[:count]) <= set(here))

    def _last(self) -> int:
        """The last place that is told apart: the maximum, or where all items are alike and the minimum is reached."""
        ends = [end for some in self.shape.some for end in (some.start, some.stop) if end is not None]
        return max(1, len(self.shape.prefix), self.shape.least, *ends) if self.most is None else self.most

    def _item(self, place: int, met: Conditions = ()) -> Expression:
        """The item at a place that meets some conditions and fails the others that have a maximum, after its comma."""
        plain = self.prefix[place] if place < len(self.prefix) else self.rest
        others = [
            raw
            for i, one in enumerate(self.shape.some)
            if i not in met and one.most is not None and one.holds(place)
            for raw in one.node
        ]
        if (met or others) and plain is not NOTHING:
            more = [raw for i in met for raw in self.shape.some[i].node]
            plain = self.write((*item_of(self.shape, place), *more), tuple(others))
        return seq(self.comma if place else EMPTY, plain)

    def _alike(self) -> Expression:
        """Items without conditions."""
        least, most, count = self.shape.least, self.most, len(self.prefix)
        if count == 0:
            return joined(self.rest, self.comma, least, most)
        more = repeat(seq(self.comma, self.rest), max(least - count, 0), None if most is None else max(most - count, 0))
        tail = more if most is None or most > count else (EMPTY if least <= count else NOTHING)
        for index in range(count - 1, -1, -1):
            whole = NOTHING if most is not None and index >= most else seq(self._item(index), tail)
            tail = whole if index < least else optional(whole)
        return tail


def ways(some: Sequence[Some]) -> int:
    """Roughly how many variants of an item are written at one place if it may meet these conditions."""
    counted = [one.counted for one in some if one.counted]
    if len(counted) <= ANY_ORDER or _limited(some):
        return prod(2 * count + 1 for count in counted)
    return (sum(counted) + 1) * (sum(counted) + 2) // 2


def _limited(some: Sequence[Some]) -> bool:
    """Whether a condition has a maximum other than 0, so that items that meet it are told from those that do not."""
    return any(one.most for one in some)


def _in_order(some: Sequence[Some]) -> Conditions:
    """All conditions, in the order in which they have to be met."""
    return tuple(sorted(range(len(some)), key=lambda i: (some[i].stop is None, some[i].stop, some[i].start)))


def _counting(counts: Counts, met: Conditions) -> Counts:
    """The counts after another item, which meets some conditions."""
    return tuple(count + (i in met) for i, count in enumerate(counts))


def _enough(shape: Array, place: int, counts: Counts) -> bool:
    """Whether an array may end after this many items."""
    return place >= shape.least and all(count >= one.least for count, one in zip(counts, shape.some, strict=True))


def _graph(
    start: State, after: Callable[[State], Iterator[tuple[Expression, State]]], ends: Callable[[State], bool],
    budget: Budget,
) -> Expression:  # fmt: skip
    """All paths from a state to one of the ends; `after` gives the parts that lead from a state to others."""
    known, waiting = {start: 0}, [start]
    edges: list[tuple[int, Expression, int]] = []
    while waiting:
        if len(known) % 128 == 0:
            budget.check(len(known), "The schema")
        here = waiting.pop()
        for part, state in after(here):
            if part is NOTHING:
                continue
            if state not in known:
                known[state] = len(known)
                waiting.append(state)
            edges.append((known[here], part, known[state]))
    return graph(edges, [number for state, number in known.items() if ends(state)])
