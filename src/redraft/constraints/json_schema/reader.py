"""Schemas to shapes: keywords are read, references resolved, combinations multiplied out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from decimal import Decimal
from itertools import compress
from operator import not_
from typing import Any

from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema.combinations import Combinations
from redraft.constraints.json_schema.drafts import CONTAINED_SINCE
from redraft.constraints.json_schema.formats import INTEGER_FORMATS
from redraft.constraints.json_schema.keywords import (
    ENFORCED,
    REFUSED,
    bound,
    check_schema,
    contains_of,
    count,
    decimal,
    flag_of,
    items_of,
    list_of,
    malformed,
    mapping_of,
    names_of,
    schema_of,
    schemas_of,
    text_of,
    types_of,
)
from redraft.constraints.json_schema.negation import ABSENT, EXCLUDE, FAILS, FRACTION, SOME
from redraft.constraints.json_schema.numbers import Bounds
from redraft.constraints.json_schema.patterns import Patterns
from redraft.constraints.json_schema.references import Document
from redraft.constraints.json_schema.shapes import (
    ANYTHING,
    Array,
    Evaluated,
    Node,
    Number,
    Object,
    Raw,
    Rest,
    Shape,
    Some,
    String,
    Values,
    among,
    canonical,
    closed,
    distinct,
    distinct_rests,
    fits_number,
    item_of,
    key_of,
    lowest,
    meet_arrays,
    meet_numbers,
    meet_strings,
    outline_of,
    possible,
    same,
    unequal,
    with_some,
    within,
    without,
)
from redraft.constraints.json_schema.strings import strings_of
from redraft.errors import ConstraintError

FAIL = "\0fail"
"""An internal keyword: schemas that must all fail."""
_KINDS: Mapping[type, type[Array | Object]] = {list: Array, Mapping: Object}
MAX_SHAPES = 400
MAX_DEPTH = 48


class Reader:
    """Reads the schemas of one document."""

    def __init__(self, document: Document, patterns: Patterns, budget: Budget, *, strict: bool) -> None:
        self.document, self._patterns, self._budget, self.strict = document, patterns, budget, strict
        self._depth = 0
        self.narrowed = ""
        """A keyword for which some valid instances were left out; empty if there is none."""
        self._combinations = Combinations(self, document)
        self._known: dict[tuple[int, ...], tuple[Node, list[Shape]]] = {}
        self._targets: dict[int, tuple[Raw, Raw]] = {}
        self._shapes: dict[tuple[bool, int], tuple[Raw, list[Shape]]] = {}
        self._failing: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Node, Node, Raw]] = {}

    def shapes(self, node: Node) -> list[Shape]:
        """What all schemas of a node allow together; any shape of the list will do."""
        node = self.plain(node)
        key = self._combinations.looking, *key_of(node)  # inside a node that is looked into less is found out
        if key not in self._known:
            found: list[Shape] = [] if self._combinations.contradict(node) else list(ANYTHING)
            for raw in node:
                found = self.both(found, self.read(raw))
            self._known[key] = node, found  # with the node, so that its schemas' ids are not reused
        return self._known[key][1]

    def plain(self, node: Node) -> Node:
        """The same schemas, each once: what references lead to, and none that allows everything."""
        return distinct(tuple(raw for raw in map(self.target, node) if raw != {}))

    def node_of(self, shape: Object, name: str) -> Node:
        """The schemas that a member of this name obeys."""
        for declared, node in shape.properties:
            if declared == name:
                return node
        found: Node = ()
        for rest in shape.rests:
            found += self.matching(rest.patterns, name)
            if not any(self._patterns.match(pattern, name) for pattern, _ in rest.patterns):
                found += (rest.extra,)
        return found

    def failing(self, node: Node, others: Node) -> Node:
        """What obeys `node` and none of `others`."""
        key = key_of(node), key_of(others)
        if key not in self._failing:
            raw = {FAIL: others} | ({"allOf": list(node)} if node else {})
            self._failing[key] = node, others, raw  # with its parts, whose places in memory are the key
        return (self._failing[key][2],)

    def always(self, shape: Array, some: Some) -> bool:
        """Whether every item of an array would meet a condition, so that it only affects how many items there are."""
        if some.stop is not None or some.most is not None:
            return False
        nodes = [item_of(shape, i) for i in range(some.start, max(some.start, len(shape.prefix)) + 1)]
        return all(self.shapes(node + some.node) == self.shapes(node) for node in nodes)

    def without_idle(self, shape: Array) -> Array:
        """An array without the conditions that only affect how many items there are."""
        idle = [self.always(shape, one) for one in shape.some]
        least = max(shape.least, *(one.start + one.least for one in compress(shape.some, idle)), 0)
        return replace(
            shape, some=tuple(one for one, out in zip(shape.some, idle, strict=True) if not out), least=least
        )

    def names(self, shape: Object, limits: String) -> list[Shape]:
        """Which names members may have, within limits."""
        return self.both(self.shapes(shape.names), [limits])

    def listed_names(self, shape: Object) -> list[str] | None:
        """A list that holds every name an undeclared member may have; None if they may be too many."""
        found, patterns = self._listed(shape.names), [pattern for rest in shape.rests for pattern, _ in rest.patterns]
        for rest in shape.rests:
            if found is None and rest.extra is False:
                allowed = dict(rest.patterns)
                found = self._patterns.few_texts(pattern for pattern in patterns if pattern in allowed)
        return found

    def _listed(self, names: Node) -> list[str] | None:
        """The strings that a node lists or a pattern of it matches; None if they may be too many."""
        found: list[str] = []
        for kind in self.shapes(names):
            if isinstance(kind, String):
                patterns = [pattern for pattern, wanted in kind.patterns if wanted]
                few = filter(None, (self._patterns.few_texts([pattern]) for pattern in patterns))
                if (texts := next(few, None)) is None:
                    return None
                found += texts
            elif isinstance(kind, Values):
                found += [value for value in kind.values if isinstance(value, str)]
        return found

    def has_unknown_names(self, shape: Object) -> bool:
        """Whether members may have other names than those that are declared or listed."""
        return not closed(shape) and self.listed_names(shape) is None

    def lacks_names(self, shape: Object) -> bool:
        """Whether more members are required than there are known names; one unnamed member is acceptable."""
        return shape.least > 1 and shape.least > len(self._known_names(shape))

    def lacks_members(self, shape: Object) -> bool:
        """The same for members that have a value."""
        return shape.least > 1 and shape.least > sum(self._may_be(shape, name) for name in self._known_names(shape))

    def has_required(self, shape: Object) -> bool:
        """Whether each required member has a value, as far as its own schema says."""
        return all(self._may_be(shape, name) for name in shape.required)

    def _may_be(self, shape: Object, name: str) -> bool:
        return (not shape.names or self.fits(name, shape.names)) and bool(self.shapes(self.node_of(shape, name)))

    def _known_names(self, shape: Object) -> Set[str]:
        """Names that are declared, required or listed, and may occur."""
        declared = {name for name, _ in shape.properties} | set(shape.required)
        return (declared | set(self.listed_names(shape) or ())) - shape.absent

    def matching(self, patterns: Iterable[tuple[str, Raw]], name: str) -> Node:
        """The schemas of the patterns that a name may match."""
        return tuple(raw for pattern, raw in patterns if self._patterns.match(pattern, name, wide=True))

    def fits(self, value: Any, node: Node) -> bool:
        """Whether a JSON value obeys a node."""
        return any(self._fits(value, shape) for shape in self.shapes(node))

    def meeting(self, values: Sequence[Any], some: Some) -> int:
        """How many values obey the node of a condition; if it has a maximum, values that may or may not are refused."""
        obey = [self.fits(value, some.node) for value in values]
        if some.most is not None:
            for value in compress(values, map(not_, obey)):
                self._combinations.unlike("contains", [Values((value,))], some.node)
        return sum(obey)

    def refuse(self, keyword: str, why: str = "cannot be enforced") -> None:
        """Raise `ConstraintError` naming the keyword, unless the caller validates by other means (`strict=False`)."""
        if self.strict:
            raise ConstraintError(f"The schema keyword {keyword!r} {why}.")

    def read(self, raw: Raw) -> list[Shape]:
        """What a schema allows: read once, as what fails a recursive schema mentions the same parts again and again."""
        check_schema(raw)
        if isinstance(raw, bool):
            return list(ANYTHING) if raw else []
        key = self._combinations.looking, id(raw)
        if key in self._shapes:
            return self._shapes[key][1].copy()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConstraintError(
                "The schema keyword '$ref' refers to itself without end, or the schema is nested too deeply."
            )
        counts: Mapping[str, Any] = self.document.obeyed(raw)
        try:
            with self.document.at((raw,)):
                found = self._combined(counts, self._typed(counts))
            self._shapes[key] = raw, found
            return found.copy()
        finally:
            self._depth -= 1

    def _typed(self, raw: Mapping[str, Any]) -> list[Shape]:
        """What `type`, `enum` and the keywords of single types allow."""
        for keyword in sorted(REFUSED & raw.keys()):
            self.refuse(keyword)
        names_of(raw, "required")  # a flag, as drafts up to 3 have it, would go unnoticed in a schema of another type
        names = types_of(raw)
        makers: dict[str, Callable[[Mapping[str, Any]], list[Shape]]] = {
            "null": lambda raw: [Values((None,))], "boolean": lambda raw: [Values((True, False))],
            "integer": lambda raw: self._number(raw, integer=True),
            "number": lambda raw: self._number(raw, integer=False),
            "string": strings_of, "array": self._array, "object": self._object,
        }  # fmt: skip
        kept = [name for name in names if name != "integer" or "number" not in names]
        shapes = [shape for name in kept for shape in makers[name](raw)]
        if "const" in raw:
            shapes = self.both(shapes, [Values((raw["const"],))])
        if "enum" in raw:
            values = unequal(list_of(raw, "enum"))
            shapes = self.both(shapes, [Values(tuple(values))] if values else [])
        if EXCLUDE in raw:
            shapes = [left for shape in shapes if (left := without(shape, raw[EXCLUDE])) is not None]
        return shapes

    def _combined(self, raw: Mapping[str, Any], shapes: list[Shape]) -> list[Shape]:
        """`shapes` narrowed by references and combinations."""
        if "$ref" in raw:
            shapes = self.both(shapes, self.read(self.document.resolve(raw["$ref"])))
        for branch in schemas_of(raw, "allOf"):
            shapes = self.both(shapes, self.read(branch))
        if "discriminator" in raw:
            shapes = self.both(shapes, self.read(self._tagged(raw)))
        if "anyOf" in raw:
            shapes = self.both(shapes, [shape for branch in schemas_of(raw, "anyOf") for shape in self.read(branch)])
        if "oneOf" in raw:
            shapes = self._combinations.one_of(shapes, schemas_of(raw, "oneOf"))
        if "not" in raw:
            shapes = self._combinations.unlike("not", shapes, [raw["not"]])
        if FAIL in raw:
            shapes = self._combinations.unlike("contains", shapes, raw[FAIL])
        if FAILS in raw:
            shapes = self.both(shapes, self.read(self.target(raw)))
        if "if" in raw:
            shapes = self._combinations.conditional(shapes, raw)
        shapes = self._dependent(raw, shapes)
        for keyword, kind in (("unevaluatedProperties", Mapping), ("unevaluatedItems", list)):
            if keyword in raw:
                rest = schema_of(raw, keyword)
                left = [left for shape in shapes if (left := self._rest_obeys(shape, kind, rest)) is not None]
                shapes = self._checked(keyword, shapes, left)
        return shapes

    def _tagged(self, raw: Mapping[str, Any]) -> Raw:
        """That the member must be there by which OpenAPI's `discriminator` tells branches apart that all declare it.

        To a validator this is an annotation, but those who look for the tag reject what lacks it.
        """
        discriminator = raw["discriminator"]
        name = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
        branches = schemas_of(raw, "anyOf") + schemas_of(raw, "oneOf")
        found = [shape for branch in branches for shape in self.read(branch) if isinstance(shape, Object)]
        declared = isinstance(name, str) and bool(found) and all(name in dict(shape.properties) for shape in found)
        return {"required": [name]} if declared else True

    def _rest_obeys(self, shape: Shape, kind: type, schema: Raw) -> Shape | None:
        """The shape with a schema for all members or items not mentioned so far; None if nothing obeys it."""
        if schema is True:
            return replace(shape, evaluated=Evaluated(everything=True)) if isinstance(shape, _KINDS[kind]) else shape
        if isinstance(shape, Values):  # what was said about their parts is not known
            values = tuple(value for value in shape.values if not isinstance(value, kind) or not value)
            return Values(values) if values else None
        if isinstance(shape, Object) and kind is Mapping and not shape.evaluated.everything:
            names = tuple((name, ()) for name in sorted(shape.evaluated.names))
            rest = Rest(patterns=tuple((pattern, True) for pattern in sorted(shape.evaluated.patterns)), extra=schema)
            return self._meet_objects(
                shape, Object(properties=names, rests=(rest,), evaluated=Evaluated(everything=True))
            )
        if isinstance(shape, Array) and kind is list and not shape.evaluated.everything:
            prefix: tuple[Node, ...] = ((),) * shape.evaluated.items
            others: Raw = {"anyOf": [schema, *shape.evaluated.contained]} if shape.evaluated.contained else schema
            return meet_arrays(shape, Array(prefix=prefix, items=(others,), evaluated=Evaluated(everything=True)))
        return shape

    def _checked(self, keyword: str, before: list[Shape], after: list[Shape]) -> list[Shape]:
        """`after`, unless nothing of it is left because its negation cannot be expressed."""
        if before and not after:
            self.refuse(keyword, "leaves nothing that can be enforced here")
            return before
        return after

    def _dependent(self, raw: Mapping[str, Any], shapes: list[Shape]) -> list[Shape]:
        """`dependencies`: a member is absent, or its requirement holds."""
        needs: dict[str, list[Raw]] = {}
        kinds_of = {
            "dependencies": list | Mapping | bool,
            "dependentRequired": list,
            "dependentSchemas": Mapping | bool,
        }
        for keyword, kinds in kinds_of.items():
            for name, need in mapping_of(raw, keyword).items():
                if not isinstance(need, kinds):
                    malformed(keyword, raw[keyword])
                needs.setdefault(name, []).append({"required": need} if isinstance(need, list) else need)
        for name, schemas in needs.items():
            without: list[Shape] = self.both(shapes, self.read({ABSENT: [name]}))
            present = self.both(shapes, self.read({"required": [name]}))
            for schema in schemas:
                present = self.both(present, self.read(schema))
            present = [shape for shape in present if isinstance(shape, Object | Values)]
            shapes = without + [shape for shape in present if not among(shape, without)]
        return shapes

    def target(self, raw: Raw) -> Raw:
        """What a schema that is only a reference, or names what it fails, stands for; any other schema itself."""
        if id(raw) not in self._targets:
            self._targets[id(raw)] = raw, self._followed(raw)
        return self._targets[id(raw)][1]

    def _followed(self, raw: Raw) -> Raw:
        """`target`, which is asked again and again, worked out."""
        for _ in range(MAX_DEPTH):
            counts = self.document.obeyed(raw)
            if isinstance(counts, Mapping) and FAILS in counts:
                return self._combinations.failing(self.target(counts[FAILS]))
            if not isinstance(counts, Mapping) or "$ref" not in counts or len((ENFORCED | REFUSED) & counts.keys()) > 1:
                break
            with self.document.at((raw,)):
                raw = self.document.resolve(counts["$ref"])
        return raw

    def _number(self, raw: Mapping[str, Any], *, integer: bool) -> list[Shape]:
        bounds = Bounds()
        for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            bounds = bounds.both(bound(raw, name, exclusive))
        if (known := text_of(raw, "format")) in INTEGER_FORMATS:
            low, high = INTEGER_FORMATS[known]
            bounds = bounds.both(Bounds(low=Decimal(low), high=Decimal(high)))
        multiples = (decimal(raw, "multipleOf"),) if "multipleOf" in raw else ()
        if any(multiple <= 0 for multiple in multiples):
            malformed("multipleOf", raw["multipleOf"])
        whole = integer or any(multiple == multiple.to_integral_value() for multiple in multiples)
        number = Number(bounds=bounds, integer=whole, fraction=FRACTION in raw, multiples=multiples)
        return [] if bounds.empty or (whole and number.fraction) else [number]

    def _array(self, raw: Mapping[str, Any]) -> list[Shape]:
        prefix, items, everything = items_of(raw)
        contained, fewest, highest = contains_of(raw)
        also = "contains" in raw and self.document.draft >= CONTAINED_SINCE
        evaluated = Evaluated(items=len(prefix), contained=(contained,) if also else (), everything=everything)
        rest = () if items is True else (items,)
        array = Array(prefix=tuple(distinct((schema,)) for schema in prefix), items=rest, evaluated=evaluated,
                      least=count(raw, "minItems") or 0, most=count(raw, "maxItems"),
                      unique=flag_of(raw, "uniqueItems"))  # fmt: skip
        some = [Some(node=(contained,), least=fewest, most=highest), *([raw[SOME]] if SOME in raw else [])]
        return [array] if (array := with_some(array, some)) is not None else []

    def _object(self, raw: Mapping[str, Any]) -> list[Shape]:
        properties, patterns = mapping_of(raw, "properties"), mapping_of(raw, "patternProperties")
        required = names_of(raw, "required")
        extra = schema_of(raw, "additionalProperties")
        declared = tuple(
            (name, (schema, *self.matching(patterns.items(), name))) for name, schema in properties.items()
        )
        rest = Rest(patterns=tuple(patterns.items()), extra=extra)
        everything = "additionalProperties" in raw
        names = (schema_of(raw, "propertyNames"),) if "propertyNames" in raw else ()
        shape = Object(
            properties=declared, required=tuple(dict.fromkeys(required)),
            rests=() if extra is True and not patterns else (rest,), names=names,
            absent=frozenset(raw.get(ABSENT, ())), least=count(raw, "minProperties") or 0,
            most=count(raw, "maxProperties"),
            evaluated=Evaluated(names=frozenset(properties), patterns=frozenset(patterns), everything=everything),
        )  # fmt: skip
        return [shape] if possible(shape) else []

    def both(self, left: Iterable[Shape], right: Iterable[Shape]) -> list[Shape]:
        """What both lists allow."""
        if same(tuple(left), ANYTHING):
            return list(right)
        if same(tuple(right), ANYTHING):
            return list(left)
        found, alike = list[Shape](), defaultdict[Hashable, list[Shape]](list)
        for a in left:
            self._budget.check(0, "The schema")  # combinations within combinations multiply
            for b in right:
                shape = self._meet(a, b)
                if shape is not None and not among(shape, others := alike[outline_of(shape)]):
                    found.append(shape)
                    others.append(shape)
            if len(found) > MAX_SHAPES:
                raise ConstraintError(
                    f"The alternatives of 'anyOf', 'oneOf', 'if' and the like have more than {MAX_SHAPES} combinations."
                )
        return found

    def _meet(self, a: Shape, b: Shape) -> Shape | None:
        match a, b:
            case Values(), _:
                kept = tuple(value for value in a.values if self._fits(value, b))
                return Values(kept) if kept else None
            case _, Values():
                return self._meet(b, a)
            case Number(), Number():
                return meet_numbers(a, b)
            case String(), String():
                return meet_strings(a, b)
            case Array(), Array():
                return meet_arrays(a, b)
            case Object(), Object():
                return self._meet_objects(a, b)
        return None

    def _meet_objects(self, a: Object, b: Object) -> Object | None:
        names = dict.fromkeys([*(name for name, _ in a.properties), *(name for name, _ in b.properties)])
        shape = Object(
            properties=tuple((name, distinct(self.node_of(a, name) + self.node_of(b, name))) for name in names),
            required=tuple(dict.fromkeys(a.required + b.required)), rests=distinct_rests(a.rests + b.rests),
            names=a.names + b.names, absent=a.absent | b.absent, least=max(a.least, b.least),
            most=lowest(a.most, b.most), evaluated=a.evaluated | b.evaluated,
        )  # fmt: skip
        required = [node for name, node in shape.properties if name in shape.required and len(node) > 1]
        lacking = any(self._combinations.values(node) == set() for node in required)
        return shape if possible(shape) and not lacking else None

    def _fits(self, value: Any, shape: Shape) -> bool:
        match shape:
            case Values():
                return canonical(value) in map(canonical, shape.values)
            case Number():
                return fits_number(value, shape)
            case String():
                return isinstance(value, str) and self._fits_string(value, shape)
            case Array():
                if not isinstance(value, list) or not within(len(value), shape.least, shape.most):
                    return False
                repeats = shape.unique and len(set(map(canonical, value))) < len(value)
                return (
                    not repeats
                    and all(self.fits(item, item_of(shape, i)) for i, item in enumerate(value))
                    and all(some.allows(self.meeting(value[some.start : some.stop], some)) for some in shape.some)
                )
            case Object():
                return self._fits_object(value, shape)

    def _fits_string(self, value: str, shape: String) -> bool:
        if not within(len(value), shape.least, shape.most) or value in shape.excluded:
            return False
        for pattern, wanted in shape.patterns:
            if self._patterns.match(pattern, value, wide=not wanted) is (not wanted):
                return False
        return True  # whatever the formats: their patterns leave out valid texts, and the schema lists this one itself

    def _fits_object(self, value: Any, shape: Object) -> bool:
        if not isinstance(value, Mapping) or not within(len(value), shape.least, shape.most):
            return False
        if shape.absent & value.keys() or not set(shape.required) <= value.keys():
            return False
        if shape.names and not all(self.fits(name, shape.names) for name in value):
            return False
        return all(self.fits(item, self.node_of(shape, name)) for name, item in value.items())
