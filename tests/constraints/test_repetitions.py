"""Counted repetitions whose parts can be told apart in many ways: few states, and the language of Python's `re`."""

import random
import re
from typing import Any

import pytest

from redraft.constraints.automaton import Budget, Nfa, TooManyStatesError, determinise, time_reported_to
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes, compile_codes
from redraft.constraints.template import parse_template


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"(\w+ ?){1,200}", 401),
        (r"((a{1,9}b?){1,9}c?){1,9}", 820),
        (r"(aa|aab|b){0,300}", 901),
        (r"([A-Za-z]{2,20}(-[A-Za-z]{2,20}){0,3} ?){1,30}", 4433),
        (r"([+-]?\d{1,10}(\.\d{1,10})?[, ]?){1,100}", 2301),
        (r"(a?){2000}", 2001),
        (r"(|ab|c*){60}", 181),
    ],
)
def test_not_all_ways_to_count_are_kept(pattern: str, states: int) -> None:
    assert len(compile_codes(parse_regex(pattern), Budget()).table) == states
    anchored = parse_regex(f"^(?:{pattern}|a)$", anchored=False, budget=Budget())
    assert len(compile_codes(anchored, Budget()).table) <= 2 * states
    within = parse_regex(pattern, anchored=False)
    assert len(compile_codes(within, Budget()).table) < 30


def test_a_long_limit_behind_free_text_is_counted_from_its_last_beginning() -> None:
    """Other beginnings can only be nearer to the limit."""
    automaton = compile_bytes(parse_template("{a:text} {b:str<90}1", Budget()), Budget())
    assert len(automaton.table) < 4_000
    for filled, fits in (("a b1", True), (f"a b {'c' * 88}1", True), (f"a {'c' * 90}1", False), (" b1", False)):
        assert automaton.matches(filled.encode()) is fits


def _ways(count: int) -> Nfa:
    """From each of a row of states the ones behind it can be reached without reading anything."""
    nfa, state = Nfa(), 0
    for symbol in range(count):
        nfa.edge(state, symbol, symbol, state)
        nfa.move(state, after := nfa.state())
        state = after
    nfa.move(state, 1)
    return nfa


def test_what_a_row_takes_is_watched_and_bounded() -> None:
    seconds: list[float] = []
    with time_reported_to(seconds.append):
        assert len(determinise(_ways(100), Budget(states=110)).table) == 100
    assert len(seconds) > 1  # not only before the first row
    with pytest.raises(TooManyStatesError):  # 201 states and some 40,000 members of subsets
        determinise(_ways(200), Budget(states=210))


def test_random_repetitions_match_what_python_matches() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        pattern = _pattern(dice, dice.randrange(1, 4))
        dfa, known = compile_codes(parse_regex(pattern), Budget()), re.compile(pattern)
        for _ in range(60):
            text = "".join(dice.choices("aab", k=dice.randrange(9)))
            assert dfa.matches(map(ord, text)) == (known.fullmatch(text) is not None), (pattern, text)


def _pattern(dice: random.Random, depth: int) -> str:
    if depth == 0:
        return dice.choice(["a", "b", "[ab]", "ab"])
    inner = _pattern(dice, depth - 1)
    least = dice.randrange(4)
    match dice.randrange(5):
        case 0:
            return inner + _pattern(dice, depth - 1)
        case 1:
            return f"({inner}|{_pattern(dice, depth - 1)})"
        case 2:
            return f"({inner}){dice.choice('*+?')}"
        case _:
            return f"({inner}){{{least},{least + dice.randrange(1, 5)}}}"


def test_lists_in_lists_do_not_double_at_every_level() -> None:
    states = []
    for depth in (6, 12, 18):
        schema: Any = {"type": "integer"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        states.append(len(compile_bytes(compile_schema(schema, Budget(), strict=True), Budget()).table))
    assert states[2] - states[1] == states[1] - states[0]
