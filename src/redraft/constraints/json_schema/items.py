"""The items of an array between their commas; some of them may have to obey more than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from redraft.constraints.expression import EMPTY, NOTHING, Expression, alt, joined, optional, repeat, seq
from redraft.constraints.json_schema.shapes import Array, Node, Some, item_of

MOST_CONDITIONS = 3
"""Of so many conditions each may be met by another item; of more, by one that meets them all."""
Conditions = tuple[Some, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """`prefix` are the first items, `rest` any other; `write` gives the expression of a node."""

    shape: Array
    prefix: Sequence[Expression]
    rest: Expression
    comma: Expression
    most: int | None
    write: Callable[[Node], Expression]

    def expression(self) -> Expression:
        """All of the items."""
        return self._after(0, _joint(self.shape.some))

    def _after(self, place: int, missing: Conditions) -> Expression:
        """What may follow the first `place` items if none of these meets the `missing` conditions."""
        if not missing:
            return self._free(place)
        alike = self._alike(missing)
        end = alike if self.most is None else self.most
        found = [
            seq(self._run(place, at), self._item(at, met), self._after(at + 1, _less(missing, met)))
            for at in range(place, end) for met in _met(missing, at)
        ]  # fmt: skip
        if self.most is None:
            at = max(place, alike)
            before = seq(self._run(place, at), repeat(self._item(at, ())))
            found += [
                seq(before, self._item(at, met), self._after(at, _less(missing, met))) for met in _met(missing, at)
            ]
        return alt(*found)

    def _alike(self, missing: Conditions) -> int:
        """The place from which on one item is like another."""
        ends = [end for some in missing for end in (some.start, some.stop) if end is not None]
        return max(1, len(self.shape.prefix), self.shape.least, *ends)

    def _item(self, place: int, met: Conditions) -> Expression:
        """The item at a place that meets some conditions, with the comma before it."""
        plain = self.prefix[place] if place < len(self.prefix) else self.rest
        if met and plain is not NOTHING:
            plain = self.write(item_of(self.shape, place) + tuple(raw for some in met for raw in some.node))
        return seq(self.comma if place else EMPTY, plain)

    def _run(self, start: int, stop: int) -> Expression:
        """All items from one place to before another."""
        first = max(start, min(stop, max(len(self.prefix), 1)))
        parts = [self._item(place, ()) for place in range(start, first)]
        return seq(*parts, repeat(self._item(first, ()), stop - first, stop - first))

    def _free(self, place: int) -> Expression:
        """What may follow the first `place` items where there are no conditions."""
        least, most, count = self.shape.least, self.most, len(self.prefix)
        if place == count == 0:
            return joined(self.rest, self.comma, least, most)
        known = max(count, place)
        more = repeat(seq(self.comma, self.rest), max(least - known, 0), None if most is None else max(most - known, 0))
        tail = more if most is None or most > known else (EMPTY if least <= known else NOTHING)
        for index in range(count - 1, place - 1, -1):
            whole = NOTHING if most is not None and index >= most else seq(self._item(index, ()), tail)
            tail = whole if index < least else optional(whole)
        return tail


def _joint(some: Conditions) -> Conditions:
    """The conditions, as one where they are many."""
    if len(some) <= MOST_CONDITIONS:
        return some
    stops = [one.stop for one in some if one.stop is not None]
    node = tuple(raw for one in some for raw in one.node)
    return (Some(start=max(one.start for one in some), stop=min(stops, default=None), node=node),)


def _met(missing: Conditions, place: int) -> Iterator[Conditions]:
    """The conditions that the item at a place may meet together: one or more."""
    open_ = [some for some in missing if some.start <= place and (some.stop is None or place < some.stop)]
    return chain.from_iterable(combinations(open_, count) for count in range(1, len(open_) + 1))


def _less(missing: Conditions, met: Conditions) -> Conditions:
    return tuple(some for some in missing if not any(some is one for one in met))
