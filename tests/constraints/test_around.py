"""A language with given bytes around it: exactly the surrounded texts, and counters that still count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.constraints.around import surrounded
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.template import parse_template

PATTERNS = ["a*b?", "(ab|ba)+", "a{2,5}", "é+a|", "[ab]*a[ab]"]


@given(st.sampled_from(PATTERNS), st.text("ab", max_size=3), st.text("abé", max_size=5), st.text("ab", max_size=3))
def test_what_is_surrounded_is_accepted_and_nothing_else(pattern: str, before: str, text: str, behind: str) -> None:
    dfa = compile_bytes(parse_regex(pattern, budget=Budget()), Budget())
    around = surrounded(dfa, before.encode(), behind.encode(), Budget())
    assert around.matches((before + text + behind).encode()) == dfa.matches(text.encode())
    whole = text.encode()
    inner = whole[len(before.encode()) : len(whole) - len(behind.encode())]
    fits = len(whole) >= len((before + behind).encode()) and before.encode() + inner + behind.encode() == whole
    assert around.matches(whole) == (fits and dfa.matches(inner))


def test_the_bytes_may_be_parts_of_characters() -> None:
    dfa = compile_bytes(parse_regex("a", budget=Budget()), Budget())
    around = surrounded(dfa, b"\x82", b"\xe2", Budget())
    assert around.matches(b"\x82a\xe2")
    assert not around.matches(b"a")


@pytest.mark.parametrize("length", [1, 399, 400, 401])
def test_long_limits_still_hold(length: int) -> None:
    dfa = compile_bytes(parse_template("{a:str<=400}", Budget()), Budget())
    around = surrounded(dfa, b'"', b'"', Budget())
    assert (around.family >= 0).any() == (dfa.family >= 0).any()
    assert around.matches(b'"' + b"x" * length + b'"') == (length <= 400)
