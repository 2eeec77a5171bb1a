"""A text with holes: how it is given, what is refused, and that joining gives every byte back."""

import pytest
from hard_texts import TEXTS, cuts
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import PromptError
from redraft.text.pieces import HOLE, join_pieces, split_pieces

PLAIN = st.text(min_size=1, max_size=30).filter(lambda text: HOLE not in text)


def test_three_ways_to_say_the_same() -> None:
    assert split_pieces("a", "b") == split_pieces("a<|fill|>b") == split_pieces(["a", "b"]) == ("a", "b")


def test_a_mark_in_a_given_side_is_plain_text() -> None:
    assert split_pieces("a<|fill|>", "b") == ("a<|fill|>", "b")
    assert split_pieces(["a<|fill|>", "b"]) == ("a<|fill|>", "b")


@given(st.lists(PLAIN, min_size=2, max_size=5))
def test_marks_and_lists_agree(pieces: list[str]) -> None:
    text = HOLE.join(pieces)
    if text.split(HOLE) == pieces:  # two pieces may spell a mark across their border
        assert split_pieces(text) == split_pieces(pieces) == tuple(pieces)


def test_a_thousand_cuts_come_back() -> None:
    for holes in (1, 3):
        for pieces, removed in cuts(500, holes, seed=holes):
            whole = join_pieces(pieces, removed)
            assert whole in TEXTS
            assert split_pieces(pieces) == tuple(pieces)


@pytest.mark.parametrize(
    ("text", "suffix", "sentence"),
    [
        ("no hole", None, r"no hole; mark it with <\|fill\|>"),
        ("", "", "no text around the hole"),
        (["a"], None, "list of two or more"),
        ([], None, "list of two or more"),
        (["a", 3], None, "list of two or more"),
        (None, None, "list of two or more"),
        ("a", 3, "list of two or more"),
        ("a<|fill|><|fill|>b", None, "Hole 2 comes directly after hole 1"),
        (["a", "b", "", "c"], None, "Hole 3 comes directly after hole 2"),
    ],
)
def test_what_cannot_be_filled(text: object, suffix: object, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        split_pieces(text, suffix)  # type: ignore[arg-type]


def test_the_texts_are_hard() -> None:
    """They hold what breaks editors: several scripts, carriage returns, tabs, emoji, marks, and no final newline."""
    whole = "".join(TEXTS)
    assert all(mark in whole for mark in ("\r\n", "\t", "🙂", "日", "\x00", "\ufeff", HOLE))
    assert any(not text.endswith(("\n", "\r")) for text in TEXTS)
