"""Shapes to expressions: JSON text, spelled out.

JSON is written compactly, with at most one space after a comma or colon, and members in the order in which the schema
declares them. The language is a subset of what the schema allows, never more: if a schema declares members, undeclared
ones are left out; rare spellings (`\\u0041`, exponents within bounds) are not used; recursion ends at a fixed depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias

from redraft.constraints.automaton import Budget, TooManyStatesError, product
from redraft.constraints.expression import (
    ANY,
    NOTHING,
    Expression,
    Machine,
    alt,
    chars,
    fields,
    joined,
    optional,
    repeat,
    seq,
    text,
)
from redraft.constraints.json_schema.items import Items, ways
from redraft.constraints.json_schema.multiples import common, multiples, places_of
from redraft.constraints.json_schema.numbers import DIGIT, number
from redraft.constraints.json_schema.patterns import FEW_NAMES
from redraft.constraints.json_schema.reader import Reader
from redraft.constraints.json_schema.recursion import Recursion
from redraft.constraints.json_schema.shapes import (
    MOST_LISTED,
    Array,
    Node,
    Number,
    Object,
    Shape,
    String,
    Values,
    closed,
    item_of,
    key_of,
    listed,
    unequal,
)
from redraft.constraints.json_schema.strings import Strings
from redraft.constraints.json_schema.style import EXACT_COUNT, Style
from redraft.constraints.spelling import compile_codes
from redraft.errors import ConstraintError

MAX_PARTS = 6_000
"""How many schemas of one document are unfolded, including repetitions."""
MAX_DEPTH = 40
"""How deep schemas may be nested."""
_DECLARED_ALONE = "can be enforced only for declared members"
_LISTED_ALONE = (
    "can be enforced only for items of an enum, or for integers whose minimum and maximum leave at most "
    f"{MOST_LISTED}; leave it out, or name an enum"
)


class TooLarge(Exception):
    """The schema unfolds into too many parts; never leaves `compile_schema`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfolding:
    """How far a schema is unfolded where it is infinite or its limit is too high.

    recursion  how often schemas may occur inside themselves, counted together where they contain each other
    anything   the same for a schema that allows everything
    string     characters of a string whose `maxLength` is higher than that
    counted    states that the items of an array with `maxItems`, or the members of an object with `maxProperties`,
               may take together
    repeated   this many of them may be written in any case
    whole      whether a string keeps its whole limit if it is longer than `string` even where it is shortest
    """

    recursion: int
    anything: int
    string: int
    counted: int
    repeated: int = 1
    whole: bool = True


Key: TypeAlias = tuple[int, ...]
"""Which schemas a node holds; empty for one that allows everything."""


