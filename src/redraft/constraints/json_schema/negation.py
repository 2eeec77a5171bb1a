"""What fails a schema, expressed as schemas: for `not`, `oneOf` and `if`.

A negation need not contain everything that fails: leaving a case out makes the language smaller, never wrong. It lists
the types for which it may leave something out, so that nobody mistakes the rest for everything. Our own keywords begin
with a zero character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, TypeAlias

from redraft.constraints.json_schema.formats import INTEGER_FORMATS, PATTERNS
from redraft.constraints.json_schema.keywords import (
    check_schema,
    contains_of,
    count,
    decimal,
    items_of,
    list_of,
    mapping_of,
    names_of,
    schemas_of,
    text_of,
    types_of,
)
from redraft.constraints.json_schema.references import Document
from redraft.constraints.json_schema.shapes import KINDS, Raw, Some, kind_of

ABSENT, EXCLUDE, UNLIKE, SOME, FRACTION = "\0absent", "\0exclude", "\0unlike", "\0some", "\0fraction"
"""Members that may not occur; scalars that may not occur; a pattern that may not match; a `Some` that the items must
meet; a number that must not be an integer."""
FAILS = "\0fails"
"""A schema of a member or an item that must fail. What fails it is worked out when it is read: it may be recursive."""

MAX_DEPTH = 6
MOST_PAIRS = 3
"""Up to this many pairs of branches of a `oneOf`, instances that obey two branches are told apart from those that obey
one."""
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Inner:
    """A schema of the member called `place`, or of the items from one place up to but not including another."""

    kind: str
    place: str | tuple[int, int | None]
    schema: Raw


@dataclass(frozen=True)
class Negation:
    """Schemas whose instances all fail another one.

    partial  the types of which some instance may fail that other schema without obeying any of these
    inner    parts that may fail a schema of their own, of which too much may be left out as well
    rests    schemas that also fail by a member which they do not declare, of which nothing is said here
    """

    schemas: tuple[Raw, ...] = ()
    partial: frozenset[str] = _NOTHING
    inner: tuple[Inner, ...] = ()
    rests: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def any_of(self) -> Raw:
        """The schemas as one, always the same object: a node is known by its schemas' places in memory."""
        return self.schemas[0] if len(self.schemas) == 1 else {"anyOf": list(self.schemas) or [False]}


def negation(raw: Raw, document: Document, depth: int = 0) -> Negation:
    """What fails `raw`."""
    check_schema(raw)
    if isinstance(raw, bool):
        return Negation() if raw else Negation((True,))
    if depth > MAX_DEPTH:
        return Negation(partial=KINDS)
    counts = document.standing(raw)
    keywords = sorted(counts, key=lambda name: (name not in ("type", "enum", "const"), name))
    with document.at((raw,)):
        found = _either(_of_keyword(counts, keyword, document, depth + 1) for keyword in keywords)
        kinds = _kinds_named(counts)  # every other type fails by its type
        inner = tuple(one for one in found.inner if one.kind in kinds)
        return Negation(found.schemas, found.partial & kinds, inner, found.rests if "object" in kinds else ())


def _of_keyword(raw: Mapping[str, Any], keyword: str, document: Document, depth: int) -> Negation:
    if keyword in _PLAIN:
        return Negation(tuple(_PLAIN[keyword](raw, keyword)))
    if keyword in _NESTED:
        return _NESTED[keyword](raw, document, depth)
    if keyword == "additionalProperties":
        return Negation() if raw[keyword] is True else Negation(rests=(raw,))
    return Negation(partial=_unsaid(raw, keyword))


def _unsaid(raw: Mapping[str, Any], keyword: str) -> frozenset[str]:
    """The types for which a keyword forbids something that no negation here expresses."""
    if keyword == "format":
        name = text_of(raw, keyword)
        return frozenset({"string"} if name in PATTERNS else {"number"} if name in INTEGER_FORMATS else ())
    if raw[keyword] is (keyword != "uniqueItems"):  # e.g. `additionalProperties: true`, which has no effect
        return _NOTHING
    return _UNSAID.get(keyword, _NOTHING)


_UNSAID: dict[str, frozenset[str]] = {
    **dict.fromkeys(("multipleOf", "divisibleBy"), frozenset({"number"})),
    **dict.fromkeys(("uniqueItems", "unevaluatedItems"), frozenset({"array"})),
    **dict.fromkeys(("patternProperties", "propertyNames", "unevaluatedProperties", "dependencies"),
                    frozenset({"object"})),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef", "extends", "disallow"), KINDS),
}  # fmt: skip


