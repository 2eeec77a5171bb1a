"""training_rows.py: rows taken and summed, and the way back through gates, against indexing and autograd, at widths
beside and beyond a block.
"""

import pytest
import torch
from making import normal

from redraft.kernels import eager
from redraft.kernels.triton import training_rows as moved


@pytest.mark.parametrize("width", [24, 1024, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_are_taken_and_summed(width: int, dtype: torch.dtype) -> None:
    tokens, slots = 5, 4
    x, weight = normal(tokens, width, seed=1).to(dtype), normal(tokens, slots, seed=2).abs()
    place = torch.randperm(tokens * slots, generator=torch.Generator().manual_seed(3)).view(tokens, slots)
    token = torch.empty(tokens * slots, dtype=torch.int64)
    token[place.flatten()] = torch.arange(tokens).repeat_interleave(slots)
    taken = moved.take_rows(x, token)
    assert torch.equal(taken, x[token])
    assert torch.equal(taken[place], x[:, None].expand(-1, slots, -1))
    for factors in (weight, None):
        expected = eager.sum_rows(taken, place, factors)
        whole = taken[place].double() * (1.0 if factors is None else factors.double()[..., None])
        torch.testing.assert_close(
            expected, whole.sum(1).to(dtype), rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=1e-5
        )
        torch.testing.assert_close(moved.sum_rows(taken, place, factors), expected, rtol=0, atol=2e-7)


@pytest.mark.parametrize("width", [24, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_way_back_through_gates(width: int, dtype: torch.dtype) -> None:
    inner, d_hidden = normal(6, 2 * width, seed=5).to(dtype), normal(6, width, seed=6).to(dtype)
    weight = normal(6, seed=7).abs()
    expected = eager.gate_gradients(inner, d_hidden, weight)
    exact = inner.double().requires_grad_()
    factor = weight.double().requires_grad_()
    (eager.gelu_gate(*exact.chunk(2, -1)) * factor[:, None] * d_hidden.double()).sum().backward()
    for found, own, true in zip(
        moved.gate_gradients(inner, d_hidden, weight), expected, (exact.grad, factor.grad), strict=True
    ):
        torch.testing.assert_close(found, own, rtol=1e-3 if found.dtype == torch.float16 else 1e-5, atol=1e-5)
        torch.testing.assert_close(own.double(), true, rtol=1e-3 if own.dtype == torch.float16 else 1e-5, atol=1e-5)


def test_strided_inputs_are_taken_as_they_are() -> None:
    x = normal(64, 6, seed=4).t()
    assert torch.equal(moved.take_rows(x, torch.tensor([5, 0, 5])), x[[5, 0, 5]])
