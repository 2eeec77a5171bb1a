"""Constrained canvases behind the GPU runner's step, on a CPU in fp32: they write what the eager runner writes."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from running import STEPS, constraint, ids, new_runner, plainly, same, step_of

from redraft.constraints.answer import AutomatonCanvas, AutomatonConstraint
from redraft.constraints.pins import Allowed
from redraft.diffusion.constraint import TabledConstraint
from redraft.engine.work import DenoiseResult, Encode, Segment
from redraft.kernels.switches import Operation, watching
from redraft.model import Transformer
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import Bias

PROMPTS = {0: ids(1, 40), 1: ids(2, 9), 2: ids(3, 21)}


TIME, WORDS = constraint(r"\d\d?:\d\d"), constraint(r"[a-z ]{3,40}x[a-z]*", {4: 120})


def canvas(whole: AutomatonConstraint, length: int = 16, left: int = 40) -> AutomatonCanvas:
    return whole.begin().canvas(length, left)


CANVASES = {
    "a few tokens": lambda: canvas(TIME),
    "many tokens and a pin": lambda: canvas(WORDS),
    "the end in sight": lambda: canvas(WORDS, left=9),
    "forbidden and pinned": lambda: Allowed(16, {2: 77, 5: 78}, {0: range(1, 256, 2), 1: [3]}),
    "forbidden": lambda: Allowed(16, forbidden={0: (1, 16)}),
}


@pytest.mark.parametrize("name", CANVASES)
def test_every_step_is_that_of_the_eager_runner(plain: Transformer, packed: PackedTransformer, name: str) -> None:
    limit = CANVASES[name]()
    records = plainly(plain, PROMPTS[0], 0, constraint=limit)
    runner = new_runner(packed)
    runner.run([Encode(slot=0, start=0, token_ids=PROMPTS[0])])
    for step, record in enumerate(records):
        (result,) = runner.run([step_of(0, 40, step, constraint=limit)])
        assert same(record, result)
        assert result.top is None


BIAS = (
    (3, -100.0),
    (49, -100.0),
    (50, 4.0),
    (55, 4.0),
    *((token, 4.0) for token in range(60, 90)),
    (120, -100.0),
    (200, 1.5),
)


@pytest.mark.parametrize("not_first", [(), (1, 16)])
@pytest.mark.parametrize("name", [*CANVASES, "anything"])
def test_every_step_with_a_bias_is_that_of_the_eager_runner(
    plain: Transformer, packed: PackedTransformer, name: str, not_first: tuple[int, ...]
) -> None:
    limit = None if name == "anything" else CANVASES[name]()
    given = {"constraint": limit, "not_first": not_first, "logit_bias": BIAS}
    records = plainly(plain, PROMPTS[0], 0, **given)  # type: ignore[arg-type]
    runner, free = new_runner(packed), plainly(plain, PROMPTS[0], 0, constraint=limit, not_first=not_first)
    assert not same(free[0], records[0])
    runner.run([Encode(slot=0, start=0, token_ids=PROMPTS[0])])
    for step, record in enumerate(records):
        assert same(record, runner.run([step_of(0, 40, step, **given)])[0])


def test_log_probabilities_are_those_of_the_biased_logits(plain: Transformer, packed: PackedTransformer) -> None:
    work = [step_of(0, 0, 0, logprobs=2, last=True, logit_bias=((60, 100.0), (61, 100.0), (62, -100.0)))]
    for limit in (None, canvas(WORDS)):
        (result,) = new_runner(packed).run([replace(work[0], constraint=limit)])
        assert result.top is not None
        if limit is None:
            assert {token for one in result.top.token_ids for token in one} == {60, 61}
            assert all(sum(np.exp(both)) == pytest.approx(1.0) for both in result.top.logprobs)


def test_a_canvas_shorter_than_the_buffers(plain: Transformer, packed: PackedTransformer) -> None:
    for whole in (TIME, WORDS):
        limit = canvas(whole, length=11)
        runner = new_runner(packed)
        runner.run([Encode(slot=0, start=0, token_ids=PROMPTS[0])])
        for step, record in enumerate(plainly(plain, PROMPTS[0], 0, length=11, constraint=limit)):
            assert same(record, runner.run([step_of(0, 40, step, length=11, constraint=limit)])[0])


def answers(
    packed: PackedTransformer, limits: Mapping[int, TabledConstraint | None], biases: Mapping[int, Bias]
) -> dict[int, list[DenoiseResult]]:
    """All steps of slots' canvases, together."""
    runner, found = new_runner(packed), {slot: list[DenoiseResult]() for slot in limits}
    runner.run([Encode(slot=slot, start=0, token_ids=PROMPTS[slot]) for slot in limits])
    for step in range(STEPS):
        work: list[Segment] = [
            step_of(slot, len(PROMPTS[slot]), step, constraint=limit, logit_bias=biases.get(slot, ()))
            for slot, limit in limits.items()
        ]
        results = runner.run(work)
        assert [one.slot for one in results] == list(limits)
        for one in results:
            found[one.slot].append(one)
    return found


