"""The items of an array and their commas; some items may have to obey more than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TypeAlias

from redraft.constraints.automaton import Budget
from redraft.constraints.expression import EMPTY, NOTHING, Expression, graph, joined, optional, repeat, seq
from redraft.constraints.json_schema.shapes import Array, Node, Some, item_of

ANY_ORDER = 3
"""Up to this many conditions may be met in any order; more of them only in one fixed order."""
Conditions: TypeAlias = tuple[int, ...]
"""Some of an array's conditions, by number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """`prefix` are the first items, `rest` any other; `write` gives the expression of a node."""

    shape: Array
    prefix: Sequence[Expression]
    rest: Expression
    comma: Expression
    most: int | None
    write: Callable[[Node], Expression]
    budget: Budget

    def expression(self) -> Expression:
        """All of the items."""
        return self._told_apart() if self.shape.some else self._alike()

    def _told_apart(self) -> Expression:
        """A graph whose states are how many items there are and which conditions none of them meets yet."""
        last = self._place_of_more() if self.most is None else self.most
        self.budget.check(last * ways(len(self.shape.some)), "The schema")
        known: dict[tuple[int, Conditions], int] = {(0, _in_order(self.shape.some)): 0}
        edges: list[tuple[int, Expression, int]] = []
        waiting = list(known)
        while waiting:
            place, missing = here = waiting.pop()
            if place == last and self.most is not None:
                continue
            for met in chain([()], self._met(missing, place)):
                after = min(place + 1, last), tuple(one for one in missing if one not in met)
                if after not in known:
                    known[after] = len(known)
                    waiting.append(after)
                edges.append((known[here], self._item(place, met), known[after]))
        ends = [number for (place, missing), number in known.items() if not missing and place >= self.shape.least]
        return graph(edges, ends)

    def _met(self, missing: Conditions, place: int) -> Iterator[Conditions]:
        """The sets of one or more conditions that the item at a place may meet."""
        here = tuple(one for one in missing if self.shape.some[one].holds(place))
        if len(missing) <= ANY_ORDER:
            return chain.from_iterable(combinations(here, count) for count in range(1, len(here) + 1))
        return (missing[:count] for count in range(1, len(here) + 1) if missing[:count] == here[:count])

    def _place_of_more(self) -> int:
        """The place from which on all items are alike and the minimum count is reached."""
        ends = [end for some in self.shape.some for end in (some.start, some.stop) if end is not None]
        return max(1, len(self.shape.prefix), self.shape.least, *ends)

    def _item(self, place: int, met: Conditions = ()) -> Expression:
        """The item at a place that meets some conditions, with the comma before it."""
        plain = self.prefix[place] if place < len(self.prefix) else self.rest
        if met and plain is not NOTHING:
            more = (raw for one in met for raw in self.shape.some[one].node)
            plain = self.write((*item_of(self.shape, place), *more))
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


def ways(conditions: int) -> int:
    """Roughly how many variants of an item are written at one place if it may meet this many conditions."""
    return 3**conditions if conditions <= ANY_ORDER else (conditions + 1) * (conditions + 2) // 2


def _in_order(some: Sequence[Some]) -> Conditions:
    """All conditions, in the order in which they have to be met."""
    return tuple(sorted(range(len(some)), key=lambda i: (some[i].stop is None, some[i].stop, some[i].start)))
