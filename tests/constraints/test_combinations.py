"""`oneOf`, `not` and `if`: what they allow is written, and what cannot be told apart is refused, not left out."""

import itertools
import json
import re
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from compiled_schemas import check_exact, compiled, written
from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema import compile_schema
from redraft.errors import ConstraintError

STRINGS, INTEGERS = ({"type": "array", "items": {"type": name}} for name in ("string", "integer"))
MIXED = {"type": "array", "items": {"type": ["string", "integer"]}}
SCALARS: list[Any] = [None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab"]
LISTS = [list(items) for count in range(4) for items in itertools.product([1, 1.5, "a", None], repeat=count)]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for names in ([], ["a"], ["b"], ["a", "b"]) for values in itertools.product([1, "a", 1.5], repeat=len(names))
]  # fmt: skip
VALUES = [*SCALARS, *LISTS, *OBJECTS, [[]], [["a"]], [[1], ["a"]], {"a": []}, {"a": [1]}]


EXACT: dict[str, Any] = {
    "arrays of different items": {"oneOf": [{"type": "null"}, STRINGS, INTEGERS]},
    "arrays, one within the other": {"oneOf": [MIXED, INTEGERS]},
    "the first items differ": {"oneOf": [
        {"type": "array", "prefixItems": [{"const": 1}, {"type": "string"}]},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "a"}], "minItems": 1}]},
    "some item, among few": MIXED | {"maxItems": 2, "not": {"items": {"type": "string"}}},
    "some item, among many": MIXED | {"minItems": 2, "not": {"items": {"type": "string"}}},
    "some item behind the first": {"type": "array", "not": {"prefixItems": [True], "items": {"type": "string"}}},
    "two items fail two schemas": {"type": "array", "not": {"anyOf": [STRINGS, INTEGERS]}},
    "listed values of several types": {"enum": [1, 2, "a", None], "not": {"minimum": 2}},
    "no further items": {"type": "array", "not": {"prefixItems": [True], "items": False}},
    "items inside items": {"type": "array", "items": MIXED, "not": {"items": STRINGS}},
    "nothing is both": {"anyOf": [{"type": "null"}, {"oneOf": [STRINGS, STRINGS]}]},
    "a branch within another": {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]},
    "numbers with a fraction": {"type": ["string", "number"], "not": {"type": "integer"}},
    "no fraction, after all": {"type": ["integer", "null"], "not": {"type": "integer"}},
    "fractions within bounds": {"type": "number", "minimum": 0, "maximum": 2, "not": {"type": "integer"}},
    "arrays that are not empty": {"type": ["array", "null"], "not": {"const": []}},
    "objects that are not empty": {"type": "object", "additionalProperties": {"type": "integer"}, "not": {"const": {}}},
    "not one of some arrays": {"type": ["array", "string"], "not": {"enum": [[], [1], ["a", 1], "a"]}},
    "not one of some objects": {"type": "object", "properties": {"a": {"enum": [1, "a"]}}, "required": ["a"],
                                "additionalProperties": False, "not": {"const": {"a": 1}}},
    "listed objects": {"enum": [{"a": 1}, {"a": 1, "b": 1}], "not": {"const": {"a": 1}}},
    "bounds of draft 4": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer",
                          "not": {"minimum": 1, "exclusiveMinimum": True}},
    "a member that is only required": {"type": "object", "properties": {"a": {"enum": [1, "a", 1.5]}},
                                       "required": ["b"], "not": {"additionalProperties": {"type": "string"}}},
    "free members": {"oneOf": [{"type": "object", "additionalProperties": {"type": name}} for name in
                               ("string", "null")], "maxProperties": 1},
    "names that are listed": {"type": ["object", "null"], "propertyNames": {"enum": ["a", "b", "c"]},
                              "additionalProperties": {"enum": [1, "a", 1.5]}, "not": {"maxProperties": 1}},
    "one member more than may be": {"type": ["object", "null"], "properties": {"a": {"const": 1}},
                                    "additionalProperties": False, "not": {"not": {"minProperties": 2}}},
    "dependent members": {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}},
                          "additionalProperties": False, "not": {"dependentRequired": {"a": ["b"]}}},
    "dependent schemas": {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}},
                          "additionalProperties": False, "not": {"dependentSchemas": {"b": {"required": ["a"]}}}},
    "not if": {"type": ["integer", "string"], "not": {"if": {"type": "integer"}, "then": {"minimum": 1},
                                                      "else": {"minLength": 1}}},
    "not one of": {"type": ["integer", "null"], "not": {"oneOf": [{"minimum": 1}, {"maximum": 1}]}},
    "formats of other types": {"type": ["number", "null"], "oneOf": [{"format": "email"}, {"type": "number"}]},
    "tagged objects": {"oneOf": [
        {"type": "object", "required": ["a"], "properties": {"a": tag, "b": {"enum": more}},
         "additionalProperties": False} for tag, more in (({"const": 1}, [1, "a"]), ({"enum": ["a"]}, [1.5]))]},
    "tags that need not be there": {"oneOf": [
        {"type": "object", "properties": {"a": {"const": tag}, "b": {"enum": [1, "a"]}}, "additionalProperties": False}
        for tag in (1, "a")]},
    "tags in common": {"oneOf": [
        {"type": "object", "required": ["a"], "properties": {"a": {"enum": tags}, "b": {"enum": [1]}},
         "additionalProperties": False} for tags in ([1, "a"], ["a", 1.5])]},
    "a closed branch within another": {"oneOf": [
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"enum": [1, "a"]}, "b": {"enum": [1, "a"]}},
         "additionalProperties": False}]},
    "if asks for nothing": {"type": "string", "if": {"format": "date"}},
    "else nothing": {"type": "string", "if": {"maxLength": 1}, "else": False},
    "if of arrays": {"type": ["array", "null"], "items": MIXED["items"], "if": STRINGS,
                     "then": {"maxItems": 1}, "else": {"minItems": 2}},
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_what_is_allowed_is_what_is_written(name: str) -> None:
    check_exact(EXACT[name], VALUES)


