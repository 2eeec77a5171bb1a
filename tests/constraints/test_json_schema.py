"""JSON Schema: whatever is written validates; what cannot be enforced is refused by name."""

import itertools
import json
import os
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from redraft.bench.constraints import measure_schemas, read_schemas, validator
from redraft.constraints import build
from redraft.constraints.automaton import Budget, Dfa
from redraft.constraints.expression import Expression
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.json_schema.formats import PATTERNS
from redraft.constraints.json_schema.numbers import Bounds, number
from redraft.constraints.json_schema.style import CALL
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes, compile_codes
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
    "names that Python alone matches": {"type": "object", "patternProperties": {r"^\d$": {"type": "integer"}},
                                        "additionalProperties": {"type": "null"}, "propertyNames": {"maxLength": 2}},
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


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ({"type": "string", "not": {"pattern": "^a$"}}, ["b", "aa", "ab\n"], ["a", "a\n"]),
    ({"type": "string", "not": {"pattern": r"^(b$|\d)"}}, ["a", "b\n\n"], ["1", "٣", "b", "b\n"]),
    ({"type": "string", "not": {"pattern": r"$\n|b$\s"}}, ["a", "a\nb", "b "], ["a\n", "a\n\n", "b\n"]),
    ({"type": "string", "pattern": "^a.b$"}, ["a b", "a\tb"], ["a\nb", "a\rb", "a\u2028b"]),
    ({"type": "string", "not": {"pattern": "^a.b$"}}, ["a\nb"], ["a b", "a\rb", "a\u2028b"]),
    ({"type": "string", "pattern": r"^[^\W]$"}, ["a"], ["é", "٣", "-"]),
    ({"type": "string", "not": {"pattern": r"[^\W]"}}, ["-"], ["é", "٣", "a"]),
    ({"enum": ["a", "é", "-"], "pattern": r"^\p{L}$"}, ["a", "é"], ["-"]),
    ({"enum": ["a", "Ⅳ", "ⓐ", "-"], "pattern": r"^\P{Alphabetic}$"}, ["-"], ["a", "Ⅳ", "ⓐ"]),
    ({"enum": ["Ⅳ", "ª", "-", "字"], "pattern": r"^[^\p{Uppercase}\p{Lowercase}]$"}, ["-", "字"], ["Ⅳ", "ª"]),
    ({"enum": ["1", "٣"], "pattern": r"^\d$"}, ["1"], ["٣"]),
    ({"enum": ["1", "٣", "x"], "not": {"pattern": r"^\d$"}}, ["x"], ["1", "٣"]),
])  # fmt: skip
def test_patterns_hold_in_every_dialect(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
    assert all(dfa.matches(json.dumps(text, ensure_ascii=False).encode()) for text in good)
    assert not any(dfa.matches(json.dumps(text, ensure_ascii=False).encode()) for text in bad)


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ({"type": "array", "prefixItems": [{"const": i} for i in (1, 2, 3)], "maxItems": 2}, ["[1,2]"], ["[1,2,3]"]),
    ({"type": ["null", "object"], "required": ["a", "b"], "maxProperties": 1}, ["null"], ['{"a":1,"b":1}']),
    ({"type": "array", "uniqueItems": True, "items": {"anyOf": [{"enum": [1, 2]}, {"enum": [2.0, 3]}]}},
     ["[1,2]", "[2,3]"], ["[2,2]", "[2,2.0]"]),
    ({"allOf": [{"properties": {"a": {"const": 1}}, "patternProperties": {"^x$": {"const": 1}}}], "required": ["a"],
      "type": "object", "unevaluatedProperties": False}, ['{"a":1}'], ['{"b":1}', '{"a":2}', "{}"]),
    ({"oneOf": [{"properties": {"k": {"const": 1}, "a": {"const": 2}}, "required": ["k"]},
                {"properties": {"k": {"const": 2}}, "required": ["k"]}],
      "type": "object", "unevaluatedProperties": False, "properties": {"z": {"const": 0}}},
     ['{"z":0,"k":1,"a":2}', '{"k":2}'], ['{"k":2,"a":2}', '{"k":3}']),
    ({"type": "object", "not": {"not": {"properties": {"a": {"const": 1}}}}, "unevaluatedProperties": False},
     ["{}"], ['{"a":1}']),
    ({"type": "object", "unevaluatedProperties": {"const": 1}, "additionalProperties": True}, ['{"a":2}'], []),
    ({"type": "object", "unevaluatedProperties": {"const": 1}}, ['{"a":1}'], ['{"a":2}']),
    ({"type": "object", "oneOf": [{"properties": {n: {"const": 1}}, "additionalProperties": False} for n in "ab"]},
     ['{"a":1}', '{"b":1}'], ["{}", '{"a":2}', '{"a":1,"b":1}']),
    ({"type": "array", "unevaluatedItems": {"const": 1}}, ["[]", "[1,1]"], ["[2]", "[1,null]"]),
    ({"type": "array", "allOf": [{"prefixItems": [{"const": 2}]}], "unevaluatedItems": False}, ["[2]"], ["[2,2]"]),
    ({"type": "array", "items": [{"const": 2}], "unevaluatedItems": False}, ["[2]"], ["[2,2]"]),
    ({"type": "array", "allOf": [{"prefixItems": [{"const": 2}]}, {"unevaluatedItems": True}],
      "unevaluatedItems": False}, ["[2]", "[2,3]"], ["[3]"]),
    ({"type": "object", "allOf": [{"unevaluatedProperties": True}], "unevaluatedProperties": False, "minProperties": 1},
     ['{"a":1}'], ["{}"]),
    ({"type": "array", "minContains": 2, "maxContains": 1, "maxItems": 0}, ["[]"], ["[1]"]),
    ({"type": "array", "items": {"const": 2}, "unevaluatedItems": False}, ["[2,2]"], ["[3]"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}, "not": B}, {"properties": {"b": {"const": 1}}}]},
     ['{"a":1}', "{}"], ['{"a":1,"b":1}', '{"b":1}']),
    ({"type": "object", "properties": {n: {"const": 1} for n in "ab"}, "not": {"minProperties": 2}},
     ['{"a":1}', "{}"], ['{"a":1,"b":1}']),
    ({"type": "number", "not": {"const": 20000000}}, ["-7", "20000000.5", "20000001"], ["2e7", "20000000.000000001"]),
    ({"type": "number", "not": {"const": -0.0}}, ["1", "-1", "0.5"], ["0", "-0", "0.0", "-0.0", "0e1"]),
    ({"type": "object", "required": ["a"], "anyOf": [{"properties": {"a": {"const": v}}} for v in (1, True)]},
     ['{"a":1}', '{"a":true}'], ['{"a":2}', '{"a":false}']),
    ({"type": "object", "allOf": [{"additionalProperties": {"const": v}} for v in (1, True)]},
     ["{}"], ['{"a":1}', '{"a":true}']),
    ({"enum": [{"a": 1, "b": 2}, {"a": 1}, {"b": 2}, 3], "dependentRequired": {"a": ["b"]}},
     ['{"a":1,"b":2}', '{"b":2}', "3"], ['{"a":1}']),
    ({"type": "object", "properties": {"a": {"not": {}}, "b": {"const": 1}}, "additionalProperties": {"not": {}}},
     ["{}", '{"b":1}'], ['{"a":1}', '{"c":1}']),
    ({"oneOf": [{"type": "string"}, {"const": "2024-02-29", "format": "date"}]}, ['"a"'], ['"2024-02-29"']),
    ({"type": "array", "items": False, "uniqueItems": True, "maxItems": 9}, ["[]"], ["[1]"]),
    ({"type": "array", "uniqueItems": True, "minItems": 1, "maxItems": 2,
      "items": {"anyOf": [{"type": "integer", "minimum": -0.5, "exclusiveMaximum": 7, "not": {"const": 3}},
                          {"type": "null"}]}},
     ["[0]", "[0,6]", "[5,null]"], ["[]", "[6,6]", "[3]", "[7]", "[-1]", "[0,1,2]", "[null,null]"]),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0, "maximum": 63}},
     ["[0,63]"], ["[64]", "[9,9]"]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b", 1]}, "patternProperties": {"^a": {"const": 1}},
      "additionalProperties": {"const": 2}, "minProperties": 1}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":2}']),
    ({"type": "number", "exclusiveMaximum": 1e8}, ["99999999", "99999999.9999999"], ["99999999.999999999"]),
])  # fmt: skip
def test_limits_hold_together(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
    assert all(dfa.matches(text.encode()) for text in good)
    assert not any(dfa.matches(text.encode()) for text in bad)


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ({"patternProperties": {"^x": {"const": 1}}, "additionalProperties": False}, ["{}", "{xa:1}"], ["{a:1}"]),
    ({"patternProperties": {"^x": {"const": 1}}, "additionalProperties": {"const": 2}},
     ["{x:1,a:2}"], ["{x:2}", "{a:1}"]),
    ({"additionalProperties": {"const": 1}, "propertyNames": {"maxLength": 2}}, ["{ab:1}"], ["{abc:1}"]),
    ({"properties": {"a": False}, "additionalProperties": {"const": 1}}, ["{b:1}"], ["{a:1}"]),
])  # fmt: skip
def test_names_in_the_arguments_of_a_call_obey(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    found = compile_schema({"type": "object", **schema}, Budget(), strict=True, style=CALL)
    dfa = compile_bytes(found, Budget())
    assert all(dfa.matches(text.encode()) for text in good)
    assert not any(dfa.matches(text.encode()) for text in bad)


def test_a_schema_with_many_references_to_itself_is_unfolded_as_one_with_a_single_one() -> None:
    names = [f"k{i}" for i in range(12)]
    node = {"type": "object", "properties": {name: {"$ref": "#/$defs/node"} for name in names}}
    budget = Budget()
    dfa = compile_bytes(compile_schema({"$ref": "#/$defs/node", "$defs": {"node": node}}, budget, strict=True), budget)
    assert dfa.matches(b'{"k0":{},"k11":{}}')
    assert len(dfa.table) < 10_000


def test_a_limit_is_not_lowered_below_all_that_a_pattern_matches() -> None:
    found = compile_schema({"type": "string", "pattern": "^a{600}$", "maxLength": 1000}, Budget(), strict=True)
    assert compile_bytes(found, Budget()).matches(b'"' + 600 * b"a" + b'"')


def test_properties_obey_patterns_that_python_cannot_read(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"Ä": True, "b": {"type": "null"}}, "required": ["Ä", "b"],
              "patternProperties": {r"^\p{Lu}$": {"const": 1}}}  # fmt: skip
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
    assert dfa.matches('{"Ä":1,"b":null}'.encode())
    assert not dfa.matches('{"Ä":2,"b":null}'.encode())


