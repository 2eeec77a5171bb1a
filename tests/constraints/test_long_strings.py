"""Long strings with patterns: they take no more states than a schema has room for."""

from typing import Any

import pytest

from compiled_schemas import compiled, written
from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.spelling import compile_bytes

TEXT = r"^([\p{L}\p{Z}\p{N}_.:/=+\-@]*)$"
"""As AWS describes the keys and values of tags."""


def members(count: int, schema: dict[str, Any]) -> dict[str, Any]:
    names = [f"m{i}" for i in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, schema), "required": names}


def test_characters_that_are_told_apart_elsewhere_are_spelled_together() -> None:
    """Only the second of these characters is one of many ranges."""
    dfa = compiled({"type": "string", "pattern": r"^[^_][\p{L}\p{M}\p{S}\p{N}\p{P}][^_]+$", "maxLength": 32})
    assert len(dfa.table) < 1_000
    for text, allowed in (("aéa", True), ("🙂Ж🙂", True), ("_aa", False), ("a\u200ba", False)):
        assert dfa.matches(written(text)) is allowed


ARN = {
    "type": "string",
    "pattern": r"^arn:aws:cloudformation:[a-z0-9-]+:[0-9]{12}:stack/[a-zA-Z0-9/-]+$",
    "maxLength": 2048,
}


def test_a_limit_is_lowered_where_the_shortest_text_is_long() -> None:
    dfa = compiled(members(60, ARN))
    short, long = (f"arn:aws:cloudformation:eu:123456789012:stack/{count * 'a'}" for count in (1, 15))
    assert dfa.matches(written({f"m{i}": long if i % 2 else short for i in range(60)}))


def test_it_is_kept_where_there_is_room_for_it() -> None:
    """The other member takes so many states that the schema is unfolded as little as possible."""
    long = {"type": "string", "pattern": "^[a-z]{40,}$", "maxLength": 2048}
    dfa = compiled({"type": "object", "properties": {"long": long, "other": {"const": 6_000 * "x"}}})
    for count, allowed in ((39, False), (40, True), (2048, True), (2049, False)):
        assert dfa.matches(written({"long": count * "a"})) is allowed


@pytest.mark.parametrize("schema", [
    members(2, {"type": "string", "pattern": TEXT, "maxLength": 256}),
    members(40, {"type": "string", "pattern": r"\S", "maxLength": 100}),
    {"type": "array", "items": {"type": "string", "pattern": TEXT, "maxLength": 40}, "maxItems": 50},
])  # fmt: skip
def test_limits_are_lowered_until_their_bytes_have_enough_states(schema: dict[str, Any]) -> None:
    """A character outside of ASCII takes many states over bytes, and one in an automaton over characters."""
    dfa = compiled(schema)
    text = "Größe 二 @"
    assert dfa.matches(written([text] if "items" in schema else dict.fromkeys(schema["required"], text)))


@pytest.mark.parametrize("pattern", [TEXT, r"\S", ".*", r"^[^/]+$", "^[a-z]+$", "[\u0400-\u04ff]"])
def test_states_over_bytes_are_estimated(pattern: str) -> None:
    found = compile_schema({"type": "string", "pattern": pattern, "maxLength": 20}, Budget(), strict=True)
    assert 0.8 < found.spelled / len(compile_bytes(found, Budget()).table) < 1.25
