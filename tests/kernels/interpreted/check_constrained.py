"""constrained.py against its twins, and with it a packed model's step under a constraint."""

import numpy as np
import pytest
import torch
from check_packed_step import CONFIG, LIMITS
from making import ints, normal
from torch import Tensor

from redraft import kernels
from redraft.bench.random_weights import random_source
from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.diffusion.step import rule_fields
from redraft.engine.graph_runner import GraphRunner
from redraft.engine.work import Denoise, Encode
from redraft.kernels.triton.constrained import AutomatonTables, add_by_class, best_tokens, class_sums
from redraft.kernels.triton.head import sample
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.segments import DENOISE, Segments
from redraft.kernels.vocabulary import NEVER
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import Bias, GenerationSettings

SPELLED = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bb"]
CAP, HEAT = 30.0, torch.tensor([0.7, 1.0])


def constraint(pattern: str, spelled: list[bytes], pins: dict[int, int] | None = None) -> AutomatonConstraint:
    budget = Budget()
    dfa = compile_bytes(parse_regex(pattern, budget=budget), budget)
    automaton = compile_tokens(dfa, Vocabulary(spelled, {"<eos>": 0}), Ending((0,), (0,)), (), budget)
    return AutomatonConstraint(automaton, pins)


@pytest.fixture
def automaton(monkeypatch: pytest.MonkeyPatch) -> AutomatonTables:
    """Of 300 tokens, most of them in one class, which is cut into pieces."""
    monkeypatch.setattr("redraft.constraints.device.PIECE", 100)
    spelled = [b"", b"a", b"b", *(bytes([97 + number % 26, 97 + number // 26, 120]) for number in range(297))]
    found, _ = constraint("[a-z]{0,9}a", spelled).begin().canvas(4, 9).tables(torch.device("cpu"), 300)
    assert len(found.pieces.first) > len(found.classes.first)
    return found


def logits() -> Tensor:
    found = 9 * normal(6, 300)
    found[2, 7:200] = -80.0
    return found


def a_bias() -> Tensor:
    """Of two segments, the first of which bans some tokens and demands others."""
    bias = torch.zeros(2, 300)
    bias[0, 5:250:7], bias[0, 8:250:7], bias[1] = -100.0, 90.0, 3 * normal(300)
    return bias


BIASES = pytest.mark.parametrize(("cap", "bias"), [(CAP, None), (None, None), (CAP, a_bias())])


@BIASES
def test_class_sums(automaton: AutomatonTables, cap: float | None, bias: Tensor | None) -> None:
    ours = class_sums(logits(), automaton, cap, HEAT, bias)
    with kernels.force("eager"):
        theirs = class_sums(logits(), automaton, cap, HEAT, bias)
    for name in ("most", "total"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-3)
    assert torch.equal(ours.token, theirs.token)
    spoiled = logits()
    spoiled[1, 5] = torch.nan
    assert class_sums(spoiled, automaton, cap, HEAT, bias).total.isnan().any(1).tolist() == [
        row == 1 for row in range(6)
    ]


def test_the_best_token_of_a_set(automaton: AutomatonTables) -> None:
    sums = class_sums(logits(), automaton, None, HEAT)
    labels = torch.arange(6) % (len(automaton.sets.first) - 1)
    given = labels, sums, automaton.sets
    with kernels.force("eager"):
        theirs = best_tokens(*given)
    assert torch.equal(best_tokens(*given), theirs)


@BIASES
@pytest.mark.parametrize("held", [None, ints(-1, 4, -1, -1, 299, -1)])
def test_logits_by_class_and_what_the_sampler_makes_of_them(
    automaton: AutomatonTables, cap: float | None, held: Tensor | None, bias: Tensor | None
) -> None:
    added = 5 * normal(6, len(automaton.classes.first) - 1)
    added[:, 1] = NEVER
    ours, theirs = logits(), logits()
    tiles = add_by_class(ours, added, automaton.class_of, held, cap, HEAT, bias)
    segments = Segments(kind=ints(DENOISE, DENOISE), start=ints(0, 0), length=ints(3, 2), rows=3)
    counters = Counters(seed=torch.tensor([3, 9]), canvas=ints(0, 1), step=ints(2, 0))
    given = None, torch.ones(2), counters, segments
    seen = sample(ours, tiles, *given)
    with kernels.force("eager"):
        assert add_by_class(theirs, added, automaton.class_of, held, cap, HEAT, bias) is None
        expected = sample(theirs, None, *given)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    rows = torch.arange(6) < 5  # the last one is padding
    for name in ("argmax", "candidate"):
        assert torch.equal(getattr(seen, name)[rows], getattr(expected, name)[rows])
    torch.testing.assert_close(seen.entropy[rows], expected.entropy[rows], rtol=1e-3, atol=1e-4)
    if held is not None:
        assert seen.argmax.tolist()[1] == 4
        assert seen.entropy[1] == 0


def test_marginals_of_a_real_automaton() -> None:
    canvas = constraint("(ab|ba){2,5}a?", SPELLED, {1: 4}).begin().canvas(9, 8)
    free = canvas.free(9, torch.device("cpu"))
    given = (3 * normal(9, len(SPELLED)))[free]
    plain, ours = canvas._restrict_linear(given.clone()), canvas._on_device(given.clone())
    assert plain is not None
    assert torch.equal(ours.argmax, plain.argmax)
    torch.testing.assert_close(ours.probabilities, plain.probabilities, atol=1e-5, rtol=0)


@pytest.mark.parametrize("biases", [((), ()), (((97, -100.0),), ((100, 5.0),))])
def test_a_step_of_two_canvases(biases: tuple[Bias, Bias]) -> None:
    """The second has no constraint if it has a bias, but a first token that it cannot have."""
    source = random_source(CONFIG, torch.device("cpu"), torch.float32)
    packed = pack(CONFIG, source, device=torch.device("cpu"), dtype=torch.float32)
    spelled = [bytes([number]) if 1 < number < 128 else b"" for number in range(256)]
    whole = constraint("[^b]{3,40}b", spelled)
    limits = [whole.begin().canvas(16, 30), None if biases[1] else whole.begin().canvas(16, 9)]
    given = {"start": 20, "length": 16, "canvas_index": 0, "temperature": 0.7, "last": False, "eos_ids": (0,),
             "not_first": (9,), **rule_fields(GenerationSettings(entropy_bound=2.0, stop_at_eos=True))}  # fmt: skip
    fast, plain = (GraphRunner(PackedTransformer(packed), LIMITS) for _ in range(2))
    for runner in (fast, plain):
        runner.assign(0, (3, 1), (0, 2))
        runner.assign(1, (2,), (3,))
        runner.run([Encode(slot=slot, start=0, token_ids=tuple(range(20, 40))) for slot in range(2)])
    own = [given | {"constraint": limits[s], "logit_bias": biases[s]} for s in range(2)]
    work = [Denoise(slot=s, seed=s, step=0, **own[s]) for s in range(2)]
    found = fast.run(work)
    with kernels.force("eager"):
        expected = plain.run(work)
    for one, other in zip(found, expected, strict=True):
        for name in ("canvas", "argmax_canvas", "accepted"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        np.testing.assert_allclose(one.entropy, other.entropy, atol=2e-3, rtol=2e-3)
    ours, theirs = (runner.shared.state.soft[:2] for runner in (fast, plain))
    assert ours.sub(theirs).norm() < 2e-3 * theirs.norm()