@pytest.mark.parametrize("biases", [{}, {0: BIAS}, {1: BIAS}, {0: BIAS, 1: ((9, 7.0),), 2: ((9, -7.0),)}])
@pytest.mark.parametrize("rows", [16, 1024])
def test_answers_do_not_depend_on_company(
    packed: PackedTransformer, monkeypatch: pytest.MonkeyPatch, rows: int, biases: dict[int, Bias]
) -> None:
    """Of the same language, of another one, and of none, with any biases; logits existing for one canvas at a time, or
    for all."""
    monkeypatch.setattr("redraft.engine.constrained_step.CONSTRAINED_ROWS", rows)
    for limits in (
        {0: canvas(WORDS), 1: None, 2: canvas(WORDS, left=30)},
        {2: canvas(TIME), 0: canvas(WORDS), 1: canvas(TIME, left=8)},
    ):
        together = answers(packed, limits, biases)
        for slot, limit in limits.items():
            alone = answers(packed, {slot: limit}, biases)[slot]
            assert all(
                np.array_equal(getattr(one, name), getattr(other, name))
                for one, other in zip(together[slot], alone, strict=True)
                for name in ("canvas", "argmax_canvas", "accepted", "converged")
            )
            np.testing.assert_allclose([o.entropy for o in together[slot]], [o.entropy for o in alone], atol=1e-5)


def test_the_report_leaves_before_soft_embeddings_are_made(packed: PackedTransformer) -> None:
    order = list[str]()

    def watch(operation: Operation) -> object:
        order.append(operation.name)
        return operation.run()

    with watching(watch):
        new_runner(packed).run([step_of(0, 0, 0, constraint=canvas(TIME))])
    assert order[-2:] == ["finish_step", "soft_embeddings"]


def test_what_constraints_add_to_a_step_is_operations_of_it(packed: PackedTransformer) -> None:
    """Of the engine's step, and where logits come from elsewhere."""
    names = ["class_sums", "automaton_terms", "best_tokens", "add_by_class"]
    seen = list[str]()

    def watch(operation: Operation) -> object:
        seen.append(operation.name)
        return operation.run()

    with watching(watch):
        new_runner(packed).run([step_of(0, 0, 0, constraint=canvas(WORDS))])
        assert [name for name in seen if name in names] == names
        seen.clear()
        canvas(WORDS)._on_device(torch.zeros(15, packed.config.vocab_size))  # one position is pinned
        assert seen == names


def test_a_logit_that_is_no_number_is_told(packed: PackedTransformer) -> None:
    runner, limit = new_runner(packed), canvas(WORDS)
    runner.run([step_of(0, 0, 0, constraint=limit)])
    runner.shared.state.soft[0, 3] = torch.nan
    (result,) = runner.run([step_of(0, 0, 1, constraint=limit)])
    assert np.isnan(result.entropy).any()
