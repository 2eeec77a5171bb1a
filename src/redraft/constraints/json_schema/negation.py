"""What fails a schema, as schemas: for `not`, `oneOf` and `if`.

A negation is a list of schemas each of which guarantees failure. It need not hold everything that fails: leaving a case
out makes the language smaller, never wrong. `$absent`, `$exclude` and `$unlike` are keywords of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from redraft.constraints.json_schema.keywords import check_schema, count, decimal, list_of, names_of, text_of, types_of
from redraft.constraints.json_schema.references import Document
from redraft.constraints.json_schema.shapes import Raw

ABSENT, EXCLUDE, UNLIKE = "\0absent", "\0exclude", "\0unlike"
"""Members that may not occur; values that may not; a pattern that may not match."""

MAX_DEPTH = 8
_NAMES = ("null", "boolean", "number", "string", "array", "object")


def negations(raw: Raw, document: Document, depth: int = 0) -> list[Raw]:
    """Schemas whose instances all fail `raw`."""
    check_schema(raw)
    if isinstance(raw, bool):
        return [] if raw else [True]
    if depth > MAX_DEPTH:
        return []
    found: list[Raw] = []
    counts = document.standing(raw)
    for keyword in sorted(counts, key=lambda name: (name not in ("type", "enum", "const"), name)):
        found += _of_keyword(counts, keyword, document, depth)
    return found


def _of_keyword(raw: Mapping[str, Any], keyword: str, document: Document, depth: int) -> list[Raw]:
    value = raw[keyword]
    if keyword == "type":
        return _other_types(set(types_of(raw)))
    if keyword == "enum":
        return [{EXCLUDE: list_of(raw, keyword)}]
    if keyword in _SIMPLE:
        return _SIMPLE[keyword](raw, keyword)
    if keyword in ("anyOf", "oneOf") and isinstance(value, list):
        return [{"allOf": [{"anyOf": negations(branch, document, depth + 1) or [False]} for branch in value]}]
    if keyword == "allOf" and isinstance(value, list):
        return [other for branch in value for other in negations(branch, document, depth + 1)]
    if keyword == "not":
        return [value]
    if keyword == "$ref":
        return negations(document.resolve(value), document, depth + 1)
    if keyword == "properties" and isinstance(value, Mapping):
        return [
            {"type": "object", "required": [name], "properties": {name: other}}
            for name, schema in value.items()
            for other in negations(schema, document, depth + 1)
        ]
    return []


def _other_types(names: set[str]) -> list[Raw]:
    if "integer" in names:
        names.add("number")  # numbers that are no integers are left out
    others = [name for name in _NAMES if name not in names]
    return [{"type": others}] if others else []


_Simple: TypeAlias = Callable[[Mapping[str, Any], str], list[Raw]]


def _limit(opposite: str, kind: str, step: int) -> _Simple:
    def negated(raw: Mapping[str, Any], keyword: str) -> list[Raw]:
        value = count(raw, keyword)
        return [] if value is None or value + step < 0 else [{"type": kind, opposite: value + step}]

    return negated


def _side(opposite: str) -> _Simple:
    def negated(raw: Mapping[str, Any], keyword: str) -> list[Raw]:
        if isinstance(raw[keyword], bool):
            return []
        decimal(raw, keyword)  # refuses what is no number
        return [{"type": "number", opposite: raw[keyword]}]

    return negated


_SIMPLE: dict[str, _Simple] = {
    "const": lambda raw, keyword: [{EXCLUDE: [raw[keyword]]}],
    "required": lambda raw, keyword: [{"type": "object", ABSENT: [name]} for name in names_of(raw, keyword)],
    "pattern": lambda raw, keyword: [{"type": "string", UNLIKE: text_of(raw, keyword)}],
    "minLength": _limit("maxLength", "string", -1),
    "maxLength": _limit("minLength", "string", 1),
    "minItems": _limit("maxItems", "array", -1),
    "maxItems": _limit("minItems", "array", 1),
    "minProperties": _limit("maxProperties", "object", -1),
    "minimum": _side("exclusiveMaximum"),
    "maximum": _side("exclusiveMinimum"),
    "exclusiveMinimum": _side("maximum"),
    "exclusiveMaximum": _side("minimum"),
}
