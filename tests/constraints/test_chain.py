"""The dynamic programme against enumeration: every string of a small vocabulary, weighed and summed."""

import itertools
import math
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from redraft.constraints.answer import AutomatonCanvas, AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.chain import Ends
from redraft.constraints.pins import Allowed
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.sampler import Distribution, distribution_under, predict
from redraft.errors import ConstraintError
from redraft.filling.hole import HoleConstraint
from redraft.kernels.triton.constrained import (
    CONTEXT_WEIGHT,
    CanvasTables,
    add_by_class,
    automaton_terms,
    best_tokens,
    class_sums,
)
from redraft.kernels.vocabulary import bias_row
from redraft.settings import Bias

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


def enumerated(logits: np.ndarray, allowed: np.ndarray, context_weight: float) -> tuple[np.ndarray, float]:
    """Probabilities [L,V] and the score of the best string, by enumeration of the allowed ones."""
    scores = logits[np.arange(LENGTH), STRINGS].sum(1)
    kept, best = STRINGS[allowed], scores[allowed].max()
    weights = np.exp(scores[allowed] - best)
    marginals = np.zeros_like(logits)
    for position in range(LENGTH):
        np.add.at(marginals[position], kept[:, position], weights)
    marginals /= weights.sum()
    own = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    mean = own ** (1 - context_weight) * marginals**context_weight
    return mean / mean.sum(1, keepdims=True), best


def whole(canvas: CanvasConstraint, logits: torch.Tensor) -> Distribution:
    """The constrained distribution of a whole canvas' logits [L,V]."""
    held = canvas.hold(torch.zeros(len(logits), dtype=torch.long))
    return distribution_under(
        canvas, held, logits.shape[1], lambda rows: logits.clone() if rows is None else logits[rows]
    )


