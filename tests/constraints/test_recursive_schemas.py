"""Schemas that contain each other: how far they are unfolded, and that this takes no time."""

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from compiled_schemas import check_exact, compiled, written
from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.json_schema.patterns import Patterns
from redraft.constraints.json_schema.reader import Reader
from redraft.constraints.json_schema.recursion import Recursion
from redraft.constraints.json_schema.references import Document
from redraft.constraints.json_schema.shapes import ANYTHING, Shape, outline_of, same
from redraft.constraints.spelling import compile_bytes

NODE, OTHER = {"$ref": "#/$defs/node"}, {"$ref": "#/$defs/other"}
NODES = {"type": "array", "items": NODE}


def syntax(count: int, keyword: str) -> dict[str, Any]:
    """As pydantic writes models of a syntax tree: every member that holds any of the models is a union of its own."""
    names = [f"T{i}" for i in range(count)]

    def union() -> dict[str, Any]:
        found = {keyword: [{"$ref": f"#/$defs/{name}"} for name in names]}
        return found | ({"discriminator": {"propertyName": "kind"}} if keyword == "oneOf" else {})

    def model(name: str) -> dict[str, Any]:
        members = {"one": union(), "all": {"type": "array", "items": union()}}
        members = {"value": {"type": "integer"}} if name == "T0" else members
        kind = {"kind": {"const": name, "type": "string"}}
        return {"type": "object", "properties": kind | members, "required": ["kind", *members]}

    return {"$defs": {name: model(name) for name in names}, **union()}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("count", [2, 5, 40])
def test_unions_of_many_models_compile(keyword: str, count: int) -> None:
    """A path may lead through all models in any order: there are more of them than could be written."""
    leaf, last = {"kind": "T0", "value": 1}, f"T{count - 1}"
    inner = [leaf, {"kind": last, "one": leaf, "all": [leaf, leaf]}, {"kind": "T0"}, {"kind": last, "one": leaf}, 1]
    values = [*inner, {"kind": last, "one": 1, "all": []}, {"kind": last, "one": leaf, "all": [{"kind": "T"}]}]
    budget = Budget(seconds=5)
    compile_schema(syntax(count, keyword), budget, strict=True)
    check_exact(syntax(count, keyword), values)


def test_schemas_that_contain_each_other_are_unfolded_together() -> None:
    dfa = compiled(syntax(3, "anyOf"))
    value: Any = {"kind": "T0", "value": 1}
    for depth, kind in enumerate(("T1", "T2")):
        value = {"kind": kind, "one": value, "all": []}
        assert dfa.matches(written(value)), depth


def test_a_value_that_needs_more_depth_than_is_written_is_found() -> None:
    """Each of these schemas may contain itself and the first one, and needs the next one."""
    steps = {
        f"n{i}": {"type": "object", "required": ["next"], "additionalProperties": False,
                  "properties": {"next": {"$ref": f"#/$defs/n{i + 1}"}, "own": {"$ref": f"#/$defs/n{i}"}}}
        for i in range(7)
    }  # fmt: skip
    last = {"type": "object", "properties": {"first": {"$ref": "#/$defs/n0"}}, "additionalProperties": False}
    value: Any = {}
    for _ in steps:
        value = {"next": value}
    assert compiled({"$defs": steps | {"n7": last}, "$ref": "#/$defs/n0"}).matches(written(value))


def test_one_place_where_all_recursion_passes_is_counted() -> None:
    """A node that is also in a list, and a list that is also elsewhere, do not use up the depth twice."""
    either = {"anyOf": [NODE, NODES, {"type": "null"}]}
    dfa = compiled({"$defs": {"node": {"type": "object", "properties": {"child": either}}}, **NODE})
    assert dfa.matches(b'{"child":[{"child":[{"child":null}]}]}')
    assert dfa.matches(b'{"child":{"child":[{"child":null}]}}')


def part(dice: random.Random) -> dict[str, Any]:
    one, other = dice.choice([NODE, OTHER]), dice.choice([NODE, OTHER])
    return dice.choice([
        one, {"type": "array", "items": one}, {"type": "object", "additionalProperties": one},
        {"anyOf": [one, {"type": "null"}]}, {"anyOf": [one, {"type": "array", "items": other}]}, {"type": "integer"},
    ])  # fmt: skip


def member(dice: random.Random) -> dict[str, Any]:
    names = dice.sample(["a", "b", "c"], dice.randrange(1, 4))
    closed = {"additionalProperties": False} if dice.random() < 0.5 else {}
    return {"type": "object", "properties": {name: part(dice) for name in names},
            "required": dice.sample(names, dice.random() < 0.3), **closed}  # fmt: skip


def recursive(dice: random.Random) -> dict[str, Any]:
    """Unions whose branches share recursive members."""
    unions = {name: {"anyOf": [member(dice) for _ in range(dice.randrange(2, 5))]} for name in ("node", "other")}
    for union in unions.values():
        union |= {"properties": {"a": part(dice)}} if dice.random() < 0.3 else {}
    return {"$defs": unions, **NODE}


