"""What a schema allows, by type: a schema becomes a list of shapes, any one of which will do.

A shape keeps the schemas of its parts unread (a `Node` is a set of schemas that all apply). So two shapes can be
intersected without following references, and recursive schemas stay finite until they are written out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

from redraft.constraints.json_schema.numbers import INTEGER_DIGITS, UNBOUNDED, Bounds, exact

Raw: TypeAlias = "Mapping[str, Any] | bool"
Node: TypeAlias = "tuple[Raw, ...]"
"""Schemas that all apply; the empty one allows everything."""


@dataclass(frozen=True, slots=True)
class Values:
    """One of these JSON values."""

    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """`integer`: it must be an integer; `fraction`: it must not be one."""

    bounds: Bounds = UNBOUNDED
    integer: bool = False
    fraction: bool = False
    multiples: tuple[Decimal, ...] = ()
    excluded: tuple[Decimal, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class String:
    """`patterns` are (pattern, whether it must match)."""

    least: int = 0
    most: int | None = None
    patterns: tuple[tuple[str, bool], ...] = ()
    formats: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """Which members or items some schema has evaluated: `unevaluated…` is about the others.

    contained  an item that obeys one of these schemas counts as evaluated
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    items: int = 0
    contained: Node = ()
    everything: bool = False

    def __or__(self, other: Evaluated) -> Evaluated:
        return Evaluated(names=self.names | other.names, patterns=self.patterns | other.patterns,
                    items=max(self.items, other.items), contained=self.contained + other.contained,
                    everything=self.everything or other.everything)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Some:
    """Of the items from place `start` up to but not including `stop`, at least `least` and at most `most` obey `node`.

    If there is a `most`, the node is a single schema.
    """

    node: Node
    start: int = 0
    stop: int | None = None
    least: int = 1
    most: int | None = None

    def holds(self, place: int) -> bool:
        """Whether the condition applies to the item at a place."""
        return self.start <= place and (self.stop is None or place < self.stop)

    def allows(self, count: int) -> bool:
        """Whether this many items may obey the node."""
        return count >= self.least and (self.most is None or count <= self.most)

    @property
    def counted(self) -> int:
        """How far items that obey the node are counted."""
        return self.least if self.most is None else self.most


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """`prefix` are the schemas of the first items, `items` those of the others."""

    prefix: tuple[Node, ...] = ()
    items: Node = ()
    least: int = 0
    most: int | None = None
    unique: bool = False
    some: tuple[Some, ...] = ()
    evaluated: Evaluated = Evaluated()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """What one schema requires of members that it does not declare by name."""

    patterns: tuple[tuple[str, Raw], ...]
    extra: Raw


@dataclass(frozen=True, kw_only=True, slots=True)
class Object:
    """`names` applies to every name; `absent` names may not occur."""

    properties: tuple[tuple[str, Node], ...] = ()
    required: tuple[str, ...] = ()
    rests: tuple[Rest, ...] = ()
    names: Node = ()
    absent: frozenset[str] = frozenset()
    least: int = 0
    most: int | None = None
    evaluated: Evaluated = Evaluated()


Shape: TypeAlias = Values | Number | String | Array | Object

KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})
"""The types of JSON values; an integer is a number."""
MOST_LISTED = 64
"""Integers between two bounds are listed if these lie less than this apart."""
ANYTHING: tuple[Shape, ...] = (Values((None,)), Values((True, False)), Number(), String(), Array(), Object())


def kind_of(value: Any) -> str:
    """The type of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
        case _:
            return "number"


def kinds(shape: Shape) -> set[str]:
    """The types of what a shape allows."""
    if isinstance(shape, Values):
        return {kind_of(value) for value in shape.values}
    return {type(shape).__name__.lower()}


def canonical(value: Any) -> str:
    """Equal texts for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value)


def unequal(values: Iterable[Any]) -> list[Any]:
    """The JSON values without repetitions; of equal ones the first, as it is written."""
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(canonical(value), value)
    return list(found.values())


def same(a: object, b: object) -> bool:
    """Whether two shapes, or parts of them, are equal as JSON; in Python 1 equals true."""
    return a == b and repr(a) == repr(b)


def meet_numbers(a: Number, b: Number) -> Number | None:
    """What both allow."""
    bounds = a.bounds.both(b.bounds)
    integer, fraction = a.integer or b.integer, a.fraction or b.fraction
    if bounds.empty or (integer and fraction):
        return None
    return Number(
        bounds=bounds,
        integer=integer,
        fraction=fraction,
        multiples=tuple(dict.fromkeys(a.multiples + b.multiples)),
        excluded=tuple(dict.fromkeys(a.excluded + b.excluded)),
    )


def meet_strings(a: String, b: String) -> String | None:
    """What both allow."""
    least, most = max(a.least, b.least), lowest(a.most, b.most)
    if most is not None and most < least:
        return None
    return String(
        least=least,
        most=most,
        patterns=tuple(dict.fromkeys(a.patterns + b.patterns)),
        formats=tuple(dict.fromkeys(a.formats + b.formats)),
        excluded=tuple(dict.fromkeys(a.excluded + b.excluded)),
    )


