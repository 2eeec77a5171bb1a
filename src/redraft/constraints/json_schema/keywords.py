"""Keywords of one schema, read and checked; a malformed one is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from redraft.constraints.json_schema.numbers import Bounds, RoundedFloat, exact
from redraft.constraints.json_schema.shapes import Raw
from redraft.errors import ConstraintError

ENFORCED = frozenset({
    "type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
    "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems",
    "contains", "minContains", "maxContains",
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
})  # fmt: skip
"""Keywords that the compiled language obeys; a few of their values are refused, each by name."""
REFUSED = frozenset({"$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"})
"""Keywords that affect validity and cannot be enforced. All others are annotations."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
MAX_DIGITS = 320
"""Digits of an integer in a schema, before or after the point of another number; doubles may have a few more."""


def check_json(raw: Any) -> None:
    """Raise `ConstraintError` if a schema holds something that is not JSON, or a number of absurd size."""
    if isinstance(raw, Mapping):
        for name, value in raw.items():
            if not isinstance(name, str):
                raise ConstraintError(f"The schema holds the name {name!r:.80}, which is not a string.")
            if name.startswith("\0"):  # our own keywords begin with it
                raise ConstraintError(f"The schema holds the name {name!r:.80}, which begins with a zero character.")
            check_json(value)
    elif isinstance(raw, list | tuple):
        for value in raw:
            check_json(value)
    elif isinstance(raw, RoundedFloat) and _is_absurd(raw):
        raise ConstraintError(
            f"The schema holds {raw.text:.80}, which has more than {MAX_DIGITS} digits before or after its point."
        )
    elif isinstance(raw, float) and not math.isfinite(raw):
        raise ConstraintError(f"The schema holds {raw}, which is not a JSON number.")
    elif isinstance(raw, int) and abs(raw) >= 10**MAX_DIGITS:
        raise ConstraintError(f"The schema holds an integer of more than {MAX_DIGITS} digits.")
    elif not isinstance(raw, str | float | int | None):
        raise ConstraintError(f"The schema holds {raw!r:.80}, which is not a JSON value.")


def _is_absurd(number: RoundedFloat) -> bool:
    """Whether a number has too many digits before or after its point to be computed with."""
    try:
        value = exact(number)
    except InvalidOperation:
        return True
    exponent = value.as_tuple().exponent
    return not isinstance(exponent, int) or exponent < -MAX_DIGITS or value.adjusted() >= MAX_DIGITS


def bound(raw: Mapping[str, Any], name: str, exclusive: str) -> Bounds:
    """The bound of a keyword and its exclusive twin, which is a number, or in draft 4 a flag."""
    low = name == "minimum"
    found = Bounds()
    flag = raw.get(exclusive) is True
    if name in raw:
        value = decimal(raw, name)
        found = Bounds(low=value, low_open=flag) if low else Bounds(high=value, high_open=flag)
    if exclusive in raw and not isinstance(raw[exclusive], bool):
        value = decimal(raw, exclusive)
        found = found.both(Bounds(low=value, low_open=True) if low else Bounds(high=value, high_open=True))
    return found


def decimal(raw: Mapping[str, Any], name: str) -> Decimal:
    """A number."""
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        malformed(name, value)
    return exact(value)


def count(raw: Mapping[str, Any], name: str) -> int | None:
    """A number of things; None if the keyword is not there."""
    if name not in raw:
        return None
    value = raw[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        malformed(name, value)
    return value


def text_of(raw: Mapping[str, Any], name: str) -> str:
    """A string, empty if the keyword is not there."""
    value = raw.get(name, "")
    if not isinstance(value, str):
        malformed(name, value)
    return value


def list_of(raw: Mapping[str, Any], name: str) -> list[Any]:
    """A list, empty if the keyword is not there."""
    value = raw.get(name, [])
    if not isinstance(value, list):
        malformed(name, value)
    return value


def names_of(raw: Mapping[str, Any], name: str) -> list[str]:
    """A list of members' names, empty if the keyword is not there."""
    value = list_of(raw, name)
    if not all(isinstance(item, str) for item in value):
        malformed(name, value)
    return value


def types_of(raw: Mapping[str, Any]) -> list[str]:
    """The types that `type` names, each once; all if the keyword is not there."""
    value = raw.get("type", TYPES)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or any(name not in TYPES for name in names):
        malformed("type", value)
    return list(dict.fromkeys(names))


def mapping_of(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty if the keyword is not there."""
    value = raw.get(name, {})
    if not isinstance(value, Mapping):
        malformed(name, value)
    return value


def flag_of(raw: Mapping[str, Any], name: str) -> bool:
    """A bool; False if the keyword is not there."""
    value = raw.get(name, False)
    if not isinstance(value, bool):
        malformed(name, value)
    return value


def schema_of(raw: Mapping[str, Any], name: str) -> Raw:
    """One schema; if the keyword is not there, the one that allows everything."""
    value = raw.get(name, True)
    if not isinstance(value, Mapping | bool):
        malformed(name, value)
    return value


def schemas_of(raw: Mapping[str, Any], name: str) -> list[Raw]:
    """A list of one or more schemas; empty if the keyword is not there."""
    value = list_of(raw, name)
    if name in raw and not value:
        malformed(name, value)
    return value


def items_of(raw: Mapping[str, Any]) -> tuple[list[Raw], Raw, bool]:
    """The schemas of the first items, the schema of the others, and whether a keyword mentions these others."""
    items, prefix = raw.get("items", True), list_of(raw, "prefixItems")
    others = schema_of(raw, "additionalItems")
    if isinstance(items, list):
        return items, others, "additionalItems" in raw
    return prefix, schema_of(raw, "items"), "items" in raw


def contains_of(raw: Mapping[str, Any]) -> tuple[Raw, int, int | None]:
    """The schema that some items obey, and how many at least and at most; none need to if the keyword is not there."""
    least, most = count(raw, "minContains"), count(raw, "maxContains")
    if "contains" not in raw:
        return True, 0, None
    return schema_of(raw, "contains"), 1 if least is None else least, most


def check_schema(raw: Any) -> None:
    """Raise `ConstraintError` for anything that is not a schema."""
    if not isinstance(raw, Mapping | bool):
        raise ConstraintError(f"A schema must be an object or a bool, not {type(raw).__name__}.")


def malformed(keyword: str, value: Any) -> NoReturn:
    """Raise `ConstraintError` naming the keyword."""
    shown = repr(value)
    raise ConstraintError(f"The schema keyword {keyword!r} has the value {shown[:80]}, which is not allowed.")
