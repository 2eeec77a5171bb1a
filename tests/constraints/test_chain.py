"""The dynamic programme against enumeration: every string of a small vocabulary, weighed and summed."""

import itertools
import random
import re

import numpy as np
import torch

from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.diffusion.sampler import MASKED
from redraft.errors import ConstraintError

SPELLED = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"\xc3", b"\xa9", "é".encode(), b'"']
EOS, LENGTH = 0, 4
STRINGS = np.array(list(itertools.product(range(len(SPELLED)), repeat=LENGTH)))  # [S,L]
ATOMS = ["a", "b", "é", '"', "[ab]", "[^a]", ".", "(ab|b)", "(a|é)b", "a?"]


def random_regex(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        atom = rng.choice(ATOMS)
        parts.append(atom + ("" if atom.endswith("?") else rng.choice(["", "", "*", "+", "?", "{1,2}"])))
    return rng.choice(["", "(a|b)|"]) + "".join(parts)


def whole_texts() -> list[str | None]:
    """The text of every string, or None if it is no answer: only end-of-text stands behind its first one."""
    found: list[str | None] = []
    for row in STRINGS.tolist():
        end = row.index(EOS) if EOS in row else LENGTH
        try:
            text = b"".join(SPELLED[token] for token in row[:end]).decode()
        except UnicodeDecodeError:
            text = None
        found.append(text if set(row[end:]) <= {EOS} else None)
    return found


TEXTS = whole_texts()


def allowed_by(pattern: str) -> np.ndarray:
    compiled = re.compile(pattern)
    known = {text: compiled.fullmatch(text) is not None for text in set(TEXTS) - {None}}
    return np.array([text is not None and known[text] for text in TEXTS])


def compiled(pattern: str, pins: dict[int, int] | None = None) -> AutomatonConstraint:
    budget = Budget()
    dfa = compile_bytes(parse_regex(pattern, budget=budget), budget)
    if dfa.empty:
        raise ConstraintError("empty")
    automaton = compile_tokens(dfa, Vocabulary(SPELLED, {"<eos>": EOS}), Ending((EOS,), (EOS,)), (), budget)
    return AutomatonConstraint(automaton, pins)


def enumerated(logits: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, float]:
    """Marginals [L,V] and the score of the best string, by enumeration of the allowed ones."""
    scores = logits[np.arange(LENGTH), STRINGS].sum(1)
    kept, best = STRINGS[allowed], scores[allowed].max()
    weights = np.exp(scores[allowed] - best)
    marginals = np.zeros_like(logits)
    for position in range(LENGTH):
        np.add.at(marginals[position], kept[:, position], weights)
    return marginals / weights.sum(), best


def test_marginals_and_best_string_equal_enumeration_for_random_regexes() -> None:
    rng, checked = random.Random(0), 0
    generator = torch.Generator().manual_seed(0)
    while checked < 500:
        pattern = random_regex(rng)
        allowed = allowed_by(pattern)
        if not allowed.any():
            continue
        logits = torch.randn(LENGTH, len(SPELLED), generator=generator) * rng.choice([0.5, 3.0, 15.0])
        marginals, best = enumerated(logits.double().numpy(), allowed)
        restricted = logits.clone()
        string = compiled(pattern).begin().canvas(LENGTH, LENGTH).restrict(restricted)
        row = int((string.numpy() == STRINGS).all(1).argmax())
        assert allowed[row], (pattern, string)
        assert abs(logits.double().numpy()[np.arange(LENGTH), string].sum() - best) < 1e-4, pattern
        np.testing.assert_allclose(restricted.softmax(-1).numpy(), marginals, atol=2e-5, err_msg=pattern)
        checked += 1


def test_pins_meet_the_automaton() -> None:
    rng, checked = random.Random(1), 0
    generator = torch.Generator().manual_seed(1)
    while checked < 60:
        pattern, position, token = random_regex(rng), rng.randrange(LENGTH), rng.randrange(1, len(SPELLED))
        allowed = allowed_by(pattern)
        pinned = allowed & (STRINGS[:, position] == token)
        if not pinned.any():
            continue
        logits = torch.randn(LENGTH, len(SPELLED), generator=generator) * 3
        held = logits.double().numpy().copy()
        held[position] = MASKED
        held[position, token] = 0
        marginals, _ = enumerated(held, pinned)
        restricted = logits.clone()
        canvas = compiled(pattern, {position: token}).begin().canvas(LENGTH, LENGTH)
        string = canvas.restrict(restricted)
        assert int(string[position]) == token
        assert int(canvas.hold(torch.full((LENGTH,), 5))[position]) == token
        np.testing.assert_allclose(restricted.softmax(-1).numpy(), marginals, atol=2e-5)
        checked += 1


def test_a_canvas_ends_where_the_rest_still_fits() -> None:
    """With canvases of 2 tokens every budget from the shortest answer on gives a whole answer."""
    constraint = compiled("aaaabbb(ab)*")  # at least 3 tokens: aab? no: a a aab b b, so 5
    assert constraint.min_tokens == 5
    generator = torch.Generator().manual_seed(2)
    for budget in range(5, 12):
        state, written = constraint.begin(), []
        while len(written) < budget:
            canvas = state.canvas(2, budget - len(written))
            written += canvas.restrict(torch.randn(2, len(SPELLED), generator=generator) * 4).tolist()
            state.advance(written[-2:])
        kept = written[:budget]
        text = b"".join(SPELLED[token] for token in kept).decode()
        assert re.fullmatch("aaaabbb(ab)*", text), (budget, text)


def test_extreme_logits_do_not_lose_the_way() -> None:
    """Alternatives that differ by a factor of e^1000: only the unlikely one can be finished."""
    constraint = compiled("(a{3}b)|(b{3}a)")
    logits = torch.zeros(LENGTH, len(SPELLED))
    logits[:3, 1], logits[3, 1] = 150.0, 150.0  # three a are likely, and then an a, which b{3}a alone allows
    logits[3, 2], logits[:, 3:6] = -2000.0, -2000.0
    best = constraint.begin().canvas(LENGTH, LENGTH).restrict(logits)
    assert best.tolist() == [2, 2, 2, 1]
    assert torch.isfinite(logits).all()


def test_tokens_that_stand_nowhere_are_masked() -> None:
    logits = torch.randn(LENGTH, len(SPELLED) + 3)  # a model may have more logits than the tokenizer has tokens
    compiled("a+").begin().canvas(LENGTH, LENGTH).restrict(logits)
    assert (logits[:, [2, 4, 9, 10, 11, 12]] == MASKED).all()


def test_plain_sums_equal_those_in_logarithms_and_say_when_they_are_lost() -> None:
    constraint = compiled("(a|b)*é?")
    chain, states = constraint.chain, constraint.automaton.states
    rng = np.random.default_rng(0)
    start = np.where(np.arange(states) == 0, 0, -1e30).astype(np.float32)
    final = np.zeros(states, dtype=np.float32)
    weights = rng.normal(size=(40, constraint.automaton.sets)).astype(np.float32) * 20
    plain = chain._plain_shares(weights, start, final, {}, -np.inf)
    exact = chain._log_shares(weights, start, final, {})
    assert plain is not None
    plain, exact = (shares - shares.max(1, keepdims=True) for shares in (plain, exact))
    np.testing.assert_allclose(plain[exact > -50], exact[exact > -50], atol=1e-2)
    assert chain._plain_shares(weights, start, final, {}, 1e6) is None
