"""What a `$ref` names, in documents with resources of their own: the same as the package `referencing` finds."""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema.exceptions import _WrappedReferencingError
from jsonschema.validators import validator_for
from referencing import Registry

from redraft.constraints import build
from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema import parse_number
from redraft.constraints.json_schema.patterns import Patterns
from redraft.constraints.json_schema.reader import Reader
from redraft.constraints.json_schema.references import Document
from redraft.errors import ConstraintError
from redraft.text.tokenizer import Tokenizer

DRAFT_4, DRAFT_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
IDS = ("m.json", "n.json", "http://other/x.json", "sub/y.json", "/z.json")


def allowed(schema: Any, values: range) -> list[bool] | str:
    """Which of some integers obey a schema."""
    try:
        budget = Budget()
        document = Document(schema, budget)
        reader = Reader(document, Patterns(budget, strict=True), budget, strict=True)
        return [reader.fits(value, (document.root,)) for value in values]
    except ConstraintError:
        return "error"


def judged(schema: Any, values: range) -> list[bool] | str:
    """The same, as the package says."""
    validator = validator_for(schema)(schema, registry=Registry())
    try:
        return [validator.is_valid(value) for value in values]
    except (_WrappedReferencingError, RecursionError):
        return "error"


EMBEDDED = {"$id": "inner.json", "$ref": "#/$defs/a", "$defs": {"a": {"const": 2, "$anchor": "here"}}}
CASES: dict[str, Any] = {
    "a pointer stays in its resource": {"$ref": "inner.json"},
    "a pointer from outside": {"$ref": "inner.json#/$defs/a"},
    "an anchor": {"$ref": "inner.json#here"},
    "in full": {"$ref": "http://outer/inner.json"},
    "by its place": {"$ref": "#/$defs/inner"},
    "the other resource's anchor": {"$ref": "#here"},
    "the document itself": {"anyOf": [{"$ref": "root.json#/$defs/a"}, {"$ref": "http://outer/root.json#/$defs/inner"}]},
    "what only looks like an id": {"anyOf": [{"$ref": "#/$defs/a"}, {"const": {"$id": "inner.json"}}]},
}


@pytest.mark.parametrize("name", CASES)
def test_a_reference_is_read_where_it_stands(name: str) -> None:
    schema = {"$schema": DRAFT_2020, "$id": "http://outer/root.json",
              "$defs": {"a": {"const": 1}, "inner": EMBEDDED}} | CASES[name]  # fmt: skip
    assert allowed(schema, range(4)) == judged(schema, range(4))


@pytest.mark.parametrize("defs", ["ab", "ba"])
def test_a_schema_inside_an_unknown_keyword_does_not_take_the_name_of_another(defs: str) -> None:
    others = [{"$id": "x.json", "minimum": 1}, {"$id": "y.json", "$anchor": "q", "minimum": 3}]
    parts = {"a": {"$id": "x.json", "$anchor": "p", "minimum": 2}, "b": {"unknown": others}}
    schema = {"$schema": DRAFT_2020, "$defs": {name: parts[name] for name in defs}}
    for reference in ("x.json", "x.json#p"):
        assert allowed(schema | {"$ref": reference}, range(4)) == [False, False, True, True]
    assert allowed(schema | {"$ref": "y.json#q"}, range(4)) == [False, False, False, True]


@pytest.mark.parametrize("draft", [DRAFT_7, DRAFT_2020])
def test_what_stands_beside_a_reference_fails_a_schema_only_where_it_counts(draft: str) -> None:
    schema = {"$schema": draft, "not": {"$ref": "#/definitions/a", "maximum": 1}, "definitions": {"a": {"minimum": 1}}}
    assert allowed(schema, range(4)) == judged(schema, range(4))


@pytest.mark.parametrize("draft", [DRAFT_4, DRAFT_7, DRAFT_2020])
def test_random_documents_mean_what_the_package_says(draft: str) -> None:
    resolved = 0
    for seed in range(600):
        dice = random.Random(seed)
        schema = _document(dice, draft)
        found = allowed(schema, range(12))
        assert found == judged(schema, range(12)), schema
        resolved += found != "error"
    assert resolved > 60


def _document(dice: random.Random, draft: str) -> dict[str, Any]:
    ids, anchors, values = iter(dice.sample(IDS, len(IDS))), iter("pqrstuv"), iter(range(1000))
    own, defs = "id" if draft == DRAFT_4 else "$id", "$defs" if draft == DRAFT_2020 else "definitions"

    def reference() -> str:
        path = "/".join(f"{defs}/{dice.choice('ab')}" for _ in range(dice.randrange(1, 3)))
        fragment = dice.choice(["", "#", f"#{dice.choice('pqr')}", f"#/{path}", f"#/{path}"])
        return dice.choice(["", "", *IDS, "y.json", "http://outer/d/m.json", "../d/n.json"]) + fragment

    def schema(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if depth and dice.random() < 0.4 and (given := next(ids, None)):
            made[own] = given
        if dice.random() < 0.3 and (anchor := next(anchors, None)):
            made |= {"$anchor": anchor} if draft == DRAFT_2020 else {own: made.get(own, f"#{anchor}")}
        if depth < 3:
            made[defs] = {name: schema(depth + 1) for name in dice.sample("ab", dice.randrange(1, 3))}
        return made | ({"enum": [next(values)]} if depth and dice.random() < 0.7 else {"$ref": reference()})

    root = dice.choice([{}, {own: "http://outer/d/root.json"}])
    return {"$schema": draft} | schema(0) | root


def test_what_is_written_alike_has_one_copy_and_what_is_not_has_its_own() -> None:
    """Titles do not tell schemas apart; numbers that Python finds equal do."""
    text = """{"a": {"enum": [1], "title": "A"}, "b": {"title": "B", "enum": [1]}, "c": {"enum": [1.0]},
               "d": {"enum": [true]}, "e": {"enum": [0.1]}, "f": {"enum": [0.1000000000000000000001]}}"""
    members = json.loads(text, parse_float=parse_number)
    root = Document({"properties": members}, Budget()).root
    assert isinstance(root, Mapping)
    copies = root["properties"]
    assert copies["a"] is copies["b"]
    assert len({id(copy) for copy in copies.values()}) == 5
    assert all(copies[name]["enum"] == members[name]["enum"] for name in members)


class Told(Mapping[str, Any]):
    """A mapping whose text does not say what it holds."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> Any:
        return self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return "Told()"


def test_schemas_that_look_alike_are_compiled_apart(tokenizer: Tokenizer) -> None:
    one, other = (build(tokenizer, json_schema=Told({"const": number})) for number in (111, 222))
    assert one is not None
    assert other is not None
    assert one.automaton is not other.automaton


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$id": "http://[x", "type": "null"}, "in the schema is not an address"),
        ({"$id": "http://a/b", "$ref": "//[x"}, "in the schema is not an address"),
        (type("Odd", (), {"model_json_schema": staticmethod(lambda: 1 / 0)}), "The model has no JSON schema: division"),
    ],
)
def test_addresses_and_models_that_are_none_are_a_sentence(tokenizer: Tokenizer, schema: Any, said: str) -> None:
    with pytest.raises(ConstraintError, match=said):
        build(tokenizer, json_schema=schema)


def test_a_pointer_is_unescaped_once() -> None:
    schema = {"$defs": {"~1": {"const": 1}, "/": {"const": 2}}, "anyOf": [{"$ref": "#/$defs/~01"}]}
    assert allowed(schema, range(4)) == judged(schema, range(4)) == [False, True, False, False]