def small_values(depth: int) -> Iterator[Any]:
    yield from (1, None, [], {}, {"z": 1}, {"child": 1})
    if depth:
        inner = list(small_values(depth - 1))
        yield from ([value] for value in inner)
        yield from ({name: value} for name in ("a", "b", "c", "child") for value in inner)
        yield from ({"a": one, "b": other} for one, other in itertools.product(inner[:8], repeat=2))


def test_random_recursive_unions_are_written_as_far_as_they_are_valid() -> None:
    values = [(value, written(value)) for value in small_values(2)]
    valid = 0
    for seed in range(16):
        schema = recursive(random.Random(seed))
        dfa, judge = compiled(schema), Draft202012Validator(schema)
        for value, text in values:
            if dfa.matches(text):
                valid += 1
                assert judge.is_valid(value), (seed, value)
    assert valid > 200


@pytest.mark.parametrize("extra", [{}, {"additionalProperties": False}, {"required": ["child"]}])
@pytest.mark.parametrize("leaf", [{"type": "integer"}, {"type": "object", "required": ["value"]}])
def test_one_of_branches_whose_member_is_a_node_or_a_list_of_nodes(leaf: Any, extra: dict[str, Any]) -> None:
    """What fails such a schema contains itself, too: it is the same at every level."""
    branches = [
        {"type": "object", "properties": {"child": child, "next": NODE}, **extra} for child in (NODE, NODES)
    ]  # fmt: skip
    schema = {"$defs": {"node": {"oneOf": [*branches, leaf]}}, **NODE}
    found = compile_schema(schema, Budget(seconds=5), strict=True)
    dfa, judge = compile_bytes(found, Budget()), Draft202012Validator(schema)
    end: Any = 1 if leaf == {"type": "integer"} else {"value": 1}
    for child in (end, [end], []):
        if judge.is_valid({"child": child}):
            assert dfa.matches(written({"child": child}))
    for value in small_values(2):
        if dfa.matches(written(value)):
            assert judge.is_valid(value), value
    nested = ({"child": one, "next": other} for one, other in itertools.product(small_values(1), repeat=2))
    for value in nested:
        if dfa.matches(written(value)):
            assert judge.is_valid(value), value


def test_what_fails_overlapping_branches_is_read_once() -> None:
    """In what fails a node each branch comes again for each of the others, and so does what fails the branch."""
    maps = [
        {"type": "object", "additionalProperties": schema} for schema in ({"type": "integer"}, NODE, {"const": "x"})
    ]
    closed: dict[str, Any] = {"type": "object", "additionalProperties": False}
    branches = [
        {**closed, "properties": {"c": {"const": "x"}}},
        {"type": "object", "properties": {"b": maps[0], "c": {"type": "number"}, "d": maps[1]}, "required": ["d"]},
        {**closed, "properties": {"b": {"type": "number"}, "c": NODES, "d": {"oneOf": [NODE, NODES]}},
         "required": ["d"]},
        {**closed, "properties": {"b": maps[2], "c": {"anyOf": [NODE, {"type": "null"}]}, "d": {"type": "boolean"}},
         "required": ["b"]},
    ]  # fmt: skip
    schema = {"$defs": {"node": {"oneOf": branches}}, **NODE}
    dfa = compile_bytes(compile_schema(schema, Budget(seconds=3), strict=True), Budget())
    judge = Draft202012Validator(schema)
    assert all(dfa.matches(written(value)) for value in ({}, {"c": "x"}, {"b": {}}, {"b": {"a": "x"}, "d": True}))
    for value in [*small_values(2), *({"d": value} for value in small_values(1)), {"b": {"a": 1}}, {"b": {}, "d": {}}]:
        if dfa.matches(written(value)):
            assert judge.is_valid(value), value


def test_equal_shapes_have_equal_outlines() -> None:
    """So an equal one is found among many by looking at few: recursive unions have hundreds of shapes."""
    shapes = list[Shape](ANYTHING)
    for seed in range(24):
        budget, schema = Budget(), recursive(random.Random(seed))
        document = Document(schema, budget)
        shapes += Reader(document, Patterns(budget, strict=True), budget, strict=True).shapes((document.root,))
    copies = copy.deepcopy(shapes)
    assert len(set(map(outline_of, shapes))) > 10
    for one, other in itertools.product(shapes, copies):
        assert not same(one, other) or outline_of(one) == outline_of(other)


def test_every_cycle_has_a_turn() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        count = dice.randrange(1, 12)
        edges = {i: dice.sample(range(count), dice.randrange(min(count, 3) + 1)) for i in range(count)}
        found = Recursion(edges)
        reached = {i: reach(edges, i) for i in range(count)}
        assert set(found.group) == set(edges)
        for i, j in itertools.product(found.group, repeat=2):
            together = i == j or (i in reached[j] and j in reached[i])
            assert (found.group[i] == found.group[j]) == together
        straight = {i: [j for j in edges[i] if j not in found.turns] for i in found.group}
        assert not any(i in reach(straight, i) for i in straight if i not in found.turns)


def reach(edges: dict[int, list[int]], start: int) -> set[int]:
    found, waiting = set[int](), list(edges[start])
    while waiting:
        if (here := waiting.pop()) not in found:
            found.add(here)
            waiting += edges.get(here, [])
    return found