def meet_arrays(a: Array, b: Array) -> Array | None:
    """What both allow."""
    least, most, some = max(a.least, b.least), lowest(a.most, b.most), _meet_some(a.some + b.some)
    if (most is not None and most < least) or any(one.least > one.counted for one in some):
        return None
    length = max(len(a.prefix), len(b.prefix))
    prefix = tuple(distinct(item_of(a, i) + item_of(b, i)) for i in range(length))
    return Array(prefix=prefix, items=distinct(a.items + b.items), least=least, most=most, unique=a.unique or b.unique,
                 some=some, evaluated=a.evaluated | b.evaluated)  # fmt: skip


def with_some(array: Array, some: Iterable[Some]) -> Array | None:
    """An array whose items meet some conditions; None if they cannot."""
    least, most = array.least, array.most
    kept: list[Some] = []
    for one in some:
        if one.node in ((True,), ({},)) and one.start == 0 and one.stop is None:
            least, most = max(least, one.least), lowest(most, one.most)
        elif one.least and (one.node == (False,) or one.least > one.counted):
            return None
        elif one.counted or one.most is not None:
            kept.append(one)
            least = max(least, one.start + 1) if one.least else least
    if most is not None and max(least, *(one.start + one.least for one in kept if one.least), 0) > most:
        return None
    return replace(array, least=least, most=most, some=tuple(kept))


def without(shape: Shape, values: Sequence[Any]) -> Shape | None:
    """The shape without some scalars; None if nothing is left."""
    texts = set(map(canonical, values))
    match shape:
        case Values():
            kept = tuple(value for value in shape.values if canonical(value) not in texts)
            return Values(kept) if kept else None
        case String():
            strings = tuple(value for value in values if isinstance(value, str))
            return meet_strings(shape, String(excluded=strings))
        case Number():
            numbers = tuple(exact(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool))
            return meet_numbers(shape, Number(excluded=numbers))
        case Array() | Object():
            return shape


def _meet_some(some: Iterable[Some]) -> tuple[Some, ...]:
    """The same conditions, with those on the same schemas merged."""
    found: dict[tuple[Any, ...], Some] = {}
    for one in some:
        key = (one.start, one.stop, *map(id, one.node))
        other = found.get(key, one)
        found[key] = replace(one, least=max(one.least, other.least), most=lowest(one.most, other.most))
    return tuple(found.values())


def distinct(node: Node) -> Node:
    """Schemas without repetitions."""
    found: list[Raw] = []
    for raw in node:
        if not any(raw is other for other in found) and raw is not True:
            found.append(raw)
    return tuple(found)


def key_of(node: Node) -> tuple[int, ...]:
    """What tells schemas from others, whatever their order."""
    return tuple(sorted(map(id, node)))


def fits_number(value: Any, shape: Number) -> bool:
    """Whether a JSON value is a number that a shape allows."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    number = exact(value)
    whole = number == number.to_integral_value()
    if (shape.integer and not whole) or (shape.fraction and whole):
        return False
    return shape.bounds.hold(number) and number not in shape.excluded and all(number % m == 0 for m in shape.multiples)


def listed(shape: Shape) -> Sequence[Any] | None:
    """The JSON values that a shape allows, if they are given or are few integers; None for any other shape."""
    if isinstance(shape, Values):
        return shape.values
    if not isinstance(shape, Number) or not shape.integer:
        return None
    low, high = shape.bounds.low, shape.bounds.high
    if low is None or high is None or high - low >= MOST_LISTED or max(abs(low), abs(high)) >= 10**INTEGER_DIGITS:
        return None
    return [value for value in range(math.ceil(low), math.floor(high) + 1) if fits_number(value, shape)]


def distinct_rests(rests: tuple[Rest, ...]) -> tuple[Rest, ...]:
    """Rests without repetitions."""
    found: list[Rest] = []
    for rest in rests:
        if not among(rest, found):
            found.append(rest)
    return tuple(found)


def possible(shape: Object) -> bool:
    """Whether its limits and its required members leave room for any object."""
    if shape.absent & set(shape.required):
        return False
    return shape.most is None or shape.most >= max(shape.least, len(shape.required))


def item_of(array: Array, index: int) -> Node:
    """The schemas of the item at `index`."""
    return array.prefix[index] if index < len(array.prefix) else array.items


def closed(shape: Object) -> bool:
    """Whether undeclared members are forbidden."""
    return shape.most == 0 or any(rest.extra is False and not rest.patterns for rest in shape.rests)


def lowest(a: int | None, b: int | None) -> int | None:
    """The smaller of two limits; None means no limit."""
    return b if a is None else a if b is None else min(a, b)


def within(count: int, least: int, most: int | None) -> bool:
    """Whether a number of things keeps to two limits."""
    return count >= least and (most is None or count <= most)


def unseen(shape: Shape) -> Shape:
    """The shape as if its schema mentioned no members or items, as under `not`."""
    return replace(shape, evaluated=Evaluated()) if isinstance(shape, Array | Object) else shape


def outline_of(shape: Shape) -> Hashable:
    """Something that is equal for equal shapes, to look for these among many."""
    if not isinstance(shape, Object):
        return type(shape)
    properties = tuple((name, len(node)) for name, node in shape.properties)
    return properties, shape.required, shape.absent, shape.least, shape.most


def among(item: object, found: Iterable[object]) -> bool:
    """Whether an equal shape, or part of one, is in `found`."""
    return any(same(item, other) for other in found)
