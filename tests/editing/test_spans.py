"""Spans: characters, lines and tokens of hard texts, how much changed, and diffs that `patch` would apply."""

import random
import time
from itertools import combinations_with_replacement
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from byte_fallback import byte_fallback
from redraft.editing import edits_between
from redraft.editing.spans import changed_share, check_span, count_lines, cut, line_of, line_span, unified_diff
from redraft.errors import PromptError
from redraft.text.tokenizer import Tokenizer

TEXTS = [
    "one\r\ntwo\rthree\nfour \x0c\u2028 still four\n\n",
    "\ufeffdef f(x):\n\treturn  x  # é 🙂👩‍👩‍👧‍👦\r\n",
    "no end",
    "日本語\n\n\n    four spaces\n<|turn>\x00 plain",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return redraft.load("tiny", device="cpu", dtype="float32").tokenizer


def test_lines_end_as_in_editors() -> None:
    text = TEXTS[0]
    lines = [text[slice(*line_span(text, number, number))] for number in range(1, count_lines(text) + 1)]
    assert lines == ["one", "two", "three", "four \x0c\u2028 still four", ""]
    assert text[slice(*line_span(text, 2, 4))] == "two\rthree\nfour \x0c\u2028 still four"


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert line_span("\ufeffa\nb", 1, 1) == (1, 2)
    assert line_span("\ufeff", 1, 1) == (1, 1)
    assert line_span("a\n\ufeffb", 2, 2) == (2, 4)


def test_a_long_text_is_cut_into_lines_in_one_pass() -> None:
    assert count_lines("x\n" * 4_000_000) == 4_000_000  # a search to the text's end for every line would take minutes


@given(st.text(alphabet="ab\r\n\x0c ", max_size=30))
def test_every_character_is_in_one_line(text: str) -> None:
    for at in range(len(text)):
        number = line_of(text, at)
        assert 1 <= number <= count_lines(text)
        start, end = line_span(text, number, number)
        assert start <= at
        assert at < end or text[end : at + 1].strip("\r\n") == ""


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 6), (3, 2), (6, 6), (None, 1), ("1", 1), (1.0, 2), (True, 2)])
def test_lines_that_are_not_there(first: Any, last: Any) -> None:
    which = f"Line {first} is" if first == last else f"The lines {first} to {last} are"
    with pytest.raises(PromptError, match=f"^{which} not in the text, which has 5"):
        line_span(TEXTS[0], first, last)


