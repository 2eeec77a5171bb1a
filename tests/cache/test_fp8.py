"""Keys and values in FP8: exact units, and nothing that could overflow."""

import math

import pytest
import torch

from redraft.cache.fp8 import FP8, from_fp8_bits, key_unit, to_fp8_bits


@pytest.mark.parametrize("size", [1e-3, 0.06, 0.9, 1.0, 1.1, 23.0])
@pytest.mark.parametrize("dim", [64, 512])
def test_the_largest_possible_key_fits(size: float, dim: int) -> None:
    k_norm = size * torch.rand(dim, generator=torch.Generator().manual_seed(dim))
    k_norm[3] = size
    unit = key_unit(k_norm)
    assert math.frexp(unit)[0] == 0.5, "not a power of two"
    lone = torch.zeros(dim)
    lone[3] = dim**0.5  # a normed row with all of its length in one place
    kept = to_fp8_bits(lone * k_norm / unit)
    assert kept.view(FP8).float().max() <= 448
    assert torch.allclose(from_fp8_bits(kept, torch.float32) * unit, lone * k_norm, rtol=2**-4)


@pytest.mark.parametrize("size", [0.0, math.nan, math.inf, -math.inf])
def test_a_norm_without_a_size_has_a_unit(size: float) -> None:
    assert key_unit(torch.full((16,), size)) == 1.0
