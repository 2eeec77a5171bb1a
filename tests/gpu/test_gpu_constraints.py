"""On a CUDA device: canvases that obey a constraint, behind captured steps, alone and in company."""

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
import torch
from stepping import CONFIG, FORMATS, by_gpus, packed, prompt, randomized, runner_of, step_of

from redraft import kernels
from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.device import automaton_tables
from redraft.constraints.pins import Allowed
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.diffusion.constraint import TabledConstraint
from redraft.engine.graph_runner import GraphRunner
from redraft.engine.runner import EagerRunner
from redraft.engine.work import DenoiseResult
from redraft.kernels.triton.constrained import (
    CanvasTables,
    ClassSums,
    add_by_class,
    automaton_terms,
    best_tokens,
    class_sums,
)
from redraft.kernels.triton.head import HeadResult, sample
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.segments import DENOISE, Segments
from redraft.model import Transformer
from redraft.settings import Bias

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LETTERS = b"abcdefghijklmnop0123:x"
TEXTS = [bytes(letters) for size in (1, 2, 3) for letters in product(LETTERS, repeat=size)]
SPELLED = [b"", *TEXTS][: CONFIG.vocab_size]
VOCAB = 262_144


def constraint(pattern: str, pins: Mapping[int, int] | None = None) -> AutomatonConstraint:
    budget = Budget()
    dfa = compile_bytes(parse_regex(pattern, budget=budget), budget)
    automaton = compile_tokens(dfa, Vocabulary(SPELLED, {"<eos>": 0}), Ending((0,), (0,)), (), budget)
    return AutomatonConstraint(automaton, pins)


TIME, WORDS = constraint("[0-3][0-3]:[0-3]{2}"), constraint("[a-p]{9,400}x[a-p]*", {4: 3})
LIMITS: dict[int, Callable[[], TabledConstraint | None]] = {
    0: lambda: WORDS.begin().canvas(256, 300),
    1: lambda: TIME.begin().canvas(256, 256),
    2: lambda: WORDS.begin().canvas(256, 90),
    3: lambda: Allowed(256, forbidden={0: (1, 106)}),
}


@pytest.fixture(scope="module")
def plain() -> Transformer:
    return randomized(CONFIG)


BANNED = tuple((token, -100.0) for token in range(2, 5000, 3))[:1000]
BIASES: dict[int, Bias] = {
    0: BANNED,
    1: tuple((SPELLED.index(digit), 100.0) for digit in (b"0", b"1", b"2", b"3")),
    3: ((7, 9.0), (8, -9.0)),
}


def steps(
    runner: GraphRunner, limits: Mapping[int, TabledConstraint | None], biases: Mapping[int, Bias] | None = None
) -> dict[int, list[DenoiseResult]]:
    found: dict[int, list[DenoiseResult]] = {slot: [] for slot in limits}
    for slot in limits:
        runner.run(prompt(slot, 300))
    for step in range(4):
        work = [
            step_of(slot, 300, step, constraint=limit, logit_bias=(biases or {}).get(slot, ()))
            for slot, limit in limits.items()
        ]
        for one in runner.run(work):
            found[one.slot].append(one)
    return found


@by_gpus(1, 2, 4)
@FORMATS
def test_constrained_canvases_do_not_depend_on_company_or_graphs(
    plain: Transformer, quantization: str | None, gpus: int
) -> None:
    model, limits = packed(plain, quantization, gpus=gpus), {slot: limit() for slot, limit in LIMITS.items()}
    together = steps(runner_of(model, graphs=True), limits)
    assert together == steps(runner_of(model, graphs=False), limits)
    for slot, limit in limits.items():
        assert together[slot] == steps(runner_of(model, graphs=True), {slot: limit})[slot]
    for result in together[1]:
        text = b"".join(SPELLED[token] for token in result.argmax_canvas)
        assert len(text) == 5
        assert text[2:3] == b":"
    for slot in (0, 2):
        for result in together[slot]:
            assert result.argmax_canvas[4] == 3
            assert np.isfinite(result.entropy).all()
            assert b"x" in b"".join(SPELLED[token] for token in result.argmax_canvas)[9:]


