"""The benchmark of JSON schemas: models of any quality write what validates, and its judge sees what does not."""

import pytest

from redraft.bench.constraints import measure_schemas, problem, validator
from redraft.bench.schema_answers import PAIRS, measure_answers
from redraft.llm import LLM
from redraft.text.tokenizer import Tokenizer

POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "day": {"type": "string", "format": "date"}},
         "required": ["x", "day"], "additionalProperties": False}  # fmt: skip


def test_random_weights_write_what_validates(random_llm: LLM) -> None:
    schemas = [("point", POINT), ("none", False), ("long", {"type": "string", "minLength": 9000, "pattern": "^a*$"})]
    figures = measure_answers(random_llm, schemas, validate=validator(), seconds=60.0)
    assert figures.answers == 1
    assert figures.refused == 1
    assert figures.too_long == 1
    assert not figures.invalid
    assert sum(figures.by_steps.values()) == sum(figures.by_canvas.values()) == 1


def test_schemas_refused_for_the_same_reason_are_counted_together(tokenizer: Tokenizer) -> None:
    unique = {"uniqueItems": True}
    schemas = [("a", {"properties": {"a": unique}}), ("b", unique)]
    figures = measure_schemas(tokenizer, schemas, answers=0, validate=None)
    assert list(figures.refused.values()) == [2]


def test_time_ends_a_run(random_llm: LLM) -> None:
    figures = measure_answers(random_llm, [("point", POINT)] * len(PAIRS), validate=validator(), seconds=0.0)
    assert figures.answers == 1


@pytest.mark.parametrize(("text", "message"), [
    ('{"x": 1}', "'day' is a required property"), ('{"x": 1, "day": "2023-02-30"}', "is not a 'date'"),
    ('{"x":', "Expecting"),
])  # fmt: skip
def test_the_judge_names_what_is_wrong(text: str, message: str) -> None:
    assert message in (problem(POINT, text, validator()) or "")


def test_the_judge_accepts_what_is_right() -> None:
    assert problem(POINT, '{"x": 1, "day": "2023-02-28"}', validator()) is None


def test_the_judge_divides_decimals() -> None:
    prices = {"items": {"multipleOf": 0.01}}
    assert problem(prices, "[0.07, 19.99, 3, 1e2]", validator()) is None
    assert "0.075 is not a multiple of 0.01" in (problem(prices, "[0.07, 0.075]", validator()) or "")
