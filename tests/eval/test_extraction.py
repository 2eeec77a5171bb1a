"""Extraction: the shipped items are sound, answers are judged by their content, and the schema reaches the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import redraft
from compiled_schemas import compiled, written
from redraft.errors import ConstraintError, InputError
from redraft.eval import DATA
from redraft.eval.extraction import TASK, ExtractionItem, is_solved, read_extraction_jsonl
from redraft.llm import LLM

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RECORD = {
    "id": "x",
    "messages": [{"role": "user", "content": "Ann is 3. JSON, please."}],
    "schema": SCHEMA,
    "expected": {"name": ["Ann", "Ann Lee"], "age": [3]},
}


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return redraft.load("tiny", device="cpu", dtype="float32")


def item(expected: dict[str, list[Any]]) -> ExtractionItem:
    return ExtractionItem(id="x", messages=[], schema={}, expected=expected)


def test_shipped_items_are_all_different() -> None:
    items = TASK.items()
    assert [one.id for one in items] == [f"extraction-{i:03d}" for i in range(100)]
    assert len({one.messages[-1]["content"] for one in items}) == 100
    assert all(sum(len(message["content"].split()) for message in one.messages) < 90 for one in items)


@pytest.mark.parametrize("shipped", read_extraction_jsonl(DATA / "extraction.jsonl"), ids=lambda shipped: shipped.id)
def test_shipped_schemas_allow_every_accepted_value(shipped: ExtractionItem) -> None:
    assert shipped.schema["additionalProperties"] is False
    assert shipped.schema["required"] == list(shipped.schema["properties"]) == list(shipped.expected)
    dfa, judge = compiled(shipped.schema), Draft202012Validator(shipped.schema)
    first = {name: values[0] for name, values in shipped.expected.items()}
    for answer in (first | {name: value} for name, values in shipped.expected.items() for value in values):
        judge.validate(answer)
        assert dfa.matches(written(answer))
        assert is_solved(shipped, json.dumps(answer))


def test_shipped_items_expect_what_their_texts_say() -> None:
    """Everything but booleans, null and members of an enum can be copied."""
    for one in TASK.items():
        text = one.messages[-1]["content"].casefold()
        for name, values in one.expected.items():
            if "enum" not in one.schema["properties"][name]:
                assert all(str(leaf).casefold() in text for leaf in leaves(values[0])), (one.id, name)


def leaves(value: Any) -> list[Any]:
    """The strings and numbers inside a value."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return [leaf for part in inside for leaf in leaves(part)]
    return [] if value is None or isinstance(value, bool) else [value]


@pytest.mark.parametrize(
    ("accepted", "value", "solved"),
    [
        (["Ann", "Ann Lee"], "ann lee", True),
        (["Ann"], " ANN. ", True),
        (["Acme Inc."], "Acme Inc", True),
        (["Ann"], "Anna", False),
        (["Ann"], "", False),
        (["Ann"], ["Ann"], False),
        ([3], 3.0, True),
        ([0.9], 0.90, True),
        ([3], "3", False),
        (["3"], 3, False),
        ([1], True, False),
        ([True], True, True),
        ([True], False, False),
        ([None], None, True),
        ([None], "", False),
        ([["a", "b"]], ["A", "b"], True),
        ([["a", "b"]], ["b", "a"], False),
        ([["a", "b"]], ["a"], False),
        ([["a", "b"], ["the a"]], ["the a"], True),
        ([[{"n": "a", "p": 2}]], [{"p": 2.0, "n": "A"}], True),
        ([[{"n": "a", "p": 2}]], [{"n": "a", "p": 3}], False),
    ],
)
def test_values_are_compared_as_people_would(accepted: list[Any], value: Any, solved: bool) -> None:
    assert is_solved(item({"x": accepted}), json.dumps({"x": value})) == solved


@pytest.mark.parametrize(
    "text", ["", "Ann", '"Ann"', "[]", '{"name": "Ann"', '{"name": "Ann"}', '{"name": "Ann", "age": 3, "city": "Rome"}']
)
def test_other_texts_are_not_solved(text: str) -> None:
    assert not is_solved(item({"name": ["Ann"], "age": [3]}), text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "messages must be a list"),
        ({"schema": "object"}, "the field 'schema' must be an object"),
        ({"schema": {"type": "array"}}, "the schema must be of the type 'object' and have properties"),
        ({"schema": {"type": "object", "properties": {}}}, "the schema must be of the type 'object' and have"),
        ({"expected": {"name": ["Ann"]}}, "the property 'age' is in only one of 'schema' and 'expected'"),
        ({"expected": {**RECORD["expected"], "x": [1]}}, "the property 'x' is in only one of"),
        ({"expected": {"name": "Ann", "age": [3]}}, "the property 'name' must have a list of accepted values"),
        ({"expected": {"name": ["Ann"], "age": []}}, "the property 'age' must have a list of accepted values"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + json.dumps(RECORD | change) + "\n")
    with pytest.raises(InputError) as caught:
        read_extraction_jsonl(path)
    assert f"{path}, line 2: {message}" in str(caught.value)


def test_a_schema_that_allows_nothing_is_named_before_anything_is_asked(tiny: LLM, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(RECORD | {"schema": SCHEMA | {"maxProperties": 1}}) + "\n")
    with pytest.raises(ConstraintError, match="item x: "):
        TASK.evaluate(tiny, read_extraction_jsonl(path))


def test_answers_obey_the_schema_of_their_item(tiny: LLM) -> None:
    items = TASK.items()[:3]
    result = TASK.evaluate(tiny, items, max_tokens=128, steps=4)
    assert result.total == 3
    for one, record in zip(items, result.records, strict=True):
        Draft202012Validator(one.schema).validate(json.loads(record.output))
    assert result.records[0].expected == 'name: "Maria Lopez"; age: 34'
