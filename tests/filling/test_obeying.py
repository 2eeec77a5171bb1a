"""Fillings that must be something: whatever random weights say, they obey, and the text around them stays."""

import re
from typing import Any

import pytest
from hard_texts import cuts

from redraft.constraints import build
from redraft.errors import ConstraintError, SettingError
from redraft.filling.obeying import constraints_of
from redraft.llm import LLM

QUICK: dict[str, Any] = {"max_tokens": 12, "steps": 2, "canvas_length": 32}
INTEGER = {"type": "integer", "minimum": 10, "maximum": 130}


def test_every_filling_obeys_at_any_cut(quick: LLM) -> None:
    """A seam lies inside a token at most of these cuts."""
    for seed, (pieces, _) in enumerate(cuts(6, 1, seed=4)):
        given: dict[str, Any] = QUICK | {"seed": seed}
        assert quick.fill(pieces, choices=["yes", "naïve é", "rn x"], **given).text in ("yes", "naïve é", "rn x")
        assert re.fullmatch(r"[a-c]{2,4}\d", quick.fill(pieces, regex=r"[a-c]{2,4}\d", **given).text)
        assert 10 <= int(quick.fill(pieces, json_schema=INTEGER, **given).text) <= 130


def test_it_holds_for_every_hole_and_at_a_given_length(quick: LLM) -> None:
    result = quick.fill("a = <|fill|>\nb = <|fill|>\n", regex=r"\d{3}", steps=1, length=3)
    assert re.fullmatch(r"a = \d{3}\nb = \d{3}\n", result.full_text)


def test_words_are_in_it_or_not(quick: LLM) -> None:
    text = quick.fill("x = (", ")\n", must_include=["blue", "sea"], forbidden=["e s", "\n"], **QUICK).text
    assert re.search("blue.*sea", text)
    assert "e s" not in text
    assert "\n" not in text


def test_the_smallest_canvas_has_room_for_every_seam(quick: LLM) -> None:
    given: dict[str, Any] = {"max_tokens": 15, "canvas_length": 16, "steps": 1}
    result = quick.fill("y" * 300 + " self.retu", "n x\n" * 30, regex="[ab]{12,40}", **given)
    assert re.fullmatch("[ab]{12,40}", result.text)


def test_text_may_be_pinned_inside_of_it(quick: LLM) -> None:
    text = quick.fill("x = ", "\n", text_pins={2: "é7"}, regex="[a-zé0-9]{6}", **QUICK).text
    assert re.fullmatch("[a-zé0-9]{2}é7[a-zé0-9]{2}", text)


def test_the_given_text_of_a_seam_is_spelled_with_the_choice(llm: LLM) -> None:
    """`retu` grows into `return`, and the tokens that hold both sides are the filling's."""
    result = llm.fill("x\n    retu", "n x\n", choices=["r"], steps=1, max_tokens=4)
    assert result.text == "r"
    assert b"return" in llm.tokenizer.decode_bytes(result.token_ids)


def test_what_alone_is_possible_is_certain(quick: LLM) -> None:
    result = quick.fill("x\n", "\ny", choices=["one"], steps=1)
    assert [token.entropy for token in result.tokens] == [0.0] * len(result.tokens)


def test_lengths_are_those_that_a_text_can_have(llm: LLM) -> None:
    constraint = build(llm.tokenizer, choices=["aaa", "bb"])
    assert constraint is not None
    assert constraint.lengths(9) == constraint.lengths(3)
    assert max(constraint.lengths(9)) == 3
    assert min(constraint.lengths(9)) == min(len(llm.tokenizer.encode(text)) for text in ("aaa", "bb"))


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"regex": "[a-z]{60}", "max_tokens": 3}, ConstraintError, "shortest text that regex allows has . tokens"),
        ({"choices": ["x"], "length": 3}, ConstraintError, "choices allows no text of exactly 3 tokens"),
        ({"regex": ""}, ConstraintError, "regex allows only the empty text, but a filling .* is never empty"),
        (
            {"choices": ["", "a"], "forbidden": ["a"]},
            ConstraintError,
            "choices with forbidden allows only the empty text",
        ),
        ({"choices": ["abc"], "forbidden": ["b"]}, ConstraintError, "allows no text"),
        ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, ConstraintError, "allows no JSON"),
        ({"regex": "(a|b)*a(a|b){18}"}, ConstraintError, "automaton of more than"),
        ({"regex": "x", "choices": ["x"]}, ConstraintError, "both say what"),
        ({"json_object": 0}, ConstraintError, "json_object is 0; it must be True or False"),
        ({"pins": {0: "x"}}, SettingError, "Unknown setting 'pins'"),
        ({"tools": []}, SettingError, "Unknown setting 'tools'"),
    ],
)
def test_what_cannot_be_obeyed(
    quick: LLM, given: dict[str, Any], error: type[Exception], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before any compute."""
    monkeypatch.setattr(type(quick.model), "encode", None)
    with pytest.raises(error, match=sentence):
        quick.fill("a", "b", **given)


def test_constraints_among_keywords() -> None:
    assert constraints_of({"regex": "a", "steps": 3, "choices": None}) == {"regex": "a"}
    assert constraints_of({"json_schema": False, "strict": False}) == {"json_schema": False, "strict": False}
    assert constraints_of({"strict": False, "json_object": False}) == {}
    with pytest.raises(ConstraintError, match="strict is 'no'; it must be True or False"):
        constraints_of({"strict": "no"})
