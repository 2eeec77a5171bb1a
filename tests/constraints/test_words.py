"""Texts at an offset, words in order and forbidden words: they narrow an answer, and never a thought before it."""

import itertools
import re
from typing import Any

import pytest

from redraft.constraints import build
from redraft.constraints.automaton import Budget
from redraft.constraints.words import holding, standing
from redraft.errors import ConstraintError
from redraft.llm import LLM
from redraft.text.tokenizer import Tokenizer


def written(llm: LLM, **wanted: Any) -> str:
    return llm.generate("Hello", **{"steps": 2, "seed": 5, "max_tokens": 64, "canvas_length": 16} | wanted).text


@pytest.mark.parametrize("seed", range(3))
def test_text_stands_at_its_offset(random_llm: LLM, seed: int) -> None:
    pins = {0: "Änne ", 9: "é, and ", 24: "the end"}
    text = written(random_llm, text_pins=pins, seed=seed)
    assert all(text[offset : offset + len(pinned)] == pinned for offset, pinned in pins.items())


def test_an_offset_narrows_what_the_rest_says(random_llm: LLM) -> None:
    assert re.fullmatch(r"\d{2}7\d{3}", written(random_llm, regex=r"\d{6}", text_pins={2: "7"}))
    assert written(random_llm, choices=["cat", "cut", "dog"], text_pins={1: "u"}) == "cut"


def test_offsets_count_characters_and_not_bytes_or_special_tokens() -> None:
    dfa = standing({1: "b"}, 258, Budget())
    for prefix in ("a", "é", "文", "😀"):
        assert dfa.matches(f"{prefix}bc".encode())
        assert not dfa.matches(f"{prefix}cb".encode())
    assert dfa.matches([257, *"é".encode(), 256, ord("b")])
    assert not dfa.matches(b"a")


def test_words_in_order_are_found_wherever_they_stand() -> None:
    """Words that overlap with themselves and with each other, in all short texts of two letters."""
    for words in (["aab", "aba"], ["aa", "aa"], ["abab", "b"], ["b", "ab", "a"]):
        dfa, pattern = holding(words, 256, Budget()), re.compile(".*".join(["", *words, ""]))
        for length in range(9):
            for text in map("".join, itertools.product("ab", repeat=length)):
                assert dfa.matches(text.encode()) is (pattern.fullmatch(text) is not None)


def test_the_states_of_words_in_order_add_up() -> None:
    words = [f"keyword{number}" for number in range(60)]
    assert len(holding(words, 256, Budget()).table) == sum(map(len, words)) + 1


def test_overlapping_pins_that_agree_are_one(random_llm: LLM) -> None:
    assert written(random_llm, text_pins={0: "abc", 2: "cd"}, regex="[a-z]{4}") == "abcd"


def accepts(tokenizer: Tokenizer, answer: str, **wanted: Any) -> bool:
    constraint = build(tokenizer, **wanted)
    assert constraint is not None
    state = 0
    for token in tokenizer.encode(answer):
        state = constraint.automaton.step(state, token)
        if state < 0:
            return False
    return bool(constraint.automaton.accept[state])


def test_a_thought_is_free(tokenizer: Tokenizer) -> None:
    thought, asked = "<|channel>thought\nwhy not blue<channel|>", {"thinking": True, "forbidden": ["why"]}
    assert accepts(tokenizer, f"{thought}red", **asked)
    assert not accepts(tokenizer, f"{thought}why", **asked)
    assert accepts(tokenizer, f"{thought}blue", thinking=True, must_include=["blue"])
    assert not accepts(tokenizer, f"{thought}red", thinking=True, must_include=["blue"])
    assert accepts(tokenizer, f"{thought}red", thinking=True, text_pins={1: "e"})
    assert not accepts(tokenizer, thought, thinking=True, regex="a?", allow_empty=False)


@pytest.mark.parametrize(("wanted", "message"), [
    ({"text_pins": {0: "ab", 1: "c"}}, "different characters at offset 1"),
    ({"text_pins": {-1: "a"}}, "text_pins has the position -1"),
    ({"text_pins": {0: ""}}, "text_pins has no text"),
    ({"text_pins": ["a"]}, "text_pins must map"),
    ({"text_pins": {4: "a"}, "choices": ["abc"]}, "choices with text_pins allows no text"),
    ({"text_pins": {60_000: "a"}}, "automaton of more than"),
])  # fmt: skip
def test_bad_pins_are_refused_in_one_sentence(tokenizer: Tokenizer, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        build(tokenizer, **wanted)
