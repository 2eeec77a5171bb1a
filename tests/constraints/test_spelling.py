r"""Expressions as automata, by brute force: random choices and patterns with anchors, long counts in combination."""

import itertools
import json
import random
import re

import pytest

from redraft.constraints.around import chained
from redraft.constraints.automaton import Budget, Dfa, product
from redraft.constraints.expression import NOTHING, Counted, alt, text
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import BYTES, compile_bytes
from redraft.constraints.tokens import COUNTER_EDGES, Ending, TokenAutomaton, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.constraints.words import holding, holding_any

SPELLED = [b"", *(string.encode() for string in ("a", "b", "aa", "aba", "aaaaaaa", '"', "\\", "\\n", '"a', "a\\"))]
EOS, LONG = 0, 1500
assert LONG > COUNTER_EDGES / 24  # so that counters are rounded


def test_choices_are_exactly_the_given_ones() -> None:
    rng = random.Random(0)
    words = ["".join(letters) for count in range(5) for letters in itertools.product("ab", repeat=count)]
    for _ in range(200):
        chosen = rng.sample(words, rng.randint(1, 9))
        dfa = compile_bytes(alt(*map(text, chosen)), Budget())
        assert [word for word in words if dfa.matches(word.encode())] == [word for word in words if word in chosen]


def test_random_patterns_with_anchors_mean_what_python_means() -> None:
    rng = random.Random(1)
    texts = ["".join(chars) for count in range(5) for chars in itertools.product("ab\n", repeat=count)]
    atoms = ["a", "b", "\n", "[^a]", ".", "^", "$", r"\Z", "(a$|b)", "(^a|a)", "(ab?($)?)", "(^|b)", r"(a|\Z)"]
    for _ in range(300):
        parts = [
            atom + (rng.choice(["", "", "*", "?", "+", "{1,2}", "{0,3}"]) if atom not in ("^", "$", r"\Z") else "")
            for atom in rng.choices(atoms, k=rng.randint(1, 5))
        ]
        pattern, compiled = "".join(parts), re.compile("".join(parts))
        dfa = compile_bytes(parse_regex(pattern), Budget())
        assert [t for t in texts if dfa.matches(t.encode())] == [t for t in texts if compiled.fullmatch(t)], pattern


@pytest.mark.parametrize(("pattern", "inside", "outside"), [
    (r"^a\$", "ba$a", "a"), (r"^a\$$", "a$", "a$b"), (r"a\\$", "ba\\", "a\\a"), (r"^\\$", "\\", "$"),
])  # fmt: skip
@pytest.mark.parametrize("anchored", [True, False])
def test_a_backslash_before_a_final_dollar(pattern: str, inside: str, outside: str, anchored: bool) -> None:
    dfa, match = compile_bytes(parse_regex(pattern, anchored=anchored), Budget()), re.compile(pattern)
    for string in (inside, outside, inside[1:], ""):
        found = match.fullmatch(string) if anchored else match.search(string)
        assert dfa.matches(string.encode()) == (found is not None), string


@pytest.mark.parametrize("char", '"\\\b\t\n\f\r ~\u00a0\U0010ffff')
def test_a_string_of_one_certain_character_can_be_written(char: str) -> None:
    schema = compile_schema({"type": "string", "pattern": rf"^\u{{{ord(char):x}}}$"}, Budget(), strict=True)
    assert compile_bytes(schema, Budget()).matches(json.dumps(char, ensure_ascii=False).encode())


def _walks(dfa: Dfa) -> list[str]:
    """Random answers of the token automaton, most of them as long as it allows."""
    budget, rng = Budget(), random.Random(2)
    automaton = compile_tokens(dfa, Vocabulary(SPELLED, {"<eos>": EOS}), Ending((EOS,), (EOS,)), (), budget)
    return [_walk(automaton, random.Random(rng.random()), rng.choice([8, 400, 10_000])) for _ in range(40)]


def _walk(automaton: TokenAutomaton, rng: random.Random, tokens: int) -> str:
    state, written = 0, b""
    weights = [rng.random() ** 3 for _ in SPELLED[1:]]
    while True:
        ways = [(t, after) for t in range(1, len(SPELLED)) if (after := automaton.step(state, t)) >= 0]
        if automaton.accept[state] and (tokens <= 0 or not ways):
            return written.decode()
        if tokens <= 0:  # the shortest way out
            ways = [min(ways, key=lambda way: int(automaton.distance[way[1]]))]
        token, state = rng.choices(ways, [weights[t - 1] for t, _ in ways])[0]
        written, tokens = written + SPELLED[token], tokens - 1


def test_a_long_count_is_kept_beside_escapes_and_words() -> None:
    schema = compile_schema({"type": "string", "maxLength": LONG}, Budget(), strict=True)
    dfa = product(compile_bytes(schema, Budget()), holding(["ba", "aa"], BYTES, Budget()), Budget())
    dfa = product(dfa, holding_any(["bb", "aab"], BYTES, Budget()), Budget(), subtract=True)
    found = [json.loads(answer) for answer in _walks(dfa)]
    assert max(map(len, found)) > LONG / 8
    for string in found:
        assert len(string) <= LONG
        assert not re.search("bb|aab", string)
        assert re.search("ba.*aa", json.dumps(string))


def test_two_long_counts_in_sequence_are_kept() -> None:
    parts = [compile_bytes(Counted(((97, 97),), NOTHING, most), Budget()) for most in (300, 900)]
    dfa = chained([parts[0], compile_bytes(text("b"), Budget()), parts[1]], Budget())
    for answer in _walks(dfa):
        assert re.fullmatch("a{0,300}ba{0,900}", answer)
