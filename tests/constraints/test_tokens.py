"""The token automaton of an expression: every token leads where its bytes lead, however it was grouped on the way."""

import math
import tracemalloc

import numpy as np
import pytest

from redraft.constraints.automaton import Budget, Dfa, on_symbols
from redraft.constraints.expression import ANY, NOTHING, Counted, Expression, chars, repeat, seq, text
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


def compiled(expression: Expression, tokenizer: Tokenizer) -> tuple[Dfa, TokenAutomaton]:
    budget = Budget(seconds=math.inf)  # counting memory takes several times as long, on some machines too long
    dfa = compile_bytes(expression, budget)
    return dfa, compile_tokens(dfa, Vocabulary.of(tokenizer), Ending((EOS,), (EOS,)), (), budget)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_tokens_lead_where_their_bytes_lead(tokenizer: Tokenizer, name: str) -> None:
    dfa, automaton = compiled(EXPRESSIONS[name], tokenizer)
    table = np.vstack([on_symbols(dfa, 256), np.full((1, 256), -1, np.int32)])  # the last row: nowhere
    pairs = {0: 0}  # state of the token automaton -> state over bytes
    waiting, special = [0], set(tokenizer.special_ids.values())
    while waiting:
        state = waiting.pop()
        for token in range(state % 4, tokenizer.vocab_size, 4):
            if token in special:
                continue
            behind = pairs[state]
            for byte in tokenizer.token_bytes(token):
                behind = table[behind, byte]
            after = automaton.step(state, token)
            assert (after >= 0) == (behind >= 0), (name, state, tokenizer.token_bytes(token))
            if after >= 0 and after not in pairs:
                waiting.append(after)
            assert after < 0 or pairs.setdefault(after, int(behind)) == behind
    assert all(automaton.accept[state] == dfa.accept[behind] for state, behind in pairs.items())


def test_a_long_count_is_never_exceeded(tokenizer: Tokenizer) -> None:
    """Counters are rounded up, so a way through the automaton writes at most so many bytes, and almost all of them."""
    most = 2000
    _, automaton = compiled(Counted(((0x20, 0x7E),), NOTHING, most), tokenizer)
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
    Vocabulary.of(tokenizer)
    tracemalloc.start()
    try:
        with pytest.raises(ConstraintError, match="too large for this vocabulary"):
            compiled(expression, tokenizer)
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
