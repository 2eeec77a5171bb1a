"""Long strings with patterns: they take no more states than a schema has room for."""

from typing import Any

from compiled_schemas import compiled, written


def members(count: int, schema: dict[str, Any]) -> dict[str, Any]:
    names = [f"m{i}" for i in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, schema), "required": names}


def test_characters_that_are_told_apart_elsewhere_are_spelled_together() -> None:
    """Only the second of these characters is one of many ranges."""
    dfa = compiled({"type": "string", "pattern": r"^[^_][\p{L}\p{M}\p{S}\p{N}\p{P}][^_]+$", "maxLength": 32})
    assert len(dfa.table) < 1_000
    for text, allowed in (("aéa", True), ("🙂Ж🙂", True), ("_aa", False), ("a\u200ba", False)):
        assert dfa.matches(written(text)) is allowed


def test_a_limit_is_lowered_where_the_shortest_text_is_long() -> None:
    arn = r"^arn:aws:cloudformation:[a-z0-9-]+:[0-9]{12}:stack/[a-zA-Z0-9/-]+$"
    dfa = compiled(members(60, {"type": "string", "pattern": arn, "maxLength": 2048}))
    short, long = (f"arn:aws:cloudformation:eu:123456789012:stack/{count * 'a'}" for count in (1, 15))
    assert dfa.matches(written({f"m{i}": long if i % 2 else short for i in range(60)}))
