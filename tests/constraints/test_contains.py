"""`contains`, `minContains` and `maxContains`: compared with the `jsonschema` package on all short arrays."""

import itertools
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from compiled_schemas import check_exact, compiled, written
from redraft.errors import ConstraintError

LISTS = [list(items) for count in range(5) for items in itertools.product([1, 5, "a", None], repeat=count)]
VALUES: list[Any] = [*LISTS, [[]], [[], []], [[None], 1], [[1], []], {}, {"a": 1}, "a", 5, None]
A, INTEGER, ITEMS = {"const": "a"}, {"type": "integer"}, {"enum": [1, 5, "a", None]}
DATE = {"type": "string", "format": "date"}


EXACT: dict[str, Any] = {
    "one item": {"contains": INTEGER},
    "some of few": {"contains": INTEGER, "maxItems": 2},
    "some of many": {"contains": A, "minItems": 3},
    "behind a prefix": {"contains": INTEGER, "prefixItems": [{"type": "string"}, True], "items": {"type": "null"}},
    "what all items obey": {"contains": {"type": ["integer", "string"]}, "items": ITEMS | {"type": "integer"}},
    "what no item obeys": {"contains": {"type": "boolean"}, "items": ITEMS},
    "two items": {"contains": A, "minContains": 2},
    "two of three": {"contains": INTEGER, "minContains": 2, "maxItems": 3, "items": ITEMS},
    "none need": {"contains": A, "minContains": 0},
    "not more than one": {"contains": A, "maxContains": 1, "minContains": 0},
    "one or two": {"contains": {"minimum": 3}, "maxContains": 2, "items": ITEMS},
    "none at all": {"contains": INTEGER, "minContains": 0, "maxContains": 0},
    "exactly two of all": {"contains": True, "minContains": 2, "maxContains": 2},
    "anything": {"contains": {}},
    "arrays in arrays": {"contains": {"type": "array", "items": {"type": "null"}}, "maxContains": 1},
    "contained in what is contained": {"contains": {"type": "array", "contains": {"type": "null"}}},
    "nothing, but nothing need": {"contains": False, "minContains": 0},
    "nothing": {"type": ["array", "null"], "contains": False},
    "more than most": {"type": ["array", "null"], "contains": A, "minContains": 3, "maxContains": 2},
    "more than there may be": {"type": ["array", "null"], "contains": A, "minContains": 3, "maxItems": 2},
    "counts of nothing": {"minContains": 2, "maxContains": 0, "items": ITEMS},
    "no type": {"contains": A},
    "two schemas": {"allOf": [{"contains": A, "maxContains": 1}, {"contains": INTEGER, "minContains": 2}]},
    "four limits": {"allOf": [{"contains": {"const": item}, "maxContains": 1} for item in (1, 5, "a", None)]},
    "either": {"type": "array", "anyOf": [{"contains": A}, {"maxItems": 1}]},
    "not": {"type": "array", "not": {"contains": A}},
    "not two": {"type": "array", "not": {"contains": A, "minContains": 2}},
    "not at most one": {"type": "array", "not": {"contains": A, "minContains": 0, "maxContains": 1}},
    "not within limits": {"type": "array", "not": {"contains": A, "minContains": 2, "maxContains": 3}},
    "not anything": {"type": ["array", "null"], "not": {"contains": True}},
    "one of": {"type": "array", "oneOf": [{"contains": A}, {"contains": {"const": 5}}]},
    "if": {"type": "array", "if": {"contains": A}, "then": {"contains": {"const": 1}}, "else": {"maxItems": 1}},
    "unevaluated items": {"contains": A, "unevaluatedItems": {"type": "null"}},
    "no unevaluated items": {"contains": A, "unevaluatedItems": False},
    "unevaluated, several": {"allOf": [{"contains": A}, {"contains": INTEGER}], "unevaluatedItems": False},
    "unevaluated, none contained": {"prefixItems": [True], "contains": A, "minContains": 0,
                                    "unevaluatedItems": INTEGER},
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "contains": A, "minContains": 2},
    "not in draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "not": {"contains": A, "minContains": 2}},
    "draft 4": {"$schema": "http://json-schema.org/draft-04/schema#", "contains": A},
    "listed": {"enum": [["a"], ["a", "a"], [1]], "contains": A, "maxContains": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_what_is_allowed_is_what_is_written(name: str) -> None:
    check_exact(EXACT[name], VALUES)


@pytest.mark.parametrize("limits", [
    {}, {"maxContains": 1}, {"minContains": 2}, {"minContains": 2, "maxItems": 3}, {"minContains": 0, "maxContains": 0},
    {"minContains": 1, "maxContains": 1, "minItems": 2}, {"not": {"items": INTEGER}},
])  # fmt: skip
def test_distinct_items_stand_in_their_order(limits: dict[str, Any]) -> None:
    schema = {"type": "array", "items": ITEMS, "uniqueItems": True, "contains": INTEGER, **limits}
    dfa = compiled(schema)
    for value in LISTS:
        ordered = value == [item for item in ITEMS["enum"] if item in value]
        assert dfa.matches(written(value)) == (ordered and Draft202012Validator(schema).is_valid(value)), value


def test_more_schemas_than_three_are_met_in_one_order() -> None:
    dfa = compiled({"type": "array", "allOf": [{"contains": {"const": number}} for number in range(5)]})
    assert dfa.matches(b"[0,1,2,4,3]")
    assert dfa.matches(b"[9,0,1,2,3,4,9]")
    assert not dfa.matches(b"[0,1,2,3]")


@pytest.mark.parametrize("schema", [
    {"items": {"type": "string"}, "contains": DATE, "maxContains": 1},
    {"items": {"type": "string"}, "not": {"contains": DATE}, "minItems": 1},
    {"items": {"type": "number"}, "contains": {"multipleOf": 3}, "maxContains": 2},
    {"enum": [["٣"], ["a"]], "contains": {"pattern": r"^\d$"}, "minContains": 0, "maxContains": 0},
    {"items": {"enum": ["٣", "1"]}, "uniqueItems": True, "contains": {"pattern": r"^\d$"}, "maxContains": 1},
])  # fmt: skip
def test_items_that_cannot_be_told_apart_are_refused(schema: dict[str, Any]) -> None:
    schema = {"type": "array", **schema}
    with pytest.raises(ConstraintError, match="'contains' cannot be enforced for the type"):
        compiled(schema)
    assert not compiled(schema, strict=False).empty


def test_what_only_some_items_obey_need_not_be_told_apart() -> None:
    dfa = compiled({"type": "array", "items": {"type": "string"}, "contains": DATE})
    assert dfa.matches(b'["a","2024-02-29"]')
    assert not dfa.matches(b'["a","2024-02-30"]')


def test_many_items_are_counted_as_far_as_there_are_states() -> None:
    dfa = compiled({"type": "array", "items": INTEGER, "contains": {"const": 7}, "minContains": 30})
    assert len(dfa.table) < 5_000
    assert dfa.matches(written([7, 1] * 30))
    assert not dfa.matches(written([7, 1] * 29))
    with pytest.raises(ConstraintError, match="automaton of more than"):
        compiled({"type": "array", "items": INTEGER, "contains": {"const": 7}, "minContains": 50_000})


def test_a_schema_that_contains_itself_ends() -> None:
    node = {"type": ["array", "integer"], "items": {"$ref": "#"}, "contains": {"$ref": "#"}}
    dfa = compiled(node)
    assert dfa.matches(b"[1,[2]]")
    assert not dfa.matches(b"[]")
    dfa = compiled(node | {"maxContains": 2})
    assert dfa.matches(b"[1,2]")
    assert not dfa.matches(b"[1,2,3]")
    assert not dfa.matches(b"[]")
    dfa = compiled(node | {"contains": INTEGER, "maxContains": 1})
    assert dfa.matches(b"[[1],1]")
    assert not dfa.matches(b"[[1],1,1]")
    assert not dfa.matches(b"[[1]]")


def test_before_draft_2020_items_that_are_contained_count_as_unevaluated() -> None:
    schema = {"type": "array", "contains": A, "unevaluatedItems": {"enum": ["a", None]}}
    assert compiled(schema | {"unevaluatedItems": {"type": "null"}}).matches(b'["a",null]')
    older = schema | {"$schema": "https://json-schema.org/draft/2019-09/schema"}
    assert compiled(older).matches(b'["a",null]')
    with pytest.raises(ConstraintError, match="allows no JSON"):
        compiled(older | {"unevaluatedItems": {"type": "null"}})


@pytest.mark.parametrize(("keyword", "value"), [("contains", 3), ("minContains", -1), ("maxContains", "a")])
def test_what_is_malformed_is_refused_by_name(keyword: str, value: Any) -> None:
    with pytest.raises(ConstraintError, match=re.escape(f"The schema keyword {keyword!r} has the value")):
        compiled({"contains": A, keyword: value})
