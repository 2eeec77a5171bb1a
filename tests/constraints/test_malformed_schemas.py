"""What is wrong with a schema is said in one sentence; numbers are taken as they are written."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from redraft.constraints import build
from redraft.constraints.automaton import Budget
from redraft.constraints.build import schema_of
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.json_schema.compiler import MAX_DEPTH
from redraft.constraints.json_schema.references import Document
from redraft.constraints.spelling import compile_bytes
from redraft.errors import ConstraintError
from redraft.text.tokenizer import Tokenizer

WRONG: list[tuple[str, Any]] = [
    ("dependentRequired", {"a": {"required": ["b"]}}), ("dependentSchemas", {"a": ["b"]}), ("uniqueItems", 3),
    ("uniqueItems", "true"), ("minItems", None), ("additionalItems", 3), ("items", 3), ("dependencies", {"a": "b"}),
    ("additionalProperties", "garbage"), ("additionalProperties", 5), ("additionalProperties", [1]),
    ("propertyNames", "garbage"), ("unevaluatedProperties", 5), ("unevaluatedItems", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("keyword", "value"), WRONG)
def test_a_value_of_the_wrong_type_is_refused(keyword: str, value: Any) -> None:
    said = re.escape(f"The schema keyword {keyword!r} has the value {value!r}, which is not allowed.")
    with pytest.raises(ConstraintError, match=said):
        compile_schema({keyword: value}, Budget(), strict=True)


@pytest.mark.parametrize("kind", ["string", "array", "integer"])
@pytest.mark.parametrize("flag", [True, False])
def test_required_as_a_flag_is_refused_in_a_member_of_any_type(kind: str, flag: bool) -> None:
    said = re.escape(f"The schema keyword 'required' has the value {flag}, which is not allowed (at '#/properties/a').")
    with pytest.raises(ConstraintError, match=said):
        compile_schema({"properties": {"a": {"type": kind, "required": flag}}}, Budget(), strict=False)


@pytest.mark.parametrize(("outer", "deepest"), [
    ({"type": "array", "minItems": 1}, "items"), ({"type": "object", "required": ["a"]}, "properties"),
    ({"type": "object", "minProperties": 1}, "additionalProperties"),
])  # fmt: skip
def test_a_schema_that_is_nested_too_deeply_is_called_so(outer: dict[str, Any], deepest: str) -> None:
    schema: Any = {"type": "integer"}
    for level in range(MAX_DEPTH):
        if level == MAX_DEPTH - 1:
            assert compile_schema(schema, Budget(), strict=True)
        schema = {**outer, deepest: {"a": schema} if deepest == "properties" else schema}
    with pytest.raises(ConstraintError, match=rf"^The schema is nested more than {MAX_DEPTH} levels deep \(at '#/"):
        compile_schema(schema, Budget(), strict=True)


@pytest.mark.parametrize("keyword", ["then", "else"])
def test_a_way_that_is_no_schema_is_refused(keyword: str) -> None:
    with pytest.raises(ConstraintError, match=f"The schema keyword {keyword!r} has the value 3"):
        compile_schema({"if": True, keyword: 3}, Budget(), strict=True)


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ('{"type": "integer", "minimum": 9007199254740993.0}', ["9007199254740993"], ["9007199254740992"]),
    ('{"type": "integer", "maximum": 9.007199254740993e15}', ["9007199254740993"], ["9007199254740994"]),
    ('{"type": "number", "minimum": 9007199254740993.5}', ["9007199254740993.5"], ["9007199254740993.4"]),
    ('{"enum": [9007199254740993.0], "minimum": 9007199254740993.0}', ["9007199254740993.0"], ["9007199254740992.0"]),
    ('{"const": [0.10000000000000000001]}', ["[0.10000000000000000001]"], ["[0.1]"]),
    ({"enum": [1, 1.0]}, ["1"], ["1.0"]),
    ({"type": "string", "pattern": r"^\ud83d\uDE00[\ud83d\ude00-\ud83d\ude02]$"}, ['"😀😁"'], ['"😀"', '"😀😃"']),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 1.0]}}, ["[1]"], ["[1.0]"]),
    ({"type": "integer", "minimum": 9007199254740993}, ["9007199254740993"], ["9007199254740992"]),
])  # fmt: skip
def test_numbers_keep_the_digits_that_a_text_gives_them(schema: Any, good: list[str], bad: list[str]) -> None:
    dfa = compile_bytes(compile_schema(schema_of(schema), Budget(), strict=True), Budget())
    assert all(dfa.matches(text.encode()) for text in good)
    assert not any(dfa.matches(text.encode()) for text in bad)


@pytest.mark.parametrize("name", ["absent", "exclude", "unlike", "some", "fraction", "fail"])
def test_a_schema_cannot_hold_keywords_that_are_ours(tokenizer: Tokenizer, name: str) -> None:
    said = re.escape(f"The schema holds the name '\\x00{name}', which begins with a zero character.")
    with pytest.raises(ConstraintError, match=said):
        build(tokenizer, json_schema={"properties": {"a": {f"\0{name}": True}}})
    declared = {"type": "function", "function": {"name": "f", "parameters": {f"\0{name}": 5}}}
    with pytest.raises(ConstraintError, match=said):
        build(tokenizer, tools=[declared], tool_choice="required")


@pytest.mark.parametrize("number", ["1e-2500", "1.23456e-319", "1e-9999999999999999999"])
def test_a_number_of_absurd_size_is_refused(number: str) -> None:
    said = re.escape(f"The schema holds {number}, which has more than 320 digits before or after its point.")
    with pytest.raises(ConstraintError, match=said):
        schema_of(f'{{"type": "number", "minimum": {number}}}')


@pytest.mark.parametrize("read", [str, schema_of])
def test_bounds_that_round_alike_are_compiled_apart(tokenizer: Tokenizer, read: Callable[[str], Any]) -> None:
    one, other = (
        build(tokenizer, json_schema=read(f'{{"type": "integer", "minimum": {bound}.0, "maximum": 9007199254740999}}'))
        for bound in (9007199254740993, 9007199254740992)
    )
    assert one is not None
    assert other is not None
    assert one.automaton is not other.automaton


def test_bounds_that_round_alike_are_told_apart_by_their_place(tokenizer: Tokenizer) -> None:
    bounds = '{"type": "integer", "minimum": %s.0, "maximum": %s.0}'
    assert build(tokenizer, json_schema=bounds % (9007199254740992, 9007199254740993)) is not None
    with pytest.raises(ConstraintError, match="The schema allows no JSON at all"):
        build(tokenizer, json_schema=bounds % (9007199254740993, 9007199254740992))


@pytest.mark.parametrize(("schema", "said"), [
    ({"type": "string", "pattern": "^x$", "format": "date"},
     "No string can be written that obeys 'pattern' '^x$' and 'format' 'date' of the schema at once."),
    ({"type": "string", "pattern": "\ud800"},
     "matches no text that can be written; a surrogate, for example, is not a character"),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^\x01"}}, "required": ["a"]},
     "and only a few control characters can be written (at '#/properties/a')."),
    ({"type": "string", "pattern": r"^\ud83d$"}, r"'^\\ud83d$' matches no text that can be written"),
])  # fmt: skip
def test_a_string_that_cannot_be_written_is_told(schema: Any, said: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(said)):
        compile_schema(schema, Budget(), strict=True)


TWICE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
PLACES: list[tuple[Any, str]] = [
    ({"properties": {"a/b~": {"items": TWICE}}}, "'uniqueItems' * (at '#/properties/a~1b~0/items')."),
    ({"allOf": [{"properties": {"a": {"type": "array"}}}, {"properties": {"a": TWICE}}]},
     "'uniqueItems' * (at '#/allOf/0/properties/a' and '#/allOf/1/properties/a')."),
    ({"$defs": {"t": TWICE}, "items": {"$ref": "#/$defs/t"}}, "'uniqueItems' * (at '#/$defs/t')."),
    ({"anyOf": [{"minLength": 1}, {"minLength": -1}]}, "'minLength' * (at '#/anyOf/1')."),
    ({"type": "string", "not": {"minLength": -1}}, "'minLength' * (at '#/not')."),
    ({"type": "object", "required": ["a"], "properties": {"a": {"required": ["b"], "properties": {"b": False},
                                                               "type": "object"}}},
     "requires a member named 'b', for which it allows no value (at '#/properties/a')."),
    ({"properties": {"a": {"$ref": "#/x"}}}, "names '#/x', which is not in the document (at '#/properties/a')."),
    (TWICE, "'uniqueItems' can be enforced only for items of an enum, or for integers whose minimum and maximum leave "
     "at most 64; leave it out, or name an enum."),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "said"), PLACES)
def test_what_is_refused_is_named_with_its_place(schema: Any, said: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(said).replace(r"\*", "[^(]*") + "$"):
        compile_schema(schema, Budget(), strict=True)


def test_places_are_looked_for_only_where_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Document, "placed")  # it walks through the whole document
    unwritable = {"type": "string", "pattern": "^a$", "minLength": 2}
    compile_schema({"type": "object", "properties": {"a": unwritable}}, Budget(), strict=True)
