"""The token automaton of an expression: every token leads where its bytes lead, however it was grouped on the way."""

import itertools
import math
import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from redraft.constraints.automaton import Budget, Dfa, on_symbols
from redraft.constraints.expression import ANY, NOTHING, Counted, Expression, chars, complement, repeat, seq, text
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.template import parse_template
from redraft.constraints.tokens import Ending, TokenAutomaton, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.errors import ConstraintError
from redraft.text.tokenizer import Tokenizer

EOS = 1
EXPRESSIONS = {
    "a string of a narrow alphabet": parse_regex('"[a-z0-9_-]{1,20}"'),
    "a string with cases and dots": parse_regex('"([A-Z][a-z]*[.]?){1,6}"'),
    "anything but a word": parse_regex('"[^x]*(x[^y][^x]*)*"'),
    "free text behind literals": seq(text("Name: "), repeat(chars(ANY)), text("\nAge: "), repeat(chars(ANY))),
    "exactly so many characters": parse_regex(".{5,12}!"),
    "only wide characters": parse_regex("[à-ÿ]+|[一-龥]{2,3}"),
    "strings with escapes": compile_schema({"type": ["string", "number"]}, Budget(), strict=True),
}  # fmt: skip


PIECES = [*(char.encode() for char in 'ab"\\£\x85é힣😀'), b"\xc2", b"\xed"]
SPELLED = [b"", b"", *(bytes([byte]) for byte in range(256)),
           *(b"".join(two) for two in itertools.product(PIECES, repeat=2)),
           *(b"".join(three) for three in itertools.product(PIECES[:7], repeat=3)),
           b"a", b"ab", "é£".encode()]  # fmt: skip
"""A vocabulary with tokens that are hard to group; some are there twice."""


def compiled(expression: Expression, vocabulary: Vocabulary) -> tuple[Dfa, TokenAutomaton]:
    budget = Budget(seconds=math.inf)  # counting memory takes several times as long, on some machines too long
    dfa = compile_bytes(expression, budget)
    return dfa, compile_tokens(dfa, vocabulary, Ending((EOS,), (EOS,)), (), budget)


def check_steps(dfa: Dfa, automaton: TokenAutomaton, spelled: Sequence[bytes]) -> None:
    """From every state, every token that spells something leads where its bytes lead, or nowhere if they do not.

    Where bytes are counted, tokens of incomplete characters lead nowhere.
    """
    table = np.vstack([on_symbols(dfa, 256), np.full((1, 256), -1, np.int32)])  # the last row: nowhere
    counting = np.append(dfa.family >= 0, False)
    partial = [_partial(string) for string in spelled]
    pairs, waiting = {0: 0}, [0]  # state of the token automaton -> state over bytes
    while waiting:
        state = waiting.pop()
        for token, string in enumerate(spelled):
            if not string:
                continue
            behind = pairs[state]
            for byte in string:
                behind = table[behind, byte]
            if partial[token] and (counting[pairs[state]] or counting[behind]):
                behind = -1
            after = automaton.step(state, token)
            assert (after >= 0) == (behind >= 0), (state, string)
            if after >= 0 and after not in pairs:
                waiting.append(after)
            assert after < 0 or pairs.setdefault(after, int(behind)) == behind
    assert all(automaton.accept[state] == dfa.accept[behind] for state, behind in pairs.items())


def _partial(string: bytes) -> bool:
    try:
        string.decode()
    except UnicodeDecodeError:
        return True
    return False


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_tokens_lead_where_their_bytes_lead(tokenizer: Tokenizer, name: str) -> None:
    special = set(tokenizer.special_ids.values())
    spelled = [b"" if i in special or i % 4 else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    check_steps(*compiled(EXPRESSIONS[name], Vocabulary.of(tokenizer)), spelled)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_are_hard_to_group_lead_where_their_bytes_lead(seed: int) -> None:
    rng, vocabulary = random.Random(seed), Vocabulary(SPELLED, {})
    atoms = ["a", "b", r"\"", "£", "é", "😀", "[^a]", "[^£]", "[^힣]", r"[^\x80-\x9f]", r"[^\x00-\x7f]", r'[^"\\]', "."]
    for _ in range(15):
        parts = [rng.choice(atoms) + rng.choice(["", "", "*", "+", "{1,2}"]) for _ in range(rng.randint(1, 4))]
        check_steps(*compiled(parse_regex("".join(parts)), vocabulary), SPELLED)


@pytest.mark.parametrize("before", ['"', "é", '"é', "a*"])
@pytest.mark.parametrize("escape", [NOTHING, seq(text("\\"), text("a"))])
def test_tokens_where_bytes_are_counted_lead_where_their_bytes_lead(before: str, escape: Expression) -> None:
    ranges = complement([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
    expression = seq(parse_regex(before), Counted(ranges, escape, 5), text('"'))
    spelled = [string for string in SPELLED if len(string) != 1 or string.isascii()]  # no ways to a dead end
    check_steps(*compiled(expression, Vocabulary(spelled, {})), spelled)


def test_a_long_count_is_never_exceeded(tokenizer: Tokenizer) -> None:
    """Counters are rounded up, so a way through the automaton writes at most so many bytes, and almost all of them."""
    most = 2000
    _, automaton = compiled(Counted(((0x20, 0x7E),), NOTHING, most), Vocabulary.of(tokenizer))
    letter = tokenizer.encode("a", special=False)[0]
    longest = max(
        (t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t).isalpha()),
        key=lambda t: len(tokenizer.token_bytes(t)),
    )
    for token in (letter, longest):
        state, written = 0, 0
        while (after := automaton.step(state, token)) >= 0:
            state, written = after, written + len(tokenizer.token_bytes(token))
        assert 0 < written <= most


def test_what_is_too_large_is_refused_before_it_fills_the_memory(tokenizer: Tokenizer) -> None:
    expression = parse_template("{a:str<60} by {b:str<60}", Budget())
    vocabulary = Vocabulary.of(tokenizer)
    tracemalloc.start()
    try:
        with pytest.raises(ConstraintError, match="too large for this vocabulary"):
            compiled(expression, vocabulary)
        assert tracemalloc.get_traced_memory()[1] < 600e6
    finally:
        tracemalloc.stop()


def test_spellings_that_are_used_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.constraints.vocabulary.SPELLINGS", 2)
    vocabulary = Vocabulary([b"", b"", *(bytes([65 + number]) for number in range(26))], {})
    one, two, three = (np.full(256, number, dtype=np.uint8) for number in (1, 2, 3))
    found = vocabulary.spelled(one)
    vocabulary.spelled(two)
    assert vocabulary.spelled(one) is found
    vocabulary.spelled(three)  # in the place of the second
    assert vocabulary.spelled(one) is found