class Compiler:
    """Writes the nodes of one document."""

    def __init__(
        self, reader: Reader, strings: Strings, budget: Budget, unfolding: Unfolding, style: Style,
        recursion: Recursion[Key],
    ) -> None:  # fmt: skip
        self._reader, self._strings, self._budget = reader, strings, budget
        self._unfolding, self._style, self._recursion = unfolding, style, recursion
        self._group, self._left = -2, 0
        self._known: dict[tuple[Key, int], tuple[Expression, int]] = {}
        self._inside = list[Node]()
        self._deepest, self._parts = 0, 0
        self._obstacle: tuple[str, Node] = "", ()
        self.lack = ""
        """The first required member for which nothing is allowed, as a sentence without its full stop."""
        self.lowered = 0
        """The smallest value to which a limit on items or members was lowered; 0 if none was."""

    def counting_on(self) -> Compiler:
        """A compiler that allows twice as many items or members where the lowest limit was set."""
        return self._with(replace(self._unfolding, repeated=2 * self.lowered))

    def going_on(self) -> Compiler:
        """A compiler that unfolds further, as nothing was found; raises `ConstraintError` if there is no further."""
        recursion = self._unfolding.recursion
        if recursion < len(self._recursion.turns):
            return self._with(replace(self._unfolding, recursion=2 * recursion + 1))
        narrowed = self._reader.narrowed
        far = f", as far as the keyword {narrowed!r} can be enforced" if narrowed else ""
        raise ConstraintError(self.obstacle or f"{self.lack or 'The schema allows no JSON at all'}{far}.")

    def _with(self, unfolding: Unfolding) -> Compiler:
        return Compiler(self._reader, self._strings, self._budget, unfolding, self._style, self._recursion)

    def node(self, node: Node) -> Expression:
        """Texts that obey all schemas of a node."""
        node = self._reader.plain(node)
        key, outside = key_of(node), (self._group, self._left)
        self._enter(key)
        try:
            if self._left < 0:
                return NOTHING
            if self._group < 0:
                self._hindered("The schema combines too many schemas that contain themselves.")
                return NOTHING
            if len(self._inside) >= MAX_DEPTH:
                self._hindered(f"The schema is nested more than {MAX_DEPTH} levels deep.")
                return NOTHING
            expression, height = self._recalled(key) or self._written(key, node)
            self._deepest = max(self._deepest, len(self._inside) + height)
            return expression
        finally:
            self._group, self._left = outside

    def _enter(self, key: Key) -> None:
        """Count on the way into a node: how many more turns there may be in this group of parts."""
        group = self._recursion.group.get(key, -1)
        if group != self._group:
            self._group = group
            self._left = 1 + (self._unfolding.recursion if key else self._unfolding.anything)
        self._left -= key in self._recursion.turns

    def _recalled(self, key: Key) -> tuple[Expression, int] | None:
        known = self._known.get((key, self._left))
        return known if known and len(self._inside) + known[1] <= MAX_DEPTH else None

    def _written(self, key: Key, node: Node) -> tuple[Expression, int]:
        """The expression of a node, and how deep nodes are nested in it."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge
        self._budget.check(0, "The schema")
        outside, self._deepest = self._deepest, len(self._inside)
        self._inside.append(node)
        try:
            with self._reader.document.at(node):
                expression = self._any_of(self._reader.shapes(node))
        finally:
            self._inside.pop()
        known = self._known[key, self._left] = expression, self._deepest - len(self._inside)
        self._deepest = max(outside, self._deepest)
        return known

    @property
    def obstacle(self) -> str:
        """Why something that the schema allows is not written, as a sentence; empty if there is nothing such."""
        return self._reader.document.placed(*self._obstacle)

    def _hindered(self, sentence: str) -> None:
        """Remember why something at this place is not written."""
        self._obstacle = sentence, self._inside[-1]

    def _any_of(self, shapes: list[Shape]) -> Expression:
        """Texts that obey at least one shape."""
        reader = self._reader
        objects = [shape for shape in shapes if isinstance(shape, Object) and reader.has_required(shape)]
        if objects and all(reader.lacks_members(shape) and reader.has_unknown_names(shape) for shape in objects):
            reader.refuse("minProperties", _DECLARED_ALONE)
        return alt(*map(self._shape, shapes))

    def _shape(self, shape: Shape) -> Expression:
        match shape:
            case Values():
                return self._values(shape)
            case Number():
                return self._number(shape)
            case String():
                return self._string(shape)
            case Array():
                return self._array(shape)
            case Object():
                return self._object(shape)

    def _string(self, shape: String) -> Expression:
        found = self._strings.quoted(shape, self._unfolding.string, whole=self._unfolding.whole)
        if found is NOTHING:
            self._hindered(self._strings.obstacle(shape))
        return found

    def _values(self, shape: Values) -> Expression:
        found = alt(*(self._style.value(value) for value in shape.values))
        if found is NOTHING and shape.values:
            self._hindered(f"The schema asks for {shape.values[0]!r:.80}, which cannot be written here.")
        return found

    def _number(self, shape: Number) -> Expression:
        subtracted = bool(shape.excluded) or shape.fraction
        if shape.multiples:
            found = self._multiples(shape)
        else:
            found = number(shape.bounds, integer=shape.integer, exact=subtracted)
        if not subtracted or found is NOTHING:
            return found
        unwanted = alt(_equal_to(shape.excluded), _WHOLE if shape.fraction else NOTHING)
        dfa = compile_codes(found, self._budget)
        dfa = product(dfa, compile_codes(unwanted, self._budget), self._budget, subtract=True)
        return NOTHING if dfa.empty else Machine(dfa, None)

    def _multiples(self, shape: Number) -> Expression:
        """Numbers within bounds that obey every `multipleOf`."""
        bounds, step = shape.bounds, common((*shape.multiples, Decimal(1)) if shape.integer else shape.multiples)
        places = places_of(step)
        found = number(bounds, integer=not places, exact=True, fraction=places)
        if step == 1:
            return found
        try:
            dfa = product(compile_codes(found, self._budget), multiples(step, self._budget), self._budget)
        except TooManyStatesError:
            self._reader.refuse("multipleOf", f"asks for multiples of {step}, which take too many states")
            return found
        if dfa.empty and bounds.hold_multiple(step):
            self._reader.refuse("multipleOf", f"asks for multiples of {step}, which have too many digits here")
            return number(bounds, integer=False, exact=True)
        return NOTHING if dfa.empty else Machine(dfa, None)

    def _array(self, shape: Array) -> Expression:
        if shape.unique and (shape.most is None or shape.most > 1):
            return self._distinct(shape)
        shape = self._reader.without_idle(shape)
        if shape.most is not None and shape.most < shape.least:
            return NOTHING
        prefix = []
        for index in range(len(shape.prefix)):
            prefix.append(self.node(item_of(shape, index)))
            if prefix[-1] is NOTHING:
                break
        rest = self.node(shape.items) if len(prefix) == len(shape.prefix) and shape.most != len(prefix) else NOTHING
        size = seq(self._style.comma, rest).size * ways(shape.some)
        least = max(shape.least, len(prefix)) + sum(some.least for some in shape.some)  # each may need separate items
        most = self._affordable(least, shape.most, size)
        return seq(text("["), self._items(shape, prefix, rest, most).expression(), text("]"))

    def _items(self, shape: Array, prefix: list[Expression], rest: Expression, most: int | None) -> Items:
        return Items(shape=shape, prefix=prefix, rest=rest, comma=self._style.comma, most=most, write=self._item,
                     budget=self._budget)  # fmt: skip

    def _item(self, node: Node, others: Node) -> Expression:
        """Texts that obey `node` and none of `others`."""
        return self.node(self._reader.failing(node, others) if others else node)

    def _affordable(self, least: int, most: int | None, size: int) -> int | None:
        """How often a part of some size may be written: `most`, or as often as the automaton can afford to count."""
        if most is None or size == 0:
            return most
        affordable = max(least, self._unfolding.counted // size, self._unfolding.repeated)
        if affordable < most:
            self.lowered = min(affordable, self.lowered or affordable)
        return min(most, affordable)

    def _fields(self, items: Iterable[tuple[Expression, bool]], least: int, most: int | None) -> Expression:
        """`least` to `most` items in order, like `expression.fields`.

        Where counting takes too many states: a small number of any of them, or any number of the first ones, which need
        no counting.
        """
        items, comma = tuple(items), self._style.comma
        whole, uncounted = fields(items, comma, least, most), fields(items, comma)
        if most is None or whole.size <= max(uncounted.size, self._unfolding.counted):
            return whole
        required = sum(needed for _, needed in items)
        few = self._affordable(least - required, most - required, uncounted.size) or 0
        last = set([number for number, (_, needed) in enumerate(items) if not needed][most - required :])
        first = fields((item for number, item in enumerate(items) if number not in last), comma, least)
        part = alt(fields(items, comma, least, required + few), first)
        return part if part.size < whole.size else whole

    def _distinct(self, shape: Array) -> Expression:
        """An array without repetitions: the listed values, in their order."""
        lists = [listed(found) for found in self._reader.shapes(shape.items)]
        values = unequal(value for found in lists if found is not None for value in found)
        if shape.prefix or None in lists:
            self._reader.refuse("uniqueItems", _LISTED_ALONE)
            return self._array(replace(shape, unique=False))
        if shape.some:
            met = [tuple(i for i, some in enumerate(shape.some) if self._reader.meeting([v], some)) for v in values]
            found = list(zip(map(self._style.value, values), met, strict=True))
            return seq(text("["), self._items(shape, [], NOTHING, shape.most).chosen(found), text("]"))
        items = [(self._style.value(value), False) for value in values]
        return seq(text("["), self._fields(items, shape.least, shape.most), text("]"))

    def _object(self, shape: Object) -> Expression:
        members = self._members(shape)
        if members is None:
            return NOTHING
        if members or closed(shape):
            return self._listed(shape, members)
        return self._mapping(shape)

    def _members(self, shape: Object) -> list[tuple[Expression, bool]] | None:
        """Declared members and whether they are required; None if a required one cannot be written."""
        required = set(shape.required)
        found = []
        for name in self._style.ordered(self._names(shape)):
            allowed = name not in shape.absent and (not shape.names or self._reader.fits(name, shape.names))
            value = self.node(self._reader.node_of(shape, name)) if allowed else NOTHING
            member = seq(self._style.key(name), self._style.colon, value)
            if member is not NOTHING:
                found.append((member, name in required))
            elif name in required:
                if value is not NOTHING:
                    self._hindered(f"The schema asks for a member named {name!r:.80}, which cannot be written here.")
                sentence = f"The schema requires a member named {name!r:.80}, for which it allows no value."
                self.lack = self.lack or self._reader.document.placed(sentence, self._inside[-1]).removesuffix(".")
                return None
        return found

    def _names(self, shape: Object) -> list[str]:
        """Declared members; those that `propertyNames` lists, too, if they are few or `minProperties` is above 1."""
        listed = self._reader.listed_names(shape) or []
        counted = listed if shape.least > 1 or len(listed) <= FEW_NAMES else []
        return list(dict.fromkeys([*(name for name, _ in shape.properties), *shape.required, *counted]))

    def _listed(self, shape: Object, members: list[tuple[Expression, bool]]) -> Expression:
        least = shape.least
        if len(members) < least and self._reader.has_unknown_names(shape):
            self._hindered(f"The schema keyword 'minProperties' {_DECLARED_ALONE}.")
            least = least if self._reader.strict else len(members)
        return seq(text("{"), self._fields(members, least, shape.most), text("}"))

    def _mapping(self, shape: Object) -> Expression:
        """An object whose members have any names."""
        entries = alt(*(seq(name, self._style.colon, value) for name, value in self._entries(shape)))
        least = shape.least
        if least > 1 and entries is not NOTHING:
            self._reader.refuse("minProperties", _DECLARED_ALONE)
            least = 1
        most = self._affordable(max(least, EXACT_COUNT), shape.most, seq(self._style.comma, entries).size)
        return seq(text("{"), joined(entries, self._style.comma, least, most), text("}"))

    def _entries(self, shape: Object) -> list[tuple[Expression, Expression]]:
        """Names and values of undeclared members: those that match exactly one pattern, and those that match none."""
        patterns = {pattern: rest for rest in shape.rests for pattern, _ in rest.patterns}
        taken = sorted({name for name, _ in shape.properties} | shape.absent)
        extras = tuple(rest.extra for rest in shape.rests)
        found = [(self._name(shape, (), (*patterns,), taken), self.node(_plain_node(extras)))]
        for pattern in patterns:
            node = tuple(
                raw for rest in shape.rests for raw in ([r for p, r in rest.patterns if p == pattern] or [rest.extra])
            )
            others = tuple(other for other in patterns if other != pattern)
            found.append((self._name(shape, (pattern,), others, taken), self.node(_plain_node(node))))
        return [(name, value) for name, value in found if name is not NOTHING]

    def _name(self, shape: Object, like: tuple[str, ...], unlike: tuple[str, ...], taken: list[str]) -> Expression:
        patterns = tuple((pattern, True) for pattern in like) + tuple((pattern, False) for pattern in unlike)
        found = []
        for kind in self._reader.names(shape, String(patterns=patterns, excluded=tuple(taken))):
            if isinstance(kind, Values):
                found += [self._style.key(name) for name in kind.values]
            elif isinstance(kind, String):
                found.append(self._strings.name(kind, self._unfolding.string, whole=self._unfolding.whole))
        return alt(*found)


def _plain_node(node: Node) -> Node:
    return tuple(raw for raw in node if raw is not True)


_WHOLE = seq(optional(text("-")), repeat(DIGIT, 1), optional(seq(text("."), repeat(text("0")))))
"""Every way to write an integer without an exponent."""


def _equal_to(numbers: tuple[Decimal, ...]) -> Expression:
    """Every way to write some numbers without an exponent (0 has no sign here), and everything with one."""
    zeros = repeat(text("0"))
    found = []
    for value in numbers:
        plain = format((value + 0).normalize(), "f")  # -0 becomes 0
        tail = zeros if "." in plain else optional(seq(text("."), zeros))
        found.append(seq(text(plain), tail))
    exponent = seq(repeat(chars(ANY)), chars([(69, 69), (101, 101)]), repeat(chars(ANY)))
    return alt(*found, exponent)
