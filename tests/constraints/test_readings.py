r"""Classes of characters: what is written obeys every dialect, and a set with its complement is everything."""

import itertools
import re

import pytest

from compiled_schemas import check_exact, compiled
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_codes

CHARS = [chr(code) for code in (*range(0x250), 0x660, 0x1680, 0x2003, 0x2028, 0x3000, 0x4E00, 0xFEFF, 0x1D7D8, 0x1F600)]
ECMA = {
    "d": "0-9", "w": "A-Za-z0-9_",
    "s": "\\t-\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff",
}  # fmt: skip


def _holds(pattern: str, char: str, *, wide: bool = False) -> bool:
    return compile_codes(parse_regex(pattern, wide=wide), Budget()).matches([ord(char)])


@pytest.mark.parametrize("pattern", [r"[\s\S]", r"[\W\w]", r"[\d\D]", r"[x\Sy\s]", r"[\p{L}\P{L}]",
                                     r"[\p{Alphabetic}\P{Alphabetic}]"])  # fmt: skip
@pytest.mark.parametrize("wide", [False, True])
def test_a_set_and_its_complement_are_every_character(pattern: str, wide: bool) -> None:
    dfa = compile_codes(parse_regex(pattern, wide=wide), Budget())
    assert all(dfa.matches([ord(char)]) for char in CHARS)
    assert not any(_holds(f"[^{pattern[1:-1]}]|x", char, wide=wide) for char in "\n aé\u3000")


@pytest.mark.parametrize("pattern", [r"\w", r"\W", r"[\w-]", r"[^\w]", r"\s", r"\d", r"\p{L}", r"\P{Lu}"])
def test_what_is_rounded_is_more_but_not_up_to_two_bytes(pattern: str) -> None:
    exact, coarse = (compile_codes(parse_regex(pattern, wide=True, coarse=c), Budget()) for c in (False, True))
    for code in (*range(0x3000), 0x3005, 0x4E00, 0xD7A3, 0xE000, 0xFEFF, 0x1D7D8, 0x1F600, 0x10FFFF):
        assert coarse.matches([code]) >= exact.matches([code]), hex(code)
        if code < 0x800 or pattern in (r"\s", r"\d") or 0x2010 <= code <= 0x2027:  # dashes and quotation marks
            assert coarse.matches([code]) == exact.matches([code]), hex(code)


def test_a_pattern_of_all_letters_that_must_not_match_takes_few_states_and_values_are_judged_exactly() -> None:
    unlike = {"type": "string", "not": {"pattern": r"^\w*\d$"}}
    assert len(compiled(unlike).table) < 260
    dfa = compiled({**unlike, "maxLength": 60})
    assert [dfa.matches(f'"{text}"'.encode()) for text in ("é1", "é\u20131", "é1x", "1")] == [False, True, True, False]
    check_exact({"enum": ["é1", "。1", "£"], **unlike}, ["é1", "。1", "£", "1"])


def test_what_is_alphabetic_in_one_dialect_alone_is_neither_written_nor_taken_for_a_failure() -> None:
    assert _holds(r"\p{Alphabetic}", "\u0903", wide=True)
    assert not _holds(r"\p{Alphabetic}", "\u0903")


def _ecma(items: list[str], char: str) -> bool:
    """Whether a class of these items holds a character in ECMA-262, said in Python's terms."""
    return any(
        (re.fullmatch(f"[{ECMA[item[1].lower()]}]", char) is None) == item[1].isupper()
        if item[1:].lower() in ECMA else re.fullmatch(f"[{item}]", char) is not None
        for item in items
    )  # fmt: skip


@pytest.mark.parametrize("negated", [False, True])
def test_what_is_written_obeys_every_dialect_and_what_is_not_fails_all(negated: bool) -> None:
    items = [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"\n", "é", "a-f"]
    for chosen in itertools.chain(itertools.combinations(items, 1), itertools.combinations(items, 2)):
        pattern = f"[{'^' if negated else ''}{''.join(chosen)}]"
        narrow, wide = (compile_codes(parse_regex(pattern, wide=wide), Budget()) for wide in (False, True))
        for char in CHARS:
            readings = [re.fullmatch(pattern, char, flag) is not None for flag in (re.ASCII, re.UNICODE)]
            readings.append(_ecma(list(chosen), char) != negated)
            assert narrow.matches([ord(char)]) == all(readings), (pattern, char)
            assert wide.matches([ord(char)]) == any(readings), (pattern, char)