def test_many_changes_among_frequent_lines_are_found_quickly() -> None:
    old = ["\n" if number % 3 == 0 else f"line {number}\n" for number in range(6000)]
    new = [f"new {number}\n" if number % 20 == 7 else line for number, line in enumerate(old)]
    started = time.thread_time()
    edits, cursor = edits_between("".join(old), "".join(new))
    assert edits == [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
    assert "".join(new)[:cursor].endswith("new 5987\n")
    assert changed_share("".join(old), "".join(new)) < 0.1
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("given", [3, None, b"a", ["a"]])
def test_what_is_no_text(given: Any) -> None:
    with pytest.raises(PromptError, match="it must be a string"):
        line_span(given, 1, 1)
    for pair in ((given, "a"), ("a", given)):
        with pytest.raises(PromptError, match="it must be a string"):
            edits_between(*pair)


@pytest.mark.parametrize(
    ("text", "span", "sentence"),
    [
        ("", (0, 0), "no text"),
        (None, (0, 0), "text is None; it must be a string"),
        ("abc", (0, 4), "has 3 characters"),
        ("abc", (2, 1), "not inside"),
        ("abc", (-1, 1), "not inside"),
        ("abc", (0, 1.0), "must be"),
        ("abc", (0,), "must be"),
        ("abc", "ab", "must be"),
        ("abc", (False, True), "must be"),
    ],
)
def test_bad_spans(text: object, span: object, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        check_span(text, span)  # type: ignore[arg-type]


def test_a_thousand_random_spans_are_cut_without_loss(tokenizer: Tokenizer) -> None:
    """Whatever is written in the hole, the text outside the span is spelled by what stays."""
    rng = random.Random(3)
    special = set(tokenizer.special_ids.values())
    plain = [id for id in range(tokenizer.vocab_size) if id not in special]
    for _ in range(1000):
        text = rng.choice(TEXTS)
        start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        here = cut(tokenizer, text, (start, end))
        assert here.hole.text(here.draft) == text[start:end]
        assert tokenizer.decode([*here.before, *here.draft, *here.hole.behind]) == text  # type: ignore[list-item]
        length = rng.randint(1, 4)
        if not here.hole.possible(length):
            continue
        ids = [rng.choice(plain) for _ in range(length)]
        for at, allowed in here.hole._only(length).items():
            ids[at] = rng.choice(allowed)
        whole = tokenizer.decode_bytes([*here.before, *ids, *here.hole.behind])  # type: ignore[list-item]
        assert whole.startswith(text[:start].encode())
        assert whole.endswith(text[end:].encode())


def test_the_character_that_a_vocabulary_writes_for_a_space_is_cut_without_loss() -> None:
    tokenizer, text = byte_fallback(), "a \u2581\u2581b  \u2581\u2582\n"
    for span in combinations_with_replacement(range(len(text) + 1), 2):
        here = cut(tokenizer, text, span)
        assert here.hole.text(here.draft) == text[slice(*span)]
        assert tokenizer.decode([*here.before, *here.draft, *here.hole.behind]) == text  # type: ignore[list-item]


def test_how_much_changed() -> None:
    assert changed_share("same", "same") == 0
    assert changed_share("abc", "xyz") == 1
    assert changed_share("", "new") == 1
    assert changed_share("abcd", "abcx") == 0.25


def test_how_much_of_a_long_text_changed() -> None:
    lines = [f"    total = total + weights[{i}] * values[{i}]\n" for i in range(2000)]
    old, new = "".join(lines), "".join(lines).replace("total", "result")
    one = changed_share(lines[1000], lines[1000].replace("total", "result"))
    assert changed_share(old, new) == pytest.approx(one, rel=0.05)  # numbers have one to four digits
    assert changed_share(old, old + "".join(lines[1005:1009])) == pytest.approx(4 / 4004, rel=0.05)
    assert changed_share("x" * 9000, "y" * 9000) == 1


@given(st.text(alphabet="ab\n\r", max_size=12), st.text(alphabet="ab\n\r", max_size=12))
def test_a_diff_holds_both_texts(old: str, new: str) -> None:
    diff = unified_diff(old, new, "f")
    assert (diff == "") == (old == new)
    assert diff.count("\\ No newline at end of file\n") <= 2


def test_a_diff_as_git_writes_it() -> None:
    assert unified_diff("a\nb\n", "a\nc", "f") == (
        "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
    )
    assert unified_diff("a\rb\nc\n", "a\rx\nc\n", "f") == ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\rb\n+a\rx\n c\n")
    same = "same\n" * 100_000
    assert unified_diff(same + "a\n" + same, same + "b\n" + same, "f").splitlines()[2:] == [
        "@@ -99998,7 +99998,7 @@", *[" same"] * 3, "-a", "+b", *[" same"] * 3
    ]  # fmt: skip
    repeated = "a\nb\na\nx\ny\n"  # begins like what goes; git applies no hunk without the lines behind it
    assert unified_diff("a\nb\n" + repeated, "q\n" + repeated, "f").splitlines()[2:] == [
        "@@ -1,5 +1,4 @@", "-a", "-b", "+q", " a", " b", " a"
    ]  # fmt: skip
    assert unified_diff("a", "b", "my file").startswith("--- a/my file\t\n+++ b/my file\t\n@@")
    assert unified_diff("a", "b", "/tmp/f").startswith("--- a/tmp/f\n+++ b/tmp/f\n@@")
