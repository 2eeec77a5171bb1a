"""`oneOf`, `not` and `if`: what obeys one schema and fails others, as far as that can be expressed.

Leaving out a rare form is allowed, leaving out a whole type is not: if nothing of a type remains although some of it
may fail the other schemas, the keyword is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from redraft.constraints.json_schema.keywords import list_of, mapping_of, names_of, schema_of
from redraft.constraints.json_schema.negation import EXCLUDE, Inner, Negation, negation, possible_kinds
from redraft.constraints.json_schema.references import Document
from redraft.constraints.json_schema.shapes import (
    Array,
    Node,
    Object,
    Raw,
    Rest,
    Shape,
    Values,
    among,
    canonical,
    closed,
    item_of,
    kind_of,
    kinds,
    unseen,
)
from redraft.errors import ConstraintError

if TYPE_CHECKING:
    from redraft.constraints.json_schema.reader import Reader

MOST_PARTS = 8
"""How many ways to fail one schema are kept per shape."""
LOOKED_INTO = 2
"""How many levels of nested parts are searched for one that nothing obeys."""


class Combinations:
    """Reads the keywords that require one schema to hold and another not to."""

    def __init__(self, reader: Reader, document: Document) -> None:
        self._reader, self._document = reader, document
        self._negations: dict[int, tuple[Raw, Negation]] = {}
        self._opposites: dict[int, int] = {}
        self._values: dict[tuple[int, ...], tuple[Node, Set[str] | None]] = {}
        self._doubtful: dict[int, bool] = {}
        self.looking = False
        """Whether a node is being read only to find out whether anything obeys it; those inside it are not then."""

    def one_of(self, shapes: list[Shape], branches: list[Raw]) -> list[Shape]:
        """What obeys exactly one branch."""
        found: list[Shape] = []
        for i, branch in enumerate(branches):
            allowed = self._reader.both(shapes, self._reader.read(branch))
            found += self.unlike("oneOf", allowed, branches[:i] + branches[i + 1 :])
        return found

    def conditional(self, shapes: list[Shape], raw: Mapping[str, Any]) -> list[Shape]:
        """What obeys `if` and `then`, or fails `if` and obeys `else`."""
        then, other = schema_of(raw, "then"), schema_of(raw, "else")
        met = self._reader.both(self._reader.both(shapes, self._reader.read(raw["if"])), self._reader.read(then))
        unmet = self._reader.both(shapes, self._reader.read(other))
        if then is not True or other is not True:  # else `if` asks for nothing
            unmet = self.unlike("if", unmet, [raw["if"]])
        return unmet + [shape for shape in met if not among(shape, unmet)]

    def unlike(self, keyword: str, shapes: list[Shape], others: Sequence[Raw]) -> list[Shape]:
        """What `shapes` allow and none of `others` does, or a subset; never drops a whole type that may have some."""
        found = shapes
        close = [raw for raw in others if not all(self._told_apart(shape, raw) for shape in shapes)]
        negated = [(raw, self._negation(raw)) for raw in close]  # of recursive schemas it may be large
        for raw, other in sorted(negated, key=lambda pair: bool(self._partial(pair[1]))):  # complete negations first
            found = self._unlike_one(keyword, found, raw, other)
        return found

    def failing(self, raw: Raw) -> Raw:
        """What fails a schema of a member or an item, always the same object."""
        found = self._negation(raw).any_of
        self._opposites[id(found)] = id(raw)
        return found

    def contradict(self, node: Node) -> bool:
        """Whether one schema of a node is what fails another."""
        known = {*map(id, node)}
        return any(self._opposites.get(raw) in known for raw in known)

    def _negation(self, raw: Raw) -> Negation:
        """What fails `raw`, made once: in recursive schemas it comes again and again, and is known by its place."""
        raw = self._reader.target(raw)
        if id(raw) not in self._negations:
            self._negations[id(raw)] = raw, negation(raw, self._document)
        return self._negations[id(raw)][1]

    def _partial(self, other: Negation, shape: Shape | None = None) -> Set[str]:
        """The types of which some instance, of a shape if one is given, may fail a schema but not obey its negation."""
        inner = [one for one in other.inner if shape is None or not self._demands(shape, one)]
        found = {one.kind for one in inner if self._may_be_partial(one.schema)}
        if any(shape is None or not self._declares(raw, shape) for raw in other.rests):
            found.add("object")
        return other.partial | found

    def _declares(self, raw: Mapping[str, Any], shape: Shape) -> bool:
        """Whether a schema declares every member that a shape may have."""
        if not isinstance(shape, Object):
            return True
        names = {name for name, _ in shape.properties} | set(shape.required)
        return closed(shape) and names - shape.absent <= mapping_of(raw, "properties").keys()

    def _demands(self, shape: Shape, inner: Inner) -> bool:
        """Whether a shape's parts obey a schema because it names the same one, or has no such parts."""
        nodes = [()]
        if isinstance(shape, Object) and isinstance(inner.place, str):
            nodes = [self._reader.node_of(shape, inner.place)]
        elif isinstance(shape, Array) and not isinstance(inner.place, str):
            nodes = self._places(shape, *inner.place)
        asked = self._reader.target(inner.schema)
        return all(any(raw is asked or raw is False for raw in self._reader.plain(node)) for node in nodes)

    def _may_be_partial(self, raw: Raw) -> bool:
        """Whether the negation of a schema, or of one that is reached through its members and items, is partial."""
        if id(raw) not in self._doubtful:
            met, waiting, partial = {id(raw)}, [raw], False
            while waiting and not partial:
                other = self._negation(waiting.pop())
                partial = bool(other.partial or other.rests)
                new = {id(inner.schema): inner.schema for inner in other.inner if id(inner.schema) not in met}
                met |= new.keys()
                waiting += new.values()
            self._doubtful[id(raw)] = partial
        return self._doubtful[id(raw)]

    def _unlike_one(self, keyword: str, shapes: list[Shape], raw: Raw, other: Negation) -> list[Shape]:
        told_apart = [self._told_apart(shape, raw) for shape in shapes]
        if all(told_apart):
            return shapes
        others = [list(map(unseen, self._reader.read(schema))) for schema in other.schemas]
        parts = [
            [shape] if apart else self._parts(shape, others + self._beyond(shape, raw))
            for shape, apart in zip(shapes, told_apart, strict=True)
        ]
        left = {kind for part in parts for shape in part for kind in kinds(shape)}
        found: list[Shape] = []
        for shape, part in zip(shapes, parts, strict=True):
            partial = self._partial(other, shape)
            if part != [shape] and (kinds(shape) & partial or len(part) == MOST_PARTS):
                self._reader.narrowed = keyword
            lost = [
                kind for kind in sorted(kinds(shape) - left)
                if not self._obeys(shape, kind, raw, partial)
                or any(kind in kinds(part) for part in self._parts(shape, others, named=False))
            ]  # fmt: skip
            if lost:
                self._reader.refuse(
                    keyword, f"cannot be enforced for the type {lost[0]!r} here: "
                    "no value of it can be shown to fail what must fail"
                )  # fmt: skip
            found += [shape] if lost else part
        return found

    def _told_apart(self, shape: Shape, raw: Raw) -> bool:
        """Whether obviously nothing of this shape obeys `raw`: because of its type, a member, or a member's values.

        `unlike` would find the same without this, but a member would gain one schema for every tag of a union, and what
        fails a recursive schema is large.
        """
        if not kinds(shape) & possible_kinds(raw, self._document):
            return True
        raw = self._document.standing(self._reader.target(raw))
        if not isinstance(shape, Object) or not isinstance(raw, Mapping):
            return False
        there, declared = {*shape.required, *names_of(raw, "required")}, mapping_of(raw, "properties")
        alone = raw.get("additionalProperties") is False and not mapping_of(raw, "patternProperties")
        if alone and not declared.keys() >= set(shape.required):
            return True
        for name, node in shape.properties:
            if name in there and name in declared:
                own, theirs = self.values(node), self.values((declared[name],))
                if own is not None and theirs is not None and not own & theirs:
                    return True
        return False

    def values(self, node: Node) -> Set[str] | None:
        """The values that `enum` and `const` list for a node and nothing excludes; None if neither lists any."""
        key = tuple(map(id, node))
        if key not in self._values:
            self._values[key] = node, self._values_of(node)
        return self._values[key][1]

    def _values_of(self, node: Node) -> Set[str] | None:
        found: Set[str] | None = None
        excluded = set[str]()
        for schema in node:
            raw = self._document.standing(self._reader.target(schema))
            if not isinstance(raw, Mapping):
                continue
            lists = [list_of(raw, "enum")] if "enum" in raw else []
            lists += [[raw["const"]]] if "const" in raw else []
            excluded |= set(map(canonical, raw.get(EXCLUDE, ())))
            for values in lists:
                listed = set(map(canonical, values))
                found = listed if found is None else found & listed
        return None if found is None else found - excluded

    def _obeys(self, shape: Shape, kind: str, raw: Raw, partial: Set[str]) -> bool:
        """Whether all values of one type that a shape allows obey `raw`, if its negation leaves none of them."""
        if isinstance(shape, Values):
            return all(self._reader.fits(value, (raw,)) for value in shape.values if kind_of(value) == kind)
        return kind not in partial

    def _parts(self, shape: Shape, others: list[list[Shape]], *, named: bool = True) -> list[Shape]:
        """The parts of a shape that obey one of `others`; unless `named`, also with members whose names are unknown."""
        found: list[Shape] = []
        for other in others:
            for left in self._reader.both([shape], other):
                if self._as_wide(left, shape):
                    return [left]  # and not the shape: another schema may declare what this one forbids
                if self._writable(left, LOOKED_INTO, named) and not among(left, found):
                    found.append(left)
        return found[:MOST_PARTS]

    def _beyond(self, shape: Shape, raw: Raw) -> list[list[Shape]]:
        """Objects with a member that a schema does not declare and whose value that schema does not allow."""
        raw = self._document.standing(self._reader.target(raw))
        if not isinstance(shape, Object) or not isinstance(raw, Mapping):
            return []
        other = self._negation(raw.get("additionalProperties", True))
        if not other.schemas:
            return []
        declared, patterns = mapping_of(raw, "properties"), mapping_of(raw, "patternProperties")
        if not shape.properties and not patterns:
            rest = Rest(patterns=(), extra=other.any_of)
            return [[Object(rests=(rest,), absent=frozenset(declared), least=1)]]
        known = dict.fromkeys([*(name for name, _ in shape.properties), *shape.required])
        names = [name for name in known if name not in declared]
        return [
            [Object(required=(name,), properties=((name, (other.any_of,)),))]
            for name in names if not self._reader.matching(patterns.items(), name)
        ]  # fmt: skip

    def _as_wide(self, left: Shape, shape: Shape) -> bool:
        """Whether a narrowed shape writes the same texts: it is equal, or forbids what would not be written anyway."""
        if left == shape:
            return True
        if not isinstance(left, Object) or not isinstance(shape, Object) or not shape.properties:
            return False
        declared = {name for name, _ in shape.properties} | set(shape.required)
        limits = (left.required, left.least, left.most) == (shape.required, shape.least, shape.most)
        if limits and not (left.absent - shape.absent) & declared:
            wide = dict(shape.properties)
            return all(self._alike(node, wide.get(name, ())) for name, node in left.properties if name in declared)
        return False

    def _alike(self, one: Node, other: Node) -> bool:
        """Whether two nodes obviously allow the same."""
        if list(map(id, one)) == list(map(id, other)):
            return True
        found = self._listed(one)
        return found is not None and found == self._listed(other)

    def _listed(self, node: Node) -> list[Shape] | None:
        """The shapes of a node; None if they cannot be determined, or while another one is looked into: in recursive
        schemas that would have no end."""
        if self.looking:
            return None
        self.looking = True
        try:
            return self._reader.shapes(node)
        except ConstraintError:
            return None
        finally:
            self.looking = False

    def _writable(self, shape: Shape, depth: int, named: bool) -> bool:
        """False if a required part obviously obeys nothing, or if `named` and it needs a name that is unknown."""
        if isinstance(shape, Object):
            if self._reader.lacks_names(shape) and (named or not self._reader.has_unknown_names(shape)):
                return False
            return all(self._any(self._reader.node_of(shape, name), depth, named) for name in shape.required)
        if isinstance(shape, Array):
            return all(self._any(node, depth, named) for node in self._places(shape, 0, shape.least)) and all(
                any(self._any(node + some.node, depth, named) for node in self._places(shape, some.start, some.stop))
                for some in shape.some
                if some.least
            )
        return True

    def _places(self, shape: Array, start: int, stop: int | None) -> list[Node]:
        """The schemas of the items from `start` up to but not including `stop`, each kind of item once."""
        ends = [end for end in (stop, shape.most, max(len(shape.prefix), start) + 1) if end is not None]
        return [item_of(shape, i) for i in range(start, min(ends))]

    def _any(self, node: Node, depth: int, named: bool) -> bool:
        """Whether a node may allow anything."""
        found = self._listed(node) if depth else None
        return found is None or any(self._writable(shape, depth - 1, named) for shape in found)
