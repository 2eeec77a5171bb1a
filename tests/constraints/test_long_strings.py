"""Long strings with patterns: they take no more states than a schema has room for."""

from compiled_schemas import compiled, written


def test_characters_that_are_told_apart_elsewhere_are_spelled_together() -> None:
    """Only the second of these characters is one of many ranges."""
    dfa = compiled({"type": "string", "pattern": r"^[^_][\p{L}\p{M}\p{S}\p{N}\p{P}][^_]+$", "maxLength": 32})
    assert len(dfa.table) < 1_000
    for text, allowed in (("aéa", True), ("🙂Ж🙂", True), ("_aa", False), ("a\u200ba", False)):
        assert dfa.matches(written(text)) is allowed
