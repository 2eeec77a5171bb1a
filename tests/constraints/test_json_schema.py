"""JSON Schema: whatever is written validates; what cannot be enforced is refused by name."""

import os
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from redraft.bench.constraints import measure_schemas, read_schemas, validator
from redraft.constraints import build
from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.json_schema.formats import PATTERNS
from redraft.constraints.json_schema.numbers import Bounds, number
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.errors import ConstraintError
from redraft.text.tokenizer import Tokenizer

A, B = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "scalars": {"type": ["null", "boolean", "number"]},
    "bounds": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 12.25},
    "draft 4 bounds": {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9,
                       "$schema": "http://json-schema.org/draft-04/schema#"},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 200},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0},
    "strings": {"type": "string", "minLength": 3, "maxLength": 9, "pattern": "^[a-zé\"]+$"},
    "a long limit": {"type": "string", "maxLength": 200, "minLength": 2},
    "enum": {"enum": ["a\n\"b", 1, None, {"x": [1, 2]}]},
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "tuple": {"prefixItems": [{"type": "integer"}, {"const": "x"}], "type": "array", "items": False, "minItems": 1},
    "distinct": {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 2, "maxItems": 3},
    "free members": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "patterns": {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"type": "string"}},
                 "additionalProperties": False},
    "names": {"type": "object", "propertyNames": {"pattern": "^[A-Z]{2}$"}, "additionalProperties": {"const": 1}},
    "least members": {"type": "object", "properties": {k: {"type": "null"} for k in "abcd"}, "minProperties": 3,
                      "maxProperties": 3},
    "all": {"allOf": [A, {"properties": {"a": {"maximum": 5}, "c": {"type": "null"}}, "additionalProperties": False}]},
    "any": {"anyOf": [{"type": "integer"}, A]},
    "one": {"oneOf": [{"type": "integer"}, {"type": "number", "maximum": 2}]},
    "one of two objects": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                           "oneOf": [{"required": ["a"]}, B]},
    "not": {"type": "string", "not": {"enum": ["a", ""]}, "maxLength": 2},
    "if": {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
           "required": ["kind"], "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}},
    "dependencies": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                     "dependentRequired": {"a": ["b"]}},
    "recursion": {"$ref": "#/$defs/tree",
                  "$defs": {"tree": {"type": "object", "required": ["v"], "additionalProperties": False,
                                     "properties": {"v": {"type": "integer"},
                                                    "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_answers_validate(tokenizer: Tokenizer, name: str) -> None:
    figures = measure_schemas(tokenizer, [(name, SCHEMAS[name])], answers=4, validate=validator())
    assert figures.answers == 4, figures.refused
    assert not figures.invalid


REFUSED = {
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "uniqueItems": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "minProperties": {"type": "object", "minProperties": 2},
    "$ref": {"$ref": "other.json#/x"},
    "pattern": {"type": "string", "pattern": "^(?!x)"},
    "$dynamicRef": {"$dynamicRef": "#x"},
    "oneOf": {"oneOf": [{"type": "object"}, {"type": "object"}]},
    "required": {"type": "object", "required": True},
    "minLength": {"type": "string", "minLength": -1},
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_is_not_enforced_is_named(tokenizer: Tokenizer, keyword: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(repr(keyword))):
        build(tokenizer, json_schema=REFUSED[keyword])


@pytest.mark.parametrize("keyword", ["contains", "uniqueItems", "minProperties", "oneOf"])
def test_without_strict_it_is_left_out(tokenizer: Tokenizer, keyword: str) -> None:
    assert build(tokenizer, json_schema=REFUSED[keyword], strict=False) is not None


def test_real_schemas_compile_and_their_answers_validate(tokenizer: Tokenizer) -> None:
    """A few dozen schemas of a collection that is not part of the repository: REDRAFT_JSON_SCHEMAS names its file."""
    file = os.environ.get("REDRAFT_JSON_SCHEMAS", "")
    if not Path(file).is_file():
        pytest.skip("REDRAFT_JSON_SCHEMAS names no file of schemas (JSONL with name and schema)")
    figures = measure_schemas(tokenizer, read_schemas(file)[::12], answers=1, validate=validator())
    assert not figures.invalid
    assert len(figures.compile_seconds) >= 0.85 * figures.total


@pytest.mark.parametrize("pattern", [
    r"^a|b$", r"(^$)|(^x+$)", r"^[(a-z)|(A-Z)]+$", r"a{2,3}b?", r"[^\d]x", r"\W\S", r"^(?:a|bc)*d$", r"(foo|ba[rz])",
    r"[\w.-]+@[a-z]+\.(com|org)", r"x*?y", r"[\]a]", r"a.b", r"", r"\x41\u0042", r"a{,2}", r"(?P<n>a)b", "é+",
])  # fmt: skip
@pytest.mark.parametrize("anchored", [True, False])
def test_patterns_mean_what_python_means(pattern: str, anchored: bool) -> None:
    rng, compiled = random.Random(0), re.compile(pattern.replace("{,2}", r"\{,2\}"))
    dfa = compile_bytes(parse_regex(pattern, anchored=anchored), Budget())
    for _ in range(150):
        text = "".join(rng.choice("abcxyzdfo 019-@.|{},()AZBé]") for _ in range(rng.randint(0, 7)))
        wanted = compiled.fullmatch(text) if anchored else compiled.search(text)
        assert dfa.matches(text.encode()) == bool(wanted), text


def test_numbers_stay_within_their_bounds() -> None:
    rng = random.Random(1)
    for _ in range(60):
        integer = rng.random() < 0.5
        ends = [Decimal(rng.randint(-2000, 2000)) / (1 if integer else rng.choice([1, 4, 100])) for _ in range(2)]
        low, high = sorted(ends)
        bounds = Bounds(
            low=low if rng.random() < 0.7 else None, high=high if rng.random() < 0.7 else None,
            low_open=rng.random() < 0.5, high_open=rng.random() < 0.5,
        )  # fmt: skip
        dfa = compile_bytes(number(bounds, integer=integer), Budget())
        for _ in range(60):
            written = str(rng.choice([rng.randint(-2500, 2500), int(low), int(high)]))
            if not integer and rng.random() < 0.6:
                written += f".{rng.randint(0, 999):03}"
            negative_zero = written.startswith("-") and Decimal(written) == 0
            assert dfa.matches(written.encode()) == (bounds.hold(Decimal(written)) and not negative_zero), written


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("date", "2024-02-28", "2024-02-30"), ("time", "23:59:59Z", "24:00:00Z"),
    ("date-time", "2024-12-31T10:00:00.5+01:00", "2024-13-01T10:00:00Z"), ("email", "a.b@c.org", "a@@b"),
    ("ipv4", "10.0.255.1", "10.0.256.1"), ("ipv6", "::1", ":::1"),
    ("uuid", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "0"),
    ("uri", "https://a.org/b?c=d#e", "//a"), ("hostname", "a-b.org", "-a"), ("json-pointer", "/a/0", "a"),
])  # fmt: skip
def test_formats(name: str, good: str, bad: str) -> None:
    dfa = compile_bytes(parse_regex(PATTERNS[name]), Budget())
    assert dfa.matches(good.encode())
    assert not dfa.matches(bad.encode())


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ({"type": "number", "minimum": 5e-324, "maximum": 3}, ["1", "0.1"], ["0", "0.0", "-1"]),
    ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1}, ["1", "-1" + 79 * "0"], ["1.1"]),
    ({"type": "integer", "minimum": 0, "maximum": 2**256 - 1}, [str(2**256 - 1)], [str(2**256), "-1"]),
    ({"type": "integer", "minimum": 10**30 - 3, "maximum": 10**30 - 1}, [str(10**30 - 1)], [str(10**30)]),
    ({"enum": [10**300], "type": "number", "multipleOf": 0.01}, [str(10**300)], ["1"]),
])  # fmt: skip
def test_numbers_of_many_digits_are_exact(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
    assert all(dfa.matches(text.encode()) for text in good)
    assert not any(dfa.matches(text.encode()) for text in bad)
