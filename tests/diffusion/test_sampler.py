"""Sampler, schedule and stopping against hand-computed values and brute force."""

import math

import pytest
import torch

from redraft.diffusion import sampler, stopping
from redraft.diffusion.schedule import temperature
from redraft.kernels import vocabulary


def test_temperature_follows_the_reference() -> None:
    values = [temperature(step, t_min=0.4, t_max=0.8, steps=48) for step in range(48)]
    assert values[0] == pytest.approx(0.8)
    assert values[-1] == pytest.approx(0.4083333333)
    assert temperature(60, t_min=0.4, t_max=0.8, steps=48) == values[-1]


def test_statistics_match_the_plain_definitions() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 384) * 4
    uniform = torch.rand(40, dtype=torch.float64)
    p = logits.softmax(-1)
    cumulative = p.double().cumsum(-1)
    expected = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    seen = sampler.Distribution.of(logits.clone())
    assert torch.equal(seen.argmax, logits.argmax(-1))
    torch.testing.assert_close(seen.probabilities, p)
    torch.testing.assert_close(seen.entropy, -(p * p.log()).sum(-1), atol=1e-5, rtol=1e-5)
    assert torch.equal(seen.pick(uniform), expected)


def test_rows_in_several_blocks_are_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(21, 384, generator=torch.Generator().manual_seed(0)) * 4
    whole = sampler.Distribution.of(logits.clone())
    monkeypatch.setattr(vocabulary, "BLOCK_ELEMENTS", 4 * 384)
    parts = sampler.Distribution.of(logits.clone())
    for name in ("probabilities", "argmax", "entropy"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))


def test_the_first_of_equal_logits_is_the_argmax() -> None:
    logits = torch.zeros(3, 512)
    logits[1, [300, 40, 41]] = 2.0
    logits[2, [511, 128]] = 1.0
    assert sampler.Distribution.of(logits).argmax.tolist() == [0, 40, 128]


@pytest.mark.parametrize("vocab", [5, 96, 256, 1024])
def test_candidates_follow_the_distribution(vocab: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(1, vocab) * 2
    count = 20_000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    candidate = sampler.Distribution.of(logits.repeat(count, 1)).pick(uniform)
    shares = candidate.bincount(minlength=vocab) / count
    torch.testing.assert_close(shares, logits.softmax(-1)[0], atol=2e-4, rtol=0)


@pytest.mark.parametrize("gap", [1, 300])
def test_a_draw_at_an_edge_is_the_next_possible_token(gap: int) -> None:
    """In a chunk of the vocabulary and between chunks; the probabilities need not add up to one."""
    p = torch.zeros(1, 4 * gap)
    p[0, [gap, 2 * gap, 3 * gap]] = torch.tensor([0.125, 0.125, 0.25])
    uniform = torch.tensor([0.0, 0.25, 0.5, 1 - 2**-53], dtype=torch.float64)
    seen = sampler.Distribution(p.expand(4, -1), torch.zeros(4, dtype=torch.long), torch.zeros(4))
    assert seen.pick(uniform).tolist() == [gap, 2 * gap, 3 * gap, 3 * gap]


def test_damaged_probabilities_are_drawn_from_without_an_error() -> None:
    """Whoever reads the entropy notices; a draw out of range would stop the answers beside it, too."""
    damaged = sampler.Distribution.of(torch.full((1, 512), math.nan))
    assert 0 <= damaged.pick(torch.tensor([0.5], dtype=torch.float64)) < 512


def test_forbidden_tokens_are_never_drawn_and_never_counted() -> None:
    logits = torch.zeros(200, 64)
    logits[:, 7:] = vocabulary.NEVER
    seen = sampler.Distribution.of(logits)
    assert seen.pick(torch.linspace(0, 1 - 1e-12, 200, dtype=torch.float64)).max() < 7
    assert seen.argmax.max() < 7
    torch.testing.assert_close(seen.entropy, torch.full((200,), math.log(7)))


def test_accept_keeps_the_most_certain_within_the_bound() -> None:
    entropy = torch.tensor([[0.5, 0.04, 0.03, 0.07, 0.2]])
    # ascending .03 .04 .07 .2 .5; sums before each: 0 .03 .07 .14 .34
    assert sampler.accept(entropy, 0.1).tolist() == [[False, True, True, True, False]]
    assert sampler.accept(entropy, 0.02).tolist() == [[False, False, True, False, False]]
    assert sampler.accept(entropy + 9, 0.1).sum() == 1
    assert sampler.accept(torch.full((1, 3), 0.25), 0.25).tolist() == [[True, True, False]]


def test_renoise_keeps_only_what_is_accepted() -> None:
    candidate, noise = torch.tensor([[1, 2, 3]]), torch.tensor([[7, 8, 9]])
    accepted = torch.tensor([[True, False, True]])
    assert sampler.renoise(candidate, accepted, noise).tolist() == [[1, 8, 3]]


def test_a_canvas_is_stable_after_as_many_equal_steps_as_asked() -> None:
    count = torch.zeros(1, dtype=torch.long)
    canvases = [torch.tensor([canvas]) for canvas in ([1, 2], [1, 3], [1, 3], [1, 3], [4, 3], [4, 3])]
    seen, previous = [], None
    for canvas in canvases:
        count = stopping.stable_steps(canvas, previous, count, None)
        seen.append(int(count))
        previous = canvas
    assert seen == [0, 0, 1, 2, 0, 1]


def test_a_canvas_whose_dead_tail_changes_is_stable() -> None:
    before, now = torch.tensor([[4, 1, 7], [4, 5, 7]]), torch.tensor([[4, 1, 8], [4, 5, 8]])
    live = stopping.live_positions(now, (1,))
    assert stopping.stable_steps(now, before, torch.tensor([2, 2]), live).tolist() == [3, 0]


def test_a_canvas_without_a_choice_is_certain() -> None:
    assert stopping.mean_entropy(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool)).tolist() == [0.0]


def test_only_the_live_part_counts_before_a_stable_end() -> None:
    argmax = torch.tensor([[4, 5, 1, 9, 1], [4, 5, 6, 7, 8]])
    live = stopping.live_positions(argmax, (99, 1))
    assert live.tolist() == [[True, True, True, False, False], [True] * 5]
    entropy = torch.tensor([[0.0, 0.3, 0.0, 9.0, 9.0], [1.0] * 5])
    assert stopping.mean_entropy(entropy, live).tolist() == pytest.approx([0.1, 1.0])


def test_converged_needs_stability_and_confidence() -> None:
    stable, entropy = torch.tensor([0, 1, 1]), torch.tensor([0.001, 0.001, 0.005])
    done = stopping.converged(stable, entropy, stability_threshold=1, confidence_threshold=0.005)
    assert done.tolist() == [False, True, False]
    done = stopping.converged(stable, entropy, stability_threshold=0, confidence_threshold=0.005)
    assert done.tolist() == [True, True, False]


@pytest.mark.parametrize("width", [1, vocabulary.BLOCK_ELEMENTS // 2, vocabulary.BLOCK_ELEMENTS + 1])
def test_blocks_hold_every_row_once_however_long_it_is(width: int) -> None:
    rows = torch.arange(5)[:, None].expand(5, width)
    assert torch.cat([rows[block, 0] for block in vocabulary.blocks(rows)]).tolist() == [0, 1, 2, 3, 4]