@pytest.fixture(params=["plain sums", "logarithms"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's plain sums, and by the definition that a device computes."""
    if request.param == "logarithms":
        monkeypatch.setattr(AutomatonCanvas, "_restrict_linear", lambda self, logits: None)


@pytest.fixture(params=[1.0, CONTEXT_WEIGHT])
def context_weight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Exact marginals, and their geometric mean with the model's own probabilities."""
    for module in ("constraints.chain", "constraints.weights", "kernels.triton.constrained"):
        monkeypatch.setattr(f"redraft.{module}.CONTEXT_WEIGHT", request.param)
    return request.param


@pytest.mark.usefixtures("either_way")
def test_probabilities_and_best_string_equal_enumeration_for_random_regexes(context_weight: float) -> None:
    rng, checked = random.Random(0), 0
    generator = torch.Generator().manual_seed(0)
    while checked < 500:
        pattern = random_regex(rng)
        allowed = allowed_by(pattern)
        if not allowed.any():
            continue
        logits = torch.randn(LENGTH, len(SPELLED), generator=generator) * rng.choice([0.5, 3.0, 15.0])
        exact, best = enumerated(logits.double().numpy(), allowed, context_weight)
        seen = whole(compiled(pattern).begin().canvas(LENGTH, LENGTH), logits)
        row = int((seen.argmax.numpy() == STRINGS).all(1).argmax())
        assert allowed[row], (pattern, seen.argmax)
        assert abs(logits.double().numpy()[np.arange(LENGTH), seen.argmax].sum() - best) < 1e-4, pattern
        np.testing.assert_allclose(seen.probabilities.numpy(), exact, atol=2e-5, err_msg=pattern)
        entropy = -np.where(exact > 0, exact * np.log(np.maximum(exact, 1e-300)), 0).sum(1)
        np.testing.assert_allclose(seen.entropy.numpy(), entropy, atol=2e-5, rtol=1e-5, err_msg=pattern)
        checked += 1


@pytest.mark.usefixtures("either_way")
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
        exact, _ = enumerated(logits.double().numpy(), pinned, CONTEXT_WEIGHT)
        canvas = compiled(pattern, {position: token}).begin().canvas(LENGTH, LENGTH)
        seen = whole(canvas, logits)
        assert int(seen.argmax[position]) == token
        assert int(canvas.hold(torch.full((LENGTH,), 5))[position]) == token
        np.testing.assert_allclose(seen.probabilities.numpy(), exact, atol=2e-5)
        checked += 1


@pytest.mark.parametrize("way", ["a step on a CPU", "the operations of a GPU"])
def test_a_bias_is_part_of_the_logits(way: str) -> None:
    """Of raw logits, capped and then divided by a temperature; some tokens are banned, some all but demanded."""
    rng, checked, heat, cap = random.Random(2), 0, 0.7, 30.0
    generator = torch.Generator().manual_seed(2)
    while checked < 200:
        pattern = random_regex(rng)
        allowed = allowed_by(pattern)
        if not allowed.any():
            continue
        bias = {token: rng.choice([-100.0, -3.0, 0.5, 4.0, 100.0]) for token in rng.sample(range(len(SPELLED)), 4)}
        raw = torch.randn(LENGTH, len(SPELLED), generator=generator) * 20
        logits = cap * (raw / cap).tanh()
        logits[:, list(bias)] += torch.tensor([*bias.values()])
        exact, best = enumerated((logits / heat).double().numpy(), allowed, CONTEXT_WEIGHT)
        canvas, pairs = compiled(pattern).begin().canvas(LENGTH, LENGTH), tuple(sorted(bias.items()))
        argmax, probabilities = (_on_cpu if way == "a step on a CPU" else _on_gpu)(canvas, raw, cap, heat, pairs)
        np.testing.assert_allclose(probabilities.numpy(), exact, atol=3e-5, err_msg=pattern)
        row = int((argmax.numpy() == STRINGS).all(1).argmax())
        assert allowed[row]
        found = (logits / heat).double().numpy()[np.arange(LENGTH), argmax].sum()
        assert abs(found - best) < 1e-3
        checked += 1


def _on_cpu(
    canvas: AutomatonCanvas, raw: torch.Tensor, cap: float, heat: float, bias: Bias
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best string and the probabilities by the sampler, for a model whose hidden states are raw logits."""

    class Model:
        config = SimpleNamespace(vocab_size=len(SPELLED))
        device, dtype = torch.device("cpu"), torch.float32
        mean_embeddings = staticmethod(lambda probabilities, rows: probabilities)
        embeddings = staticmethod(lambda tokens: torch.eye(len(SPELLED))[tokens])

        def logits(self, hidden: torch.Tensor, heat: float, table: torch.Tensor | None) -> torch.Tensor:
            tempered = cap * (hidden / cap).tanh() / heat
            return tempered if table is None else tempered @ table.T

    uniform, few = torch.full((LENGTH,), 0.5, dtype=torch.float64), canvas.tokens(torch.device("cpu"))
    seen = predict(Model(), raw, uniform, heat, canvas, bias=bias, want_soft=True)  # type: ignore[arg-type]
    assert seen.soft is not None
    soft = seen.soft if few is None else torch.zeros(LENGTH, len(SPELLED)).index_copy(1, few, seen.soft)
    return seen.argmax, soft


def _on_gpu(
    canvas: AutomatonCanvas, raw: torch.Tensor, cap: float, heat: float, bias: Bias
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by the operations of `engine.constrained_step`, as their twins compute them."""
    automaton, own = canvas.tables(torch.device("cpu"), len(SPELLED))
    columns = torch.arange(len(SPELLED)) if automaton.tokens is None else automaton.tokens
    logits, heats = raw[:, columns].clone(), torch.tensor([heat])
    row = bias_row(bias, len(SPELLED), torch.device("cpu"))[columns][None]
    sums, tables = class_sums(logits, automaton, cap, heats, row), CanvasTables.stacked([own])
    added, labels = automaton_terms(sums.most[None], sums.total[None], automaton, tables)
    best = best_tokens(labels[0], sums, automaton.sets)
    add_by_class(logits, added[0], automaton.class_of, own.held, cap, heats, row)
    argmax = columns[torch.where(own.held < 0, best, own.held).long()]
    return argmax, torch.zeros(LENGTH, len(SPELLED)).index_copy(1, columns, logits.softmax(-1))


@pytest.mark.parametrize("pattern", ["(aaa|bbbbb)*b", "(aab)*", "a{5}(bb)*a", "[ab]*", '("b")*'])
def test_the_shortest_answer_with_a_pin_is_that_of_every_way(pattern: str) -> None:
    """Far pins as well as near ones, where the states that can be reached come in rounds."""
    free, token = compiled(pattern).automaton, SPELLED.index(b"b")
    here = {0}
    for position in range(80):
        after = {free.step(state, token) for state in here} - {-1}
        shortest = position + 1 + min((int(free.distance[state]) for state in after), default=-1)
        if after:
            assert compiled(pattern, {position: token}).min_tokens == shortest
        else:
            with pytest.raises(ConstraintError, match=f"position {position} contradicts"):
                compiled(pattern, {position: token})
        here = {free.step(state, other) for state in here for other in range(len(SPELLED))} - {-1}


def test_a_far_pin_takes_no_longer_than_a_near_one(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []
    constraint = compiled("(aaa|bbbbb)*b")
    monkeypatch.setattr(Budget, "check", lambda *_: checks.append(1))
    assert AutomatonConstraint(constraint.automaton, {10**9: SPELLED.index(b"b")}).min_tokens == 10**9 + 1
    assert len(checks) < 200


@pytest.mark.usefixtures("either_way")
def test_a_budget_that_ends_inside_a_canvas_ends_a_whole_answer() -> None:
    """What stands behind it is some beginning of an answer, complete or not."""
    rng, checked = random.Random(4), 0
    generator = torch.Generator().manual_seed(4)
    while checked < 150:
        pattern, left = rng.choice(["", '"']) + f"({random_regex(rng)})", rng.randrange(1, LENGTH)
        answers = {row[:left] for row in map(tuple, STRINGS[allowed_by(pattern)].tolist()) if set(row[left:]) <= {EOS}}
        if not answers:
            continue
        constraint = compiled(pattern)
        allowed = np.array([tuple(row[:left]) in answers and _goes_on(constraint, row) for row in STRINGS.tolist()])
        logits = torch.randn(LENGTH, len(SPELLED), generator=generator) * 3
        exact, best = enumerated(logits.double().numpy(), allowed, CONTEXT_WEIGHT)
        seen = whole(constraint.begin().canvas(LENGTH, left), logits)
        assert abs(logits.double().numpy()[np.arange(LENGTH), seen.argmax].sum() - best) < 1e-4, (pattern, left)
        np.testing.assert_allclose(seen.probabilities.numpy(), exact, atol=2e-5, err_msg=f"{pattern} {left}")
        checked += 1


def _goes_on(constraint: AutomatonConstraint, tokens: list[int]) -> bool:
    """Whether an answer can begin with these tokens."""
    state = 0
    for token in tokens:
        state = constraint.automaton.step(state, token) if state >= 0 else -1
    return state >= 0


@pytest.mark.usefixtures("either_way")
def test_a_canvas_ends_where_the_rest_still_fits() -> None:
    """With canvases of 2 tokens every budget from the shortest answer on gives a whole answer."""
    constraint = compiled("aaaabbb(ab)*")  # at least 3 tokens: aab? no: a a aab b b, so 5
    assert constraint.min_tokens == 5
    generator = torch.Generator().manual_seed(2)
    for budget in range(5, 12):
        for size in (2, 5):
            state, written = constraint.begin(), []
            while len(written) < budget:
                canvas = state.canvas(size, budget - len(written))
                logits = torch.randn(size, len(SPELLED), generator=generator) * 4
                written += whole(canvas, logits).argmax.tolist()
                state.advance(written[-size:])
            text = b"".join(SPELLED[token] for token in written[:budget]).decode()
            assert re.fullmatch("aaaabbb(ab)*", text), (budget, text)


@pytest.mark.parametrize("far", [300.0, 2000.0])
def test_extreme_logits_do_not_lose_the_way(far: float) -> None:
    """Alternatives that differ by a factor of e^1000: only the unlikely one can be finished."""
    constraint = compiled("(a{3}b)|(b{3}a)")
    logits = torch.zeros(LENGTH, len(SPELLED))
    logits[:3, 1], logits[3, 1] = 150.0, 150.0  # three a are likely, and then an a, which b{3}a alone allows
    logits[3, 2], logits[:, 3:6] = -3 * far, -far
    seen = whole(constraint.begin().canvas(LENGTH, LENGTH), logits)
    assert seen.argmax.tolist() == [2, 2, 2, 1]
    torch.testing.assert_close(seen.probabilities.sum(1), torch.ones(LENGTH))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("far", [100.0, 900.0, 20_000.0])
def test_what_cannot_stand_at_a_position_may_weigh_far_more_there(far: float) -> None:
    """As at temperatures near zero."""
    logits = torch.zeros(3, len(SPELLED))
    logits[0, [4, 9]] = far  # a token that stands elsewhere, and one that stands nowhere
    seen = whole(compiled("[ab]ba[ab]", {1: 4}).begin().canvas(3, 3), logits)
    torch.testing.assert_close(seen.probabilities[0, [1, 2]], torch.full((2,), 0.5))
    torch.testing.assert_close(seen.entropy, torch.tensor([np.log(2), 0.0, np.log(2)], dtype=torch.float32))


def test_tokens_that_stand_nowhere_are_never_drawn() -> None:
    logits = torch.randn(LENGTH, len(SPELLED) + 3)  # a model may have more logits than the tokenizer has tokens
    seen = whole(compiled("a+").begin().canvas(LENGTH, LENGTH), logits)
    assert (seen.probabilities[:, [2, 4, 9, 10, 11, 12]] == 0).all()


@pytest.mark.parametrize("cold", [1e3, 1e6, 1e14])
def test_nothing_impossible_is_drawn_however_cold(cold: float) -> None:
    """Logits over small temperatures: what is possible may have far lower ones than what is not."""
    logits = torch.full((LENGTH, len(SPELLED)), 30.0) * cold
    logits[:, [1, 9]] *= -1  # a, "
    canvas = compiled('[a"]{4}').begin().canvas(LENGTH, LENGTH)
    for seen in (canvas.restrict(logits.clone()), canvas._on_device(logits.clone())):
        assert set(seen.argmax.tolist()) <= {1, 9}
        torch.testing.assert_close(seen.probabilities[:, [1, 9]], torch.full((LENGTH, 2), 0.5))
        torch.testing.assert_close(seen.entropy, torch.full((LENGTH,), math.log(2)))
    others = [token for token in range(len(SPELLED)) if token != 1]
    for canvas in (
        Allowed(LENGTH, forbidden={0: others}),
        HoleConstraint(tuple(others), {}),
        HoleConstraint((), {0: (1,)}),
    ):
        assert canvas.restrict(logits.clone()).probabilities[0, 1] == 1.0


def test_both_ways_agree_on_long_canvases_and_logits_far_apart() -> None:
    generator = torch.Generator().manual_seed(3)
    for pattern, spread in (("(a|b)*é?", 20.0), ("(ab|ba){3,7}", 60.0), ('"[ab]{2,9}"é', 250.0), ('"[ab]{2,9}"é', 9.0)):
        canvas = compiled(pattern).begin().canvas(40, 50)
        free = canvas.free(40, torch.device("cpu"))
        rows = 40 if free is None else len(free)
        logits = torch.randn(rows, len(SPELLED), generator=generator) * spread
        plain, exact = canvas._restrict_linear(logits.clone()), canvas._on_device(logits.clone())
        assert (plain is None) == (spread == 250.0), pattern  # contexts that plain sums lose would count there
        if plain is None:
            continue
        assert torch.equal(plain.argmax, exact.argmax), pattern
        torch.testing.assert_close(plain.probabilities, exact.probabilities, atol=2e-3, rtol=0)
        torch.testing.assert_close(plain.entropy, exact.entropy, atol=1e-2, rtol=0)


@pytest.mark.parametrize("tokens", [[1], list(range(len(SPELLED)))])
def test_a_logit_that_is_no_number_makes_its_entropy_none(tokens: list[int]) -> None:
    logits = torch.randn(LENGTH, len(SPELLED))
    logits[2, tokens] = torch.nan
    canvas = compiled("(a|b)*").begin().canvas(LENGTH, LENGTH)
    assert canvas._on_device(logits.clone()).entropy[2].isnan()
    assert canvas._restrict_linear(logits) is None


def test_sums_say_when_they_are_lost() -> None:
    """All strings together cannot weigh less than the best one; what fp64 cannot hold is left to the logarithms."""
    constraint = compiled("a{20}|b{20}")
    ends = Ends(0, constraint.automaton.accept)
    weights = np.full((20, constraint.automaton.sets), 1e-200)
    assert constraint.chain.shares(weights, ends) is not None
    weights[:] = 0.0
    assert constraint.chain.shares(weights, ends) is None
    weights[:], weights[0] = 1e-200, 1e-310  # no zero, but its inverse is no number; a warning would be an error here
    assert constraint.chain.shares(weights, ends) is None