REFUSED = {
    "contains": {"type": "array", "items": {"type": "string"}, "contains": {"format": "date"}, "maxContains": 1},
    "uniqueItems": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "uniqueItems of many": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 64},
        "uniqueItems": True,
    },
    "minProperties": {"type": "object", "minProperties": 2},
    "$ref": {"$ref": "other.json#/x"},
    "pattern": {"type": "string", "pattern": "a(?!x)"},
    "$dynamicRef": {"$dynamicRef": "#x"},
    "oneOf": {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "time"}]},
    "not": {"type": "number", "exclusiveMaximum": 5, "not": {"multipleOf": 3, "maximum": 9}},
    "multipleOf": {"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1e-15, "multipleOf": 1e-16},
    "required": {"type": "object", "required": True},
    "minLength": {"type": "string", "minLength": -1},
    "dependentRequired": {"dependentRequired": ["a"]},
    "prefixItems": {"prefixItems": 3},
    "format": {"format": ["date"]},
    "$id": {"$ref": "#/$defs/a", "$id": 3, "$defs": {"a": True}},
    "type": {"not": {"type": 5}},
    "enum": {"not": {"enum": None}},
    "required of what must fail": {"not": {"required": [[]]}},
    "minimum": {"not": {"minimum": "a"}},
    "maxItems": {"not": {"maxItems": -1}},
    "pattern of what must fail": {"not": {"pattern": 3}},
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_is_not_enforced_is_named(tokenizer: Tokenizer, keyword: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(repr(keyword.split(" of ")[0]))):
        build(tokenizer, json_schema=REFUSED[keyword])


@pytest.mark.parametrize("strict", [True, False])
def test_a_pattern_that_is_too_large_is_named_at_once(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    tries = []

    def tried(expression: Expression, budget: Budget) -> Dfa:
        tries.append(expression)
        return compile_codes(expression, budget)

    monkeypatch.setattr("redraft.constraints.json_schema.patterns.compile_codes", tried)
    schema = {"type": "array", "items": {"type": "string", "pattern": "^a{3000}$"}, "maxItems": 3}
    with pytest.raises(
        ConstraintError, match=r"'pattern' with the value '\^a\{3000\}\$' needs .* more than 2000 states"
    ):
        compile_schema(schema, Budget(states=2000), strict=strict)
    assert len(tries) == 1


def test_undeclared_members_that_would_be_needed_are_said_or_left_out(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"], "minProperties": 3}
    with pytest.raises(ConstraintError, match="'minProperties' can be enforced only for declared members"):
        build(tokenizer, json_schema=schema)
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=False), Budget())
    assert dfa.matches(b'{"a":null,"b":1}')
    assert not dfa.matches(b'{"b":1}')
    with pytest.raises(ConstraintError, match="'minProperties' can be enforced only for declared members"):
        build(tokenizer, json_schema=schema | {"type": ["object", "null"]})
    for more in ({}, {"dependentRequired": {"c": []}}):
        schema_of_two = {"properties": {"a": True, "b": True, "c": {"enum": []}}, "minProperties": 3} | more
        with pytest.raises(ConstraintError, match="'minProperties' can be enforced only for declared members"):
            build(tokenizer, json_schema=schema_of_two)
    assert build(tokenizer, json_schema=schema_of_two | {"required": ["c"]}) is not None  # no object is allowed
    with pytest.raises(ConstraintError, match="allows no JSON"):
        build(tokenizer, json_schema=schema | {"properties": {"b": True}, "additionalProperties": False})
    schema |= {"properties": {"a": {"type": "null"}, "c": True}, "required": [], "dependentRequired": {"a": ["b"]}}
    dfa = compile_bytes(compile_schema(schema | {"minProperties": 2}, Budget(), strict=True), Budget())
    assert dfa.matches(b'{"a":null,"b":1}')


@pytest.mark.parametrize(
    "keyword", ["contains", "uniqueItems", "minProperties", "oneOf", "not", "pattern", "multipleOf"]
)
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
    r"[\w.-]+@[a-z]+\.(com|org)", r"x*?y", r"[\]a]", r"a.b", r"", r"\x41\u0042", r"a{}", r"(?P<n>a)b", "é+",
    r"(^)*x{a}",
])  # fmt: skip
@pytest.mark.parametrize("anchored", [True, False])
def test_patterns_mean_what_python_means(pattern: str, anchored: bool) -> None:
    _same_as_python(pattern, anchored=anchored)


