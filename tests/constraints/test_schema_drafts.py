"""The draft that a schema declares decides what its keywords say: compared with the `jsonschema` package."""

import json
from typing import Any

import pytest
from jsonschema.validators import validator_for

from compiled_schemas import compiled
from redraft.constraints.json_schema.style import CALL

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
VALUES: list[Any] = [None, 0, 1, 2, "", "a", [], [1], [2], [1, "a"], [2, "a"], {}, {"a": 1}, {"a": 1, "b": 1}, {"b": 1}]


KEYWORDS: dict[str, dict[str, Any]] = {
    "neighbours of a reference": {"$ref": "#/definitions/number", "maximum": 1},
    "what must fail beside a reference": {"not": {"$ref": "#/definitions/number", "maximum": 1}},
    "prefixItems": {"type": "array", "prefixItems": [{"const": 1}]},
    "const": {"const": 1},
    "a constant that must fail": {"type": "integer", "not": {"const": 1, "minimum": 1}},
    "if": {"type": "integer", "if": {"minimum": 1}, "then": {"maximum": 1}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 0}},
    "dependentRequired": {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", KEYWORDS)
def test_keywords_count_from_the_draft_that_brought_them(name: str, draft: int) -> None:
    schema = {"$schema": DRAFTS[draft], "definitions": {"number": {"type": "number"}}} | KEYWORDS[name]
    dfa, judge = compiled(schema), validator_for(schema)(schema)
    for value in VALUES:
        assert dfa.matches(json.dumps(value, separators=(",", ":")).encode()) == judge.is_valid(value), value


def test_without_a_declared_draft_all_keywords_count() -> None:
    dfa = compiled({"id": "old.json", "$ref": "#/definitions/number", "maximum": 1, "definitions": {"number": {}}})
    assert dfa.matches(b"1")
    assert not dfa.matches(b"2")


def test_arguments_are_an_object_even_if_they_are_a_reference_that_stands_alone() -> None:
    schema = {"$schema": DRAFTS[7], "$ref": "#/definitions/any", "definitions": {"any": {"maxProperties": 0}}}
    dfa = compiled(schema, style=CALL, also={"type": "object"})
    assert dfa.matches(b"{}")
    assert not dfa.matches(b"1")