def _either(parts: Iterable[Negation]) -> Negation:
    """What fails at least one of several schemas."""
    found = list(parts)
    return Negation(
        tuple(schema for part in found for schema in part.schemas),
        _NOTHING.union(*(part.partial for part in found)),
        tuple(inner for part in found for inner in part.inner),
        tuple(rest for part in found for rest in part.rests),
    )


def _all(parts: Sequence[Negation]) -> Negation:
    """What fails all of several schemas."""
    either = _either(parts)
    schemas: tuple[Raw, ...] = ({"allOf": [part.any_of for part in parts]},) if all(p.schemas for p in parts) else ()
    return replace(either, schemas=schemas)


def _kinds_named(raw: Mapping[str, Any]) -> frozenset[str]:
    """The types that `type` allows, whole or in part."""
    return frozenset("number" if name == "integer" else name for name in types_of(raw))


def possible_kinds(raw: Raw, document: Document, depth: int = 0) -> frozenset[str]:
    """The types of which a schema may allow something, as far as plain keywords, references and alternatives tell."""
    raw = document.standing(raw)
    if not isinstance(raw, Mapping):
        return _NOTHING if raw is False else KINDS
    found = _kinds_named(raw)
    if "enum" in raw or "const" in raw:
        found &= {kind_of(value) for value in [*list_of(raw, "enum"), *([raw["const"]] if "const" in raw else [])]}
    if depth > MAX_DEPTH:
        return found
    if "$ref" in raw:
        found &= possible_kinds(document.resolve(raw["$ref"]), document, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in raw:
            found &= _NOTHING.union(*(possible_kinds(one, document, depth + 1) for one in schemas_of(raw, keyword)))
    return found


def _type(raw: Mapping[str, Any], keyword: str) -> list[Raw]:
    others = sorted(KINDS - _kinds_named(raw))
    found: list[Raw] = [{"type": others}] if others else []
    names = types_of(raw)
    return [*found, {"type": "number", FRACTION: True}] if "integer" in names and "number" not in names else found


def _any_of(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    return _all([negation(branch, document, depth) for branch in schemas_of(raw, "anyOf")])


def _one_of(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    """What obeys none of the branches, or two of them."""
    branches = schemas_of(raw, "oneOf")
    none = _all([negation(branch, document, depth) for branch in branches])
    pairs = [
        ({"allOf": [one, other]}, both) for one, other in combinations(branches, 2)
        if (both := possible_kinds(one, document, depth) & possible_kinds(other, document, depth))
    ]  # fmt: skip
    if len(pairs) > MOST_PAIRS:
        return replace(none, partial=none.partial.union(*(both for _, both in pairs)))
    return replace(none, schemas=(*none.schemas, *(pair for pair, _ in pairs)))


def _all_of(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    return _either(negation(branch, document, depth) for branch in schemas_of(raw, "allOf"))


def _ref(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    return negation(document.resolve(raw["$ref"]), document, depth)


def _not(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    return Negation((raw["not"],))


def _conditional(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    """What obeys `if` and fails `then`, or fails `if` and `else`."""
    ways = []
    for keyword, condition in (("then", Negation((raw["if"],))), ("else", negation(raw["if"], document, depth))):
        if keyword in raw and raw[keyword] is not True:
            ways.append(_all([condition, negation(raw[keyword], document, depth)]))
    return _either(ways)


def _properties(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    return _either(
        _within(Inner("object", name, schema), lambda other, name=name: _member(name, other))
        for name, schema in mapping_of(raw, "properties").items()
    )


def _member(name: str, schema: Raw) -> Raw:
    return {"type": "object", "required": [name], "properties": {name: schema}}


def _items(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    prefix, rest, _ = items_of(raw)
    places = [(i, i + 1, schema) for i, schema in enumerate(prefix)] + [(len(prefix), None, rest)]
    return _either(
        _within(Inner("array", (start, stop), schema), lambda other, start=start, stop=stop: {
            "type": "array", SOME: Some(node=(other,), start=start, stop=stop)})
        for start, stop, schema in places
    )  # fmt: skip


def _contains(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    """Too few items that obey a schema, or too many."""
    schema, least, most = contains_of(raw)
    found: list[Raw] = []
    if least:
        found.append({"type": "array", SOME: Some(node=(schema,), least=0, most=least - 1)})
    if most is not None:
        found.append({"type": "array", SOME: Some(node=(schema,), least=most + 1)})
    return Negation(tuple(found), inner=(Inner("array", (0, None), schema),) if least else ())


def _within(inner: Inner, written: Callable[[Raw], Raw]) -> Negation:
    """The negation of a schema for a part of an object or array."""
    check_schema(inner.schema)
    if inner.schema is True or inner.schema == {}:
        return Negation()
    return Negation((written({FAILS: inner.schema}),), inner=(inner,))


def _dependent_required(raw: Mapping[str, Any], keyword: str) -> list[Raw]:
    return [
        {"type": "object", "required": [name], ABSENT: [needed]}
        for name in mapping_of(raw, keyword) for needed in names_of(mapping_of(raw, keyword), name)
    ]  # fmt: skip


def _dependent_schemas(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    return _either(
        _all([Negation(({"type": "object", "required": [name]},)), negation(schema, document, depth)])
        for name, schema in mapping_of(raw, "dependentSchemas").items()
    )


def _max_properties(raw: Mapping[str, Any], document: Document, depth: int) -> Negation:
    """More members; which ones can be written is not known here, only that there is at least one."""
    most = count(raw, "maxProperties")
    found = () if most is None else ({"type": "object", "minProperties": most + 1},)
    return Negation(found, frozenset({"object"}) if most else _NOTHING)


def _values(values: Sequence[Any], document: Document, depth: int) -> Negation:
    """What equals none of some values: scalars exactly, arrays and objects by not looking like them."""
    scalars = [value for value in values if kind_of(value) not in ("array", "object")]
    whole = [_as_schema(value) for value in values if kind_of(value) in ("array", "object")]
    return _all([Negation(({EXCLUDE: scalars},)), *(negation(schema, document, depth) for schema in whole)])


def _as_schema(value: Any) -> Raw:
    """A schema that only this array or object obeys."""
    if isinstance(value, Mapping):
        members = {name: {"enum": [member]} for name, member in value.items()}
        return {"type": "object", "required": list(value), "properties": members, "maxProperties": len(value)}
    return {"type": "array", "items": [{"enum": [item]} for item in value], "additionalItems": False,
            "minItems": len(value)}  # fmt: skip


_Plain: TypeAlias = Callable[[Mapping[str, Any], str], list[Raw]]


def _limit(opposite: str, kind: str, step: int) -> _Plain:
    def negated(raw: Mapping[str, Any], keyword: str) -> list[Raw]:
        value = count(raw, keyword)
        return [] if value is None or value + step < 0 else [{"type": kind, opposite: value + step}]

    return negated


def _side(closed: str, opened: str, flag: str = "") -> _Plain:
    """The opposite side of a bound, including the bound itself if a draft 4 flag excludes it."""

    def negated(raw: Mapping[str, Any], keyword: str) -> list[Raw]:
        if isinstance(raw[keyword], bool):
            return []
        decimal(raw, keyword)  # refuses anything that is not a number
        return [{"type": "number", closed if raw.get(flag) is True else opened: raw[keyword]}]

    return negated


_PLAIN: dict[str, _Plain] = {
    "type": _type,
    "required": lambda raw, keyword: [{"type": "object", ABSENT: [name]} for name in names_of(raw, keyword)],
    "dependentRequired": _dependent_required,
    "pattern": lambda raw, keyword: [{"type": "string", UNLIKE: text_of(raw, keyword)}],
    "minLength": _limit("maxLength", "string", -1),
    "maxLength": _limit("minLength", "string", 1),
    "minItems": _limit("maxItems", "array", -1),
    "maxItems": _limit("minItems", "array", 1),
    "minProperties": _limit("maxProperties", "object", -1),
    "minimum": _side("maximum", "exclusiveMaximum", "exclusiveMinimum"),
    "maximum": _side("minimum", "exclusiveMinimum", "exclusiveMaximum"),
    "exclusiveMinimum": _side("maximum", "maximum"),
    "exclusiveMaximum": _side("minimum", "minimum"),
}
_NESTED: dict[str, Callable[[Mapping[str, Any], Document, int], Negation]] = {
    "const": lambda raw, document, depth: _values([raw["const"]], document, depth),
    "enum": lambda raw, document, depth: _values(list_of(raw, "enum"), document, depth),
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "not": _not,
    "if": _conditional,
    "$ref": _ref,
    "properties": _properties,
    "prefixItems": lambda raw, document, depth: Negation() if "items" in raw else _items(raw, document, depth),
    "items": _items,
    "contains": _contains,
    "dependentSchemas": _dependent_schemas,
    "maxProperties": _max_properties,
}
