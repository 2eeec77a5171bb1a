"""The counter-based generator: known answers, independence of the batch, and uniformity."""

import torch

from redraft.diffusion.rng import draw
from redraft.kernels.philox import philox


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def test_philox_known_answers() -> None:
    """The published test vectors of Philox-4x32-10 (Random123, kat_vectors)."""
    cases = [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, expected in cases:
        got = philox(torch.tensor([key]), words(*counter))  # type: ignore[arg-type]
        assert tuple(int(word) for word in got) == expected


def test_a_request_draws_the_same_alone_and_in_a_batch() -> None:
    seeds = torch.tensor([3, 2**40 + 1, 7])
    together = draw(seeds, 2, 5, 64, 1000, "step")
    for row, seed in enumerate(seeds):
        alone = draw(seed[None], 2, 5, 64, 1000, "step")
        assert torch.equal(alone.uniform[0], together.uniform[row])
        assert torch.equal(alone.tokens[0], together.tokens[row])


def test_every_key_changes_the_numbers() -> None:
    base = draw(torch.tensor([1]), 0, 0, 32, 1000, "step")
    others = [
        draw(torch.tensor([2]), 0, 0, 32, 1000, "step"),
        draw(torch.tensor([1 + 2**32]), 0, 0, 32, 1000, "step"),
        draw(torch.tensor([1]), 1, 0, 32, 1000, "step"),
        draw(torch.tensor([1]), 0, 1, 32, 1000, "step"),
        draw(torch.tensor([1]), 0, 0, 32, 1000, "initial"),
    ]
    assert all(not torch.equal(base.tokens, other.tokens) for other in others)


def test_draws_are_uniform() -> None:
    draws = draw(torch.arange(64), 0, 0, 512, 10, "step")
    assert draws.uniform.min() >= 0
    assert draws.uniform.max() < 1
    assert abs(draws.uniform.mean() - 0.5) < 0.01
    counts = draws.tokens.flatten().bincount(minlength=10).double()
    expected = counts.sum() / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees of freedom, p = 0.001