@by_gpus(1, 2)
@FORMATS
def test_biased_canvases_do_not_depend_on_company_or_graphs(
    plain: Transformer, quantization: str | None, gpus: int
) -> None:
    """Under constraints and without any; those without a bias are what they are alone, and without these."""
    model = packed(plain, quantization, gpus=gpus)
    for limits in ({slot: limit() for slot, limit in LIMITS.items()}, dict.fromkeys(LIMITS)):
        together = steps(runner_of(model, graphs=True), limits, BIASES)
        assert together == steps(runner_of(model, graphs=False), limits, BIASES)
        for slot, limit in limits.items():
            assert together[slot] == steps(runner_of(model, graphs=True), {slot: limit}, BIASES)[slot]
        assert together[2] == steps(runner_of(model, graphs=True), {2: limits[2]})[2]
        for result in together[0]:
            assert np.isfinite(result.entropy).all()
            assert not {token for token, _ in BANNED} & {*result.argmax_canvas.tolist()} or limits[0] is not None
    favoured = {token for token, _ in BIASES[1]}
    assert all({*result.argmax_canvas.tolist()} <= favoured for result in together[1])


def test_a_biased_step_is_near_that_of_fp32(plain: Transformer) -> None:
    """bf16 moves a few uncertain positions of the first step, whether or not there is a bias."""
    model, shares = packed(plain, None), list[float]()
    reference = EagerRunner(plain, runner_of(model, graphs=False).limits)
    reference.assign(0, [0, 1, 2], [0, 1, 2])
    reference.run(prompt(0, 300))
    for bias in ((), BANNED, BIASES[3]):
        runner = runner_of(model, graphs=True)
        runner.run(prompt(0, 300))
        work = [step_of(0, 300, 0, logit_bias=bias)]
        (exact,), (found,) = reference.run(work), runner.run(work)
        shares.append(float((exact.argmax_canvas == found.argmax_canvas).mean()))
        assert np.abs(exact.entropy - found.entropy).mean() < 0.05 * max(1.0, exact.entropy.mean())
    assert min(shares[1:]) > shares[0] - 0.1


@pytest.mark.parametrize("biased", [False, True])
@torch.inference_mode()
def test_the_operations_are_their_twins_at_the_26b_models_vocabulary(biased: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    automaton = automaton_tables(device, WORDS.automaton, np.resize(WORDS.automaton.class_of, VOCAB))
    tables = CanvasTables.stacked([WORDS.begin().canvas(256, left).tables(device, VOCAB)[1] for left in (300, 90)])
    heat, held = torch.tensor([0.5, 0.9], device=device), tables.held.flatten()
    raw = (12 * torch.randn(512, VOCAB, device=device, generator=torch.Generator(device).manual_seed(0))).bfloat16()
    drawn = torch.randn(2, VOCAB, device=device, generator=torch.Generator(device).manual_seed(1))
    bias = torch.where(drawn > 1, -100.0, drawn.clamp(max=0)) if biased else None
    counters = Counters(seed=heat.long() + 5, canvas=heat.int(), step=heat.int() + 2)
    rows = torch.full((2,), 256, dtype=torch.int32, device=device)
    segments = Segments(kind=torch.full_like(rows, DENOISE), start=0 * rows, length=rows, rows=256)

    def obey() -> tuple[ClassSums, torch.Tensor, torch.Tensor, torch.Tensor, HeadResult]:
        logits = raw.clone()
        sums = class_sums(logits, automaton, 30.0, heat, bias)
        most, total = (part.unflatten(0, (2, 256)) for part in (sums.most, sums.total))
        added, labels = automaton_terms(most, total, automaton, tables)
        tokens = best_tokens(labels.flatten(), sums, automaton.sets)
        tiles = add_by_class(logits, added.flatten(0, 1), automaton.class_of, held, 30.0, heat, bias)
        return sums, labels, tokens, logits, sample(logits, tiles, None, torch.ones_like(heat), counters, segments)

    sums, labels, tokens, logits, seen = obey()
    with kernels.force("eager"):
        sums_, labels_, tokens_, logits_, seen_ = obey()
    torch.testing.assert_close(sums.total, sums_.total, rtol=1e-5, atol=1e-3)
    assert torch.equal(labels, labels_)
    free = held < 0
    x = 30 * (raw.float() / 30).tanh() + (0 if bias is None else bias.repeat_interleave(256, 0))
    ours, theirs = (x.gather(1, found[:, None].long())[free] for found in (tokens, tokens_))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)  # of equal logits either
    near = logits_ > -60
    torch.testing.assert_close(logits[near], logits_[near], rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(seen.entropy, seen_.entropy, rtol=1e-2, atol=1e-3)
    assert (seen.candidate == seen_.candidate).float().mean() > 0.9  # where a rounding decides, a neighbour
