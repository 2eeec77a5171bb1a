"""Limits on how many members or items there are: every choice that keeps to them can be written, and no other."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from compiled_schemas import compiled, written
from redraft.bench.constraints import validator
from redraft.constraints.automaton import Budget
from redraft.constraints.expression import fields, text
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.json_schema.patterns import FEW_NAMES
from redraft.constraints.spelling import compile_bytes
from redraft.errors import ConstraintError

LIMITS = [(least, most) for least in range(6) for most in (*range(least, 6), None)]
ANY_INTEGER = {"type": "integer"}
LARGE = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": ANY_INTEGER, "s": {"type": "string", "maxLength": 99}},
}


def chosen(values: str) -> Iterator[tuple[str, ...]]:
    """Every choice of some of the values, in their order."""
    return itertools.chain.from_iterable(itertools.combinations(values, count) for count in range(len(values) + 1))


def limits(kind: str, least: int, most: int | None) -> dict[str, int]:
    return {f"min{kind}": least} | ({} if most is None else {f"max{kind}": most})


def check_every_choice(schema: dict[str, Any], values: list[Any]) -> None:
    """The values that validate are those that can be written, with and without spaces."""
    dfa, validate = compiled(schema), validator()
    for value in values:
        valid = validate(schema, value) is None
        assert dfa.matches(written(value)) is valid, (schema, value)
        assert dfa.matches(json.dumps(value).encode()) is valid, (schema, value)


@pytest.mark.parametrize("required", [[], ["b"], ["a", "e"], ["c", "d", "e"]])
@pytest.mark.parametrize("closed", [True, False])
def test_any_members_may_be_those_that_a_limit_leaves(required: list[str], closed: bool) -> None:
    objects = [dict.fromkeys(names, 1) for names in chosen("abcde")]
    schema = {"type": "object", "properties": {name: {"const": 1} for name in "abcde"}, "required": required,
              "additionalProperties": not closed}  # fmt: skip
    for least, most in LIMITS:
        if most is None or most >= len(required):
            check_every_choice(schema | limits("Properties", least, most), objects)


def test_any_values_of_an_enum_may_be_the_distinct_items() -> None:
    arrays = [list(values) for values in itertools.product("abcd", repeat=2)] + [list(v) for v in chosen("abcd")]
    in_order = [values for values in arrays if values == sorted(values)]
    for least, most in LIMITS:
        if least <= 4:
            schema = {"type": "array", "items": {"enum": ["a", "b", "c", "d"]}, "uniqueItems": True}
            check_every_choice(schema | limits("Items", least, most), in_order)


def test_names_that_are_listed_count_as_members() -> None:
    names = {"type": "object", "propertyNames": {"enum": ["b", "c", "d"]}, "additionalProperties": {"const": 1}}
    objects = [dict.fromkeys(names, 1) for names in chosen("bcde")]
    check_every_choice(names | {"minProperties": 2}, objects)
    check_every_choice(names | {"minProperties": 2, "maxProperties": 2}, objects)
    declared = names | {"properties": {"c": {"const": 1}, "a": True}}
    check_every_choice(declared | {"minProperties": 2}, [dict.fromkeys(names, 1) for names in chosen("cabd")])
    for least in (0, 1):
        check_every_choice(names | {"minProperties": least}, objects)
    check_every_choice(names | {"required": ["c"]}, [dict.fromkeys(names, 1) for names in chosen("cbde")])


def test_few_names_that_are_listed_do_not_repeat() -> None:
    for count, repeats in ((FEW_NAMES, False), (FEW_NAMES + 1, True)):
        listed = {"enum": [f"n{number}" for number in range(count)]}
        dfa = compiled({"type": "object", "propertyNames": listed, "additionalProperties": {"const": 1}})
        assert dfa.matches(b'{"n1":1,"n3":1}')
        assert dfa.matches(b'{"n3":1,"n3":1}') is repeats
        assert dfa.matches(b'{"n3":1,"n1":1}') is repeats  # the order is that of the list


@pytest.mark.parametrize("more", [
    {"patternProperties": {"^(b|a)$": {"const": 1}, "^c$": {"type": "integer"}}, "additionalProperties": False},
    {"patternProperties": {"^(b|a)$": {"const": 1}, "^(a|c)$": {"type": "integer"}}, "unevaluatedProperties": False},
    {"patternProperties": {"^[abc]$": {"const": 1}, "^[a-z]*$": True}, "propertyNames": {"pattern": "^(b|a|c)$"}},
    {"propertyNames": {"pattern": "^(b|ax?|c|long)$", "maxLength": 1}, "additionalProperties": {"const": 1}},
    {"propertyNames": {"anyOf": [{"enum": ["b"]}, {"pattern": "^(a|c)$"}]}, "additionalProperties": {"const": 1}},
])  # fmt: skip
@pytest.mark.parametrize("limited", [{}, {"minProperties": 2}, {"maxProperties": 1}, {"required": ["c"]}])
def test_few_names_that_patterns_allow_are_members_too(more: dict[str, Any], limited: dict[str, Any]) -> None:
    objects = [dict.fromkeys(names, 1) for names in chosen("cbad" if "required" in limited else "bacd")]
    check_every_choice({"type": "object", **more, **limited}, objects)
    assert not compiled({"type": "object", **more}).matches(b'{"a":1,"a":1}')


@pytest.mark.parametrize(("pattern", "names"), [
    ("^(width|height)$", ["width", "height"]), ("^([1-9]|1[0-2])$", [*map(str, range(1, 13))]),
    ("^x-[ba]$", ["x-a", "x-b"]),
    (r'^(\\|é|"|\n)$', ["\n", '"', "\\", "é"]), ("^$", [""]),
])  # fmt: skip
def test_names_of_a_pattern_stand_in_its_order_or_sorted(pattern: str, names: list[str]) -> None:
    dfa = compiled({"type": "object", "patternProperties": {pattern: {"const": 1}}, "additionalProperties": False})
    for picked in itertools.chain(itertools.combinations(names, 1), itertools.permutations(names, 2)):
        in_order = list(picked) == sorted(picked, key=names.index)
        assert dfa.matches(written(dict.fromkeys(picked, 1))) is in_order, picked


@pytest.mark.parametrize(("pattern", "repeats"), [
    ("^[0-9a-f]$", False), ("^[0-9a-g]$", True), ("^a{0,15}$", False), ("^a{0,16}$", True), ("^a", True), ("a$", True),
    ("^a+$", True), ("^a{3000}b*$", True), ("^[^a]$", True), ("", True),
])  # fmt: skip
def test_a_name_of_many_may_come_again(pattern: str, repeats: bool) -> None:
    schema = {"type": "object", "patternProperties": {pattern: {"const": 1}}, "additionalProperties": False}
    dfa, name = compiled(schema), {"": "a", "^[^a]$": "b", "^a{3000}b*$": "a" * 3000}.get(pattern, "a")
    assert dfa.matches(written({name: 1}))
    assert dfa.matches(written({name: 1})[:-1] + b"," + written({name: 1})[1:]) is repeats


@pytest.mark.parametrize("schema", [
    {"type": "array", "minItems": 3, "maxItems": 2},
    {"type": "array", "items": {"enum": [1, 2, 2.0]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}], "items": False, "minItems": 2},
    {"allOf": [{"type": "array", "minItems": 3}, {"maxItems": 2}]},
    {"type": "object", "minProperties": 3, "maxProperties": 2},
    {"type": "object", "properties": {"a": True, "b": True}, "minProperties": 3, "maxProperties": 2},
    {"type": "object", "properties": {"a": True, "b": False}, "minProperties": 2, "additionalProperties": False},
    {"type": "object", "properties": {"a": True}, "required": ["a", "b"], "maxProperties": 1},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 3},
    {"type": "object", "propertyNames": False, "minProperties": 2},
])  # fmt: skip
def test_limits_that_nothing_keeps_are_said(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match=r"^The schema allows no JSON at all\.$"):
        compile_schema(schema, Budget(), strict=True)


@pytest.mark.parametrize(("least", "most", "copies"), [
    (0, None, 1), (0, 40, 1), (1, None, 1), (0, 1, 1), (1, 1, 1), (40, None, 1), (0, 38, 3), (3, None, 3),
    (37, None, 4), (20, 20, 20), (2, 39, 3), (30, 38, 11),
])  # fmt: skip
def test_items_are_spelled_as_often_as_their_number_matters(least: int, most: int | None, copies: int) -> None:
    items = [(text(f"{number:02}x"), False) for number in range(40)]
    listed = fields(items, text(","), least, most)
    assert listed.size == copies * 40 * len("00x")
    assert len(compile_bytes(listed, Budget()).table) <= copies * 40 * len(",00x")
    assert fields([*items, (text("y"), True)], text(","), 1, 1).size == 1  # the others are not spelled at all


def test_a_limit_on_large_items_stands_if_there_are_states_for_it() -> None:
    item = {"n": 1, "s": "x" * 99}
    for outer, inner in (({"maxItems": 20}, {}), ({"maxItems": 6}, {"maxItems": 3})):
        items = {"type": "array", "items": LARGE, **inner} if inner else LARGE
        value = [item] * inner["maxItems"] if inner else item
        dfa = compiled({"type": "array", "items": items, **outer})
        assert dfa.matches(written([value] * outer["maxItems"]))
        assert not dfa.matches(written([value] * (outer["maxItems"] + 1)))


def test_a_limit_on_large_members_stands_if_there_are_states_for_it() -> None:
    names = [f"k{number}" for number in range(9)]
    dfa = compiled({"type": "object", "properties": dict.fromkeys(names, LARGE), "maxProperties": 3})
    for picked in itertools.combinations(names, 3):
        assert dfa.matches(written({name: {"n": 1} for name in picked}))
    assert not dfa.matches(written({name: {"n": 1} for name in names[:4]}))
    for value, extra in (({"n": 1}, LARGE), ("x", True)):
        dfa = compiled({"type": "object", "additionalProperties": extra, "maxProperties": 20})
        assert dfa.matches(written({str(number): value for number in range(20)}))


def test_what_cannot_be_counted_is_any_few_or_any_of_the_first() -> None:
    names = [f"{number:05}" for number in range(200)]
    dfa = compiled({"type": "array", "items": {"enum": names}, "uniqueItems": True, "maxItems": 100})
    assert dfa.matches(written(names[-1:]))
    assert dfa.matches(written(names[1:100]))
    assert not dfa.matches(written(names[:101]))
    dfa = compiled({"type": "object", "properties": {name: {"const": 1} for name in names}, "maxProperties": 100,
                    "minProperties": 2, "required": names[-1:]})  # fmt: skip
    assert dfa.matches(written(dict.fromkeys(names[-2:], 1)))
    assert dfa.matches(written(dict.fromkeys([*names[:99], names[-1]], 1)))
    assert not dfa.matches(written(dict.fromkeys([*names[:100], names[-1]], 1)))
    assert not dfa.matches(written(dict.fromkeys(names[-1:], 1)))


def test_limits_that_take_too_many_states_are_lowered() -> None:
    dfa = compiled({"type": "array", "items": ANY_INTEGER, "maxItems": 10**9})
    assert dfa.matches(written([1] * 64))
    assert len(dfa.table) < 2_000
    whole = compile_schema({"type": "object", "maxProperties": 10**9}, Budget(), strict=True)
    assert whole.size < 10_000