@pytest.mark.parametrize("pattern", [
    r"a{,2}", r"a{,}x", r"[]a]+", r"[^]a]x", r"[]-a]", r"\Aa\Z", r"a\Z|b", r"[\a]a", r"\a",
])  # fmt: skip
def test_what_dialects_read_differently_is_pythons_in_a_regex_and_refused_in_a_pattern(pattern: str) -> None:
    _same_as_python(pattern, anchored=True)
    with pytest.raises(ConstraintError, match="dialects read differently"):
        parse_regex(pattern, anchored=False)


@pytest.mark.parametrize(("pattern", "message"), [
    ("a++a", "possessive"), ("a?+", "possessive"), ("a{2}+", "possessive"), ("a**", "repeats a repetition"),
    ("a{2}{3}", "repeats a repetition"), ("{2}", "nothing to repeat"), ("(|{2})", "nothing to repeat"),
    ("^*", "repeats an anchor"), (r"\Z?", "repeats an anchor"), (r"\012", "octal escape"), (r"\x4", "unfinished"),
    ("(?P<n>a)(?P=n)", "back reference"), (r"[\1]", "octal escape"), (r"[\B]", r"uses the escape \\B"),
    (r"\x+4", "unfinished"), (r"\u{}", "unfinished"), ("a{" + 5000 * "9" + "}", "more than 9 digits"),
])  # fmt: skip
def test_what_is_no_regex_or_an_unsupported_one_is_said(pattern: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        parse_regex(pattern)


@pytest.mark.parametrize("pattern", [
    r"a$\n", r"a$\s*", r"(a$|\n)*", r"$\n?", r"a?\Z\n?", r"\Z^a?", r"(a\Z)?\n*$", r"$^\n", r"(a*$\n?)+", r"a(\n$|$)\n?",
])  # fmt: skip
def test_the_end_of_a_text_is_where_python_sees_it(pattern: str) -> None:
    dfa = compile_bytes(parse_regex(pattern), Budget())
    for text in ("".join(chars) for count in range(5) for chars in itertools.product("a\n", repeat=count)):
        assert dfa.matches(text.encode()) == bool(re.fullmatch(pattern, text)), text


def _same_as_python(pattern: str, *, anchored: bool) -> None:
    rng, compiled = random.Random(0), re.compile(pattern)
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
    ("uri", "https://a.org/b?c=d#e", "//a"), ("uri", "urn:isbn:0-395/a", "a://:::"), ("uri", "a://b//c", "a:///b:c@:d"),
    ("uri-reference", "a/b:c?d#/e", "2:b"), ("uri-reference", "/a//b", "//a:b"), ("uri-reference", "#/a", ":"),
    ("hostname", "a-b.org", "-a"), ("json-pointer", "/a/0", "a"),
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
