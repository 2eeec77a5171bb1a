"""step.py: tokens, acceptance, renoising, state and report equal the twin exactly."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from making import ints

from redraft import kernels
from redraft.kernels.triton.head import HeadResult
from redraft.kernels.triton.philox import Counters
from redraft.kernels.triton.segments import DENOISE, ENCODE, SAMPLED_OUTSIDE, UNUSED, Segments
from redraft.kernels.triton.step import Report, Rules, SlotCanvases, enter_tokens, finish_step

ROWS, VOCAB, SLOTS = 24, 262_144, 6


SEGMENTS = Segments(
    kind=ints(DENOISE, ENCODE, DENOISE, SAMPLED_OUTSIDE, UNUSED, DENOISE), start=ints(0, 4, 9, 9, 0, 7),
    length=ints(24, 20, 11, 24, 0, 24), rows=ROWS,
)  # fmt: skip
SLOT = ints(3, 0, 1, 4, -1, 5)
COUNTERS = Counters(
    seed=torch.tensor([2**62 + 12345, 1, 7, 8, 0, 2**31]), canvas=ints(0, 0, 3, 0, 0, 70000),
    step=ints(0, 0, 40, 1, 0, 2),
)  # fmt: skip
RULES = Rules(
    entropy_bound=torch.tensor([0.1, 0.1, 0.5, 0.1, 0.1, 2.0]),
    confidence_threshold=torch.tensor([0.005, 0.005, 9.0, 0.1, 0.1, 9.0]),
    stability_threshold=ints(1, 1, 0, 1, 1, 2), stop_at_eos=ints(0, 0, 1, 0, 0, 1),
    eos_ids=ints(1, 106, -1, -1, -1, -1, -1, -1).expand(6, -1).contiguous(),
)  # fmt: skip


def new_state() -> SlotCanvases:
    generator = torch.Generator().manual_seed(3)
    tokens, argmax = (torch.randint(VOCAB, (SLOTS, ROWS), generator=generator, dtype=torch.int32) for _ in range(2))
    columns = {"tokens": tokens, "argmax": argmax, "stable": torch.arange(SLOTS, dtype=torch.int32)}
    return SlotCanvases(**columns, converged=torch.zeros(SLOTS, dtype=torch.int32))


def new_prediction(state: SlotCanvases, seed: int) -> HeadResult:
    """Slot 5 repeats its argmax up to an end of text in its middle; entropies have ties."""
    generator = torch.Generator().manual_seed(seed)
    argmax, candidate = (torch.randint(VOCAB, (6, ROWS), generator=generator, dtype=torch.int32) for _ in range(2))
    argmax[5] = state.argmax[5]
    argmax[5, 10], state.argmax[5, 10], argmax[5, 15] = 106, 106, 3
    entropy = torch.rand(6, ROWS, generator=generator).pow(4).mul(16).round() / 16
    flat = {"argmax": argmax.flatten(), "candidate": candidate.flatten(), "entropy": entropy.flatten()}
    return HeadResult(**flat, peak=entropy)


def both(function: Any) -> tuple[Any, Any]:
    """The result of `function(state)` with the kernels and with the twins, each with its state."""
    states = new_state(), new_state()
    ours = function(states[0])
    with kernels.force("eager"):
        theirs = function(states[1])
    return (ours, states[0]), (theirs, states[1])


def assert_same_state(one: SlotCanvases, other: SlotCanvases) -> None:
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.argmax, other.argmax)
    assert torch.equal(one.stable, other.stable)
    assert torch.equal(one.converged, other.converged)


def test_enter_tokens() -> None:
    given = torch.arange(6 * ROWS, dtype=torch.int32)
    (ours, one), (theirs, other) = both(lambda state: enter_tokens(given, state, SLOT, COUNTERS, SEGMENTS, VOCAB))
    assert torch.equal(ours.view(6, -1)[:4], theirs.view(6, -1)[:4])
    assert torch.equal(ours.view(6, -1)[5], theirs.view(6, -1)[5])
    assert_same_state(one, other)


def test_a_canvas_that_has_converged_leaves_the_forward() -> None:
    """Only in its second step or a later one: at step 0 the flag is that of the slot's last canvas."""

    def run(state: SlotCanvases) -> tuple[torch.Tensor, torch.Tensor]:
        state.converged[SLOT[[0, 2, 5]].long()] = 1
        own = replace(SEGMENTS, kind=SEGMENTS.kind.clone(), length=SEGMENTS.length.clone())
        enter_tokens(torch.zeros(6 * ROWS, dtype=torch.int32), state, SLOT, COUNTERS, own, VOCAB)
        return own.kind, own.length

    (ours, _), (theirs, _) = both(run)
    assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]
    kind, length = ours
    assert kind.tolist() == [DENOISE, ENCODE, UNUSED, SAMPLED_OUTSIDE, UNUSED, UNUSED]
    assert length.tolist() == [24, 20, 0, 24, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_finish_step(seed: int) -> None:
    def run(state: SlotCanvases) -> Report:
        return finish_step(new_prediction(state, seed), RULES, state, SLOT, COUNTERS, SEGMENTS, VOCAB)

    (ours, one), (theirs, other) = both(run)
    assert torch.equal(ours.block, theirs.block)
    assert_same_state(one, other)
    assert ours.converged.tolist()[2] == 1
    assert ours.converged.tolist()[5] == 1  # unchanged up to its end of text, 5 + 1 steps
    stricter = replace(RULES, stability_threshold=ints(1, 1, 0, 1, 1, 7))
    (ours, _), _ = both(
        lambda state: finish_step(new_prediction(state, seed), stricter, state, SLOT, COUNTERS, SEGMENTS, VOCAB)
    )
    assert ours.converged.tolist()[5] == 0


def test_what_is_held_does_not_count_in_the_stop_test() -> None:
    held = torch.full((6, ROWS), -1, dtype=torch.int32)
    held[2, :10] = 7  # all but one of its 11
    entropy = torch.where(held < 0, 0.5, 0.0)
    unsure = replace(RULES, confidence_threshold=torch.full((6,), 0.4))

    def run(state: SlotCanvases, which: torch.Tensor | None) -> Report:
        prediction = replace(new_prediction(state, 1), entropy=entropy.flatten())
        return finish_step(prediction, unsure, state, SLOT, COUNTERS, SEGMENTS, VOCAB, held=which)

    (ours, one), (theirs, other) = both(lambda state: run(state, held))
    assert torch.equal(ours.block, theirs.block)
    assert_same_state(one, other)
    assert ours.converged.tolist()[2] == 0
    assert both(lambda state: run(state, None))[0][0].converged.tolist()[2] == 1