@pytest.mark.parametrize(("schema", "good", "bad"), [
    (EXACT["arrays of different items"], ['["a","b"]', "[1, 2]", "null"], ["[]", '[1,"a"]']),
    (EXACT["numbers with a fraction"], ["0.5", "-12.250", '"1"'], ["1", "1.0", "-3.000", "15e-1", "0", "-0.0"]),
    (EXACT["two items fail two schemas"], ['[{},1,"a"]', "[null]", '["a","a",1]'], ['["a"]', "[1,1]", "[]"]),
])  # fmt: skip
def test_long_texts(schema: Any, good: list[str], bad: list[str]) -> None:
    dfa = compiled(schema)
    assert all(dfa.matches(text.encode()) for text in good)
    assert not any(dfa.matches(text.encode()) for text in bad)


REFUSED: dict[str, tuple[str, Any]] = {
    "formats": ("oneOf", {"oneOf": [{"type": "null"}, *({"type": "string", "format": f} for f in ("date", "time"))]}),
    "items": ("oneOf", {"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "string", "format": "date"}},
                                  {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
    "members": ("oneOf", {"oneOf": [{"type": "null"}, *(
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"} | more}}
        for more in ({"format": "date"}, {}))]}),
    "a type": ("not", {"type": ["null", "string"], "not": {"format": "date"}}),
    "multiples": ("not", {"type": ["null", "number"], "not": {"multipleOf": 3}}),
    "members without names": ("not", {"type": ["null", "object"], "not": {"not": {"minProperties": 2}}}),
    "a member with such members": ("not", {"type": ["null", "object"], "properties": {"a": True},
                                           "not": {"not": {"required": ["a"], "properties": {"a": {
                                               "type": "object", "minProperties": 2}}}}}),
    "too few declared members": ("not", {"type": ["null", "object"], "properties": {"a": True},
                                         "not": {"maxProperties": 1}}),
    "more members than have names": ("not", {"type": "object", "minProperties": 2, "not": {"required": ["a"]}}),
    "the way without then": ("if", {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}},
                                    "if": {"properties": {"a": {"format": "date"}}}, "then": {"required": ["b"]}}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_of_which_nothing_can_be_told_apart_is_refused(name: str) -> None:
    keyword, schema = REFUSED[name]
    with pytest.raises(ConstraintError, match=re.escape(f"The schema keyword {keyword!r} cannot be enforced for the")):
        compiled(schema)
    assert not compiled(schema, strict=False).empty


def test_of_distinct_items_some_fail_what_must_fail() -> None:
    schema = {"type": "array", "items": {"enum": [1, "a", "b"]}, "uniqueItems": True, "not": STRINGS}
    dfa = compiled(schema)
    assert all(dfa.matches(text) for text in (b"[1]", b'[1,"a"]', b'[1,"a","b"]'))
    assert not any(dfa.matches(text) for text in (b"[]", b'["a"]', b'["a","b"]', b'["a",1]', b"[1,1]"))


@pytest.mark.parametrize(("items", "most", "texts"), [
    ({"enum": [1, 2, 3, 4]}, None, ["[2,1]", "[3,3,2,1]"]),
    ({"enum": [1, 2, 3, 4]}, 200, ["[2,1]", "[3,3,2,1]"]),
    ({"type": ["string", "integer", "boolean"]}, 200, ['["a",1]', '[1,true,"a"]']),
    ({"enum": [1, 2, 3]}, 40, [json.dumps([1] * 39 + [2]), json.dumps([3] * 20 + [1])]),
])  # fmt: skip
def test_items_that_each_fail_another_schema(items: dict[str, Any], most: int | None, texts: list[str]) -> None:
    one = {"enum": "const", "type": "type"}
    alike = [{"items": {one[keyword]: value}} for keyword, values in items.items() for value in values]
    schema = {"type": "array", "items": items, "minItems": 1, "not": {"anyOf": alike}}
    dfa = compiled(schema | ({} if most is None else {"maxItems": most}))
    assert all(dfa.matches(text.replace(" ", "").encode()) for text in texts)
    assert not any(dfa.matches(text) for text in (b"[]", b"[1]", b"[1,1,1]", b"[true]"))


def test_a_union_of_many_tagged_objects() -> None:
    kinds = {f"Kind{i}": {"type": "object", "required": ["kind"], "additionalProperties": False, "properties": {
        "kind": {"const": f"kind {i}"}, "size": {"type": "integer"}}} for i in range(60)}  # fmt: skip
    dfa = compiled({"oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds], "$defs": kinds})
    assert dfa.matches(b'{"kind": "kind 59", "size": 3}')
    assert dfa.matches(b'{"kind": "kind 0"}')
    assert not dfa.matches(b'{"kind": "kind 60"}')


def test_a_recursive_union_of_closed_objects_and_lists() -> None:
    """Its branches differ in the members that they require, or in their type: what fails one is not written out."""
    node = {"$ref": "#/$defs/node"}
    nodes = {"type": "array", "items": node}
    members = {"leaf": {"type": "string"}, "all": nodes, "one": {"oneOf": [nodes, node]}}
    branches = [{"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}
                for name, schema in members.items()]  # fmt: skip
    inner = [{}, {"leaf": "a"}, {"leaf": 1}, {"all": []}, {"all": [], "leaf": "a"}]
    values = [*inner, *({name: value} for name in ("all", "one") for value in (*inner, [], inner[1:2], inner[:2]))]
    check_exact({"$defs": {"node": {"oneOf": branches}}, **node}, values)


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_closed_branch_within_another_one_of_a_recursive_union(other: str) -> None:
    """Every value of it obeys two branches, so it allows nothing; its members may be of any depth."""
    node = {"$ref": "#/$defs/node"}
    nodes = {"type": "array", "items": node}
    members = {"a": node, "b": node}, {"a": nodes, "b": node}, {other: node}
    branches = [{"type": "object", "properties": each, "additionalProperties": False} for each in members]
    schema = {"$defs": {"node": {"oneOf": [*branches, {"type": "integer"}]}}, **node}
    inner: list[Any] = [1, "a", {}, [], [1], {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": [1], "b": 1}, {"a": []}]
    check_exact(schema, [*inner, *({name: value} for name in "ab" for value in inner),
                         *({"a": one, "b": two} for one in inner for two in inner)])  # fmt: skip


def recursive_union_of_optional(extra: Any) -> dict[str, Any]:
    node = {"$ref": "#/$defs/node"}
    members = {"value": {"type": "string"}}, {"left": node, "right": node}, {"all": {"type": "array", "items": node}}
    branches = [{"type": "object", "properties": each, "additionalProperties": False} for each in members]
    branches[0]["additionalProperties"] = extra
    return {"$defs": {"node": {"oneOf": branches}}, **node}


LEAF = {"value": "a"}
INNER = [{}, LEAF, {"value": 1}, {"left": LEAF}, {"left": {}}, {"left": "a"}, {"all": []}]
PAIRS = [{"left": left, "right": right} for left in INNER for right in INNER[:3]]
NODES = [1, *INNER, *PAIRS, *({"all": [value]} for value in INNER), LEAF | {"left": LEAF}]


def test_a_recursive_union_of_objects_whose_members_are_optional() -> None:
    """What fails a branch is a schema of its own; if it were another one each time, there would be no end."""
    check_exact(recursive_union_of_optional(False), NODES)


@pytest.mark.parametrize("extra", [{"type": "string"}, {"type": ["integer", "null"]}])
def test_a_recursive_union_of_objects_with_other_members(extra: Any) -> None:
    """Not all is written, but nothing that is invalid."""
    schema = recursive_union_of_optional(extra)
    dfa = compiled(schema)
    found = [value for value in NODES if dfa.matches(written(value))]
    assert LEAF in found
    assert {"left": LEAF} in found
    assert all(map(Draft202012Validator(schema).is_valid, found))


def test_a_recursive_union_of_many_tagged_objects() -> None:
    """What fails a branch, which is large, is not worked out where a tag tells the branches apart."""
    node = {"$ref": "#/$defs/node"}
    branches = [{"type": "object", "properties": {"op": {"const": op}, "left": node, "right": node},
                 "required": ["op", "left"], "additionalProperties": False} for op in "+-*/%^&|"]  # fmt: skip
    pairs = [{"op": op, "left": 1, "right": right} for op in "+|?" for right in (1, 1.5)]
    values = [1, 1.5, {"op": "+"}, {"op": "?", "left": 1}, {"op": "+", "left": 1}, {"op": "|", "left": 1.5}, *pairs]
    check_exact({"$defs": {"node": {"oneOf": [{"type": "integer"}, *branches]}}, **node}, values)


def test_a_recursive_union_of_open_objects() -> None:
    """What an object must have tells the branches apart; what fails the other branches is recursive, too."""
    node = {"$ref": "#/$defs/node"}
    members = {"and": {"type": "array", "items": node}, "or": {"type": "array", "items": node}, "not": node,
               "is": {"enum": [1, "a"]}}  # fmt: skip
    branches = [{"type": "object", "properties": {name: of}, "required": [name]} for name, of in members.items()]
    inner = [{}, {"is": 1}, {"is": 2}, {"and": []}, {"or": []}, {"not": 1}]
    values = [*inner, *({"not": value} for value in inner), *({"or": [value, {"is": "a"}]} for value in inner), 1]
    check_exact({"$defs": {"node": {"oneOf": branches}}, **node}, values)


@pytest.mark.parametrize("tag", [{"enum": list("abcdefghijkl")}, {"type": "string"}])
@pytest.mark.parametrize("otherwise", [{}, {"else": {"maxProperties": 3}}])
def test_many_conditions_on_one_tag(tag: dict[str, Any], otherwise: dict[str, Any]) -> None:
    """Each doubles the ways that there are, but no object has two tags."""
    ways = [{"if": {"properties": {"tag": {"const": name}}}, "then": {"required": [f"for {name}"]}, **otherwise}
            for name in "abcdefghijkl"]  # fmt: skip
    members = {f"for {name}": {"const": 1} for name in "abcdefghijkl"}
    schema = {"type": "object", "properties": {"tag": tag, **members}, "required": ["tag"], "allOf": ways}
    named = [("for a",), ("for b",), (), ("for a", "for b"), ("for a", "for b", "for c"), ("for l",)]
    check_exact(schema, [{"tag": tag} | dict.fromkeys(names, 1) for tag in "ablz" for names in named])


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_the_tag_of_a_discriminator_is_always_there(keyword: str) -> None:
    """As pydantic writes a recursive union of models whose tags have defaults, and reads it."""
    node: dict[str, Any] = {"$ref": "#/$defs/node"}
    kinds = {"leaf": {"type": "number"}, "one": node, "all": {"type": "array", "items": node}}
    branches = [{"type": "object", "properties": {"kind": {"const": kind, "default": kind}, "of": of},
                 "required": ["of"]} for kind, of in kinds.items()]  # fmt: skip
    tagged = {"discriminator": {"propertyName": "kind"}, keyword: branches}
    dfa = compiled({"$defs": {"node": tagged}, **node})
    for value in (
        {"kind": "leaf", "of": 1},
        {"kind": "one", "of": {"kind": "all", "of": []}},
        {"kind": "all", "of": []},
    ):
        assert dfa.matches(written(value))
    for value in ({"of": 1}, {"kind": "one", "of": {"of": 1}}, {"kind": "leaf", "of": []}, {"kind": "all", "of": 1}):
        assert not dfa.matches(written(value))


@pytest.mark.parametrize("said", [
    {"propertyName": "other"}, {"propertyName": 1}, {}, "kind", None, {"mapping": {}}, {"propertyName": ["kind"]},
])  # fmt: skip
def test_a_discriminator_that_does_not_name_a_member_of_all_branches_says_nothing(said: Any) -> None:
    branches = [{"type": "object", "properties": {"kind": {"const": kind}, **more}, "additionalProperties": False}
                for kind, more in (("a", {"other": True}), ("b", {}))]  # fmt: skip
    schema = {"anyOf": [*branches, {"type": "null"}], "discriminator": said}
    check_exact(
        schema, [None, {}, {"kind": "a"}, {"kind": "b"}, {"kind": "c"}, {"kind": "a", "other": 1}, {"other": 1}]
    )
    check_exact({**schema, "anyOf": [{"type": "null"}, True]}, [None, {}, 1])


def test_alternatives_that_multiply_are_refused() -> None:
    pairs = [{"anyOf": [{"required": [f"{side}{pair}"]} for side in "ab"]} for pair in range(9)]
    members = {f"{side}{pair}": {"type": "integer"} for side in "ab" for pair in range(9)}
    with pytest.raises(ConstraintError, match=r"alternatives of 'anyOf', .* have more than 400 combinations\."):
        compiled({"type": "object", "properties": members, "allOf": pairs})


def test_many_items_of_which_some_must_fail_a_schema_are_no_matter() -> None:
    pairs = [{"items": {"enum": [number, number + 1]}} for number in range(3)]
    schema = {"type": "array", "items": {"enum": [0, 1, 2, 3]}, "minItems": 100, "not": {"anyOf": pairs}}
    dfa = compiled(schema)
    assert len(dfa.table) < 2_000
    assert dfa.matches(written([0] * 99 + [3]))
    assert not dfa.matches(written([0] * 99 + [1]))


def test_combinations_that_explode_are_given_up_in_time() -> None:
    """Each of the branches may fail in any of its members, and so may each of those that are left."""
    branches = [{"properties": {f"m{j}": {"pattern": f"^{i + j}"} for j in range(10)}} for i in range(20)]
    started = time.thread_time()
    with pytest.raises(ConstraintError, match=r"The schema took more than 0\.2 s; make it simpler\."):
        compile_schema({"type": "object", "oneOf": branches}, Budget(seconds=0.2), strict=True)
    assert time.thread_time() - started < 3


@pytest.mark.parametrize("keyword", ["not", "oneOf"])
def test_references_that_multiply_are_given_up_in_time(keyword: str) -> None:
    layers = {f"{i}": {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 60} for i in range(4)}
    other = {"$ref": "#/$defs/0"}
    schema = {"not": other, "type": "string"} if keyword == "not" else {"oneOf": [{"type": "string"}, other]}
    with pytest.raises(ConstraintError, match=r"^The schema took more than 0\.2 s; make it simpler\.$"):
        compile_schema({"$defs": layers | {"4": {"type": "object"}}, **schema}, Budget(seconds=0.2), strict=True)


def test_what_allows_nothing_is_said_so() -> None:
    with pytest.raises(ConstraintError, match="allows no JSON"):
        compiled({"oneOf": [{"type": "object"}, {"type": "object"}]})


def test_what_may_allow_something_that_is_not_written_is_not_said_to_allow_nothing() -> None:
    unlike = {"type": "object", "not": {"additionalProperties": False, "patternProperties": {"^$": True},
                                        "dependentRequired": {"b": ["a"]}}}  # fmt: skip
    with pytest.raises(ConstraintError, match=r"^The schema allows no JSON at all, as far as .* 'not' can be enforced"):
        compiled({"allOf": [unlike, {"required": ["a"]}]})


def test_a_number_that_is_excluded_is_not_written_in_another_way() -> None:
    dfa = compiled({"type": "number", "not": {"enum": [0, 2]}})
    for text in (b"0", b"-0", b"0.0", b"-0.00", b"2", b"2.0"):
        assert not dfa.matches(text), text
    assert dfa.matches(b"-2")


def test_a_name_that_matches_two_patterns_is_not_written() -> None:
    dfa = compiled({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}})
    assert dfa.matches(b'{"a":1,"b":"x","c":null}')
    assert not dfa.matches(b'{"ab":1}')
    assert not dfa.matches(b'{"ab":"x"}')
