"""philox.py: what a kernel draws has the bits of its definition."""

import pytest
import torch

from redraft import kernels
from redraft.diffusion.rng import Draws, draw
from redraft.kernels.triton import philox

SEEDS = torch.tensor([2**62 + 12345, 1, -3, 0])


def compare(canvas: int, step: int, length: int, vocab: int, purpose: str) -> Draws:
    ours = draw(SEEDS, canvas, step, length, vocab, purpose)  # type: ignore[arg-type]
    with kernels.force("eager"):
        theirs = draw(SEEDS, canvas, step, length, vocab, purpose)  # type: ignore[arg-type]
    assert torch.equal(ours.uniform, theirs.uniform)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert (ours.uniform.dtype, ours.tokens.dtype) == (torch.float64, torch.int64)
    return ours


@pytest.mark.parametrize("purpose", ["initial", "step"])
@pytest.mark.parametrize(("canvas", "step", "length"), [(0, 0, 1), (3, 47, 128), (70_000, 1, 300)])
def test_draw(canvas: int, step: int, length: int, purpose: str) -> None:
    found = compare(canvas, step, length, 262_144, purpose)
    assert 0 <= found.uniform.min() <= found.uniform.max() < 1
    assert 0 <= found.tokens.min() <= found.tokens.max() < 262_144


def test_a_draw_of_one_step_is_what_the_kernels_of_a_whole_step_draw() -> None:
    counters = philox.Counters(seed=SEEDS, canvas=torch.full((4,), 5), step=torch.full((4,), 9))
    found = compare(5, 9, 40, 1000, "step")
    assert torch.equal(found.uniform, philox.uniform(counters, 40))
    assert torch.equal(found.tokens, philox.tokens(counters, 40, 1000, philox.STEP))
