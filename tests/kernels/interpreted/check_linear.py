"""linear.py and quantize.py: the kernels against their twins."""

import pytest
import torch
from making import normal
from torch import Tensor

from redraft.errors import SettingError
from redraft.kernels.packed import Packed, Rows, Rows8
from redraft.kernels.triton.linear import gated_linear, gated_linear_eager, linear, linear_eager
from redraft.kernels.triton.quantize import quantize_rows, quantize_rows_eager
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4
from redraft.quant.prepare import prepare


def assert_same_rows(ours: Rows8, theirs: Rows8) -> None:
    """To rounding; the interpreter misrounds some e4m3 values into the next binade."""
    torch.testing.assert_close(ours.scale, theirs.scale, rtol=1e-5, atol=0)
    assert (ours.values.float() != theirs.values.float()).float().mean() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(5, 64), (3, 100), (1, 2816)])
def test_quantize_rows(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = normal(*shape).to(dtype)
    x[0] *= 0.01
    assert_same_rows(quantize_rows(x), quantize_rows_eager(x))
    assert_same_rows(quantize_rows(x.repeat(1, 2)[:, : shape[1]]), quantize_rows_eager(x))


def test_zeros_stay_zeros() -> None:
    out = quantize_rows(torch.zeros(2, 32))
    assert (out.values.float() == 0).all()
    assert (out.scale > 0).all()


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(40, 80, 96), (64, 64, 64), (1, 200, 72), (130, 96, 200)])
def test_linear(rows: int, outputs: int, inputs: int) -> None:
    x, weight = quantize_rows_eager(normal(rows, inputs)), prepare(quantize_fp8(normal(outputs, inputs, seed=1)))
    ours = linear(x, weight, dtype=torch.float32)
    torch.testing.assert_close(ours, linear_eager(x, weight, dtype=torch.float32), rtol=1e-5, atol=1e-4)
    out = torch.empty_like(ours)
    assert linear(x, weight, out, torch.float32) is out
    assert torch.equal(out, ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gated_linear(dtype: torch.dtype) -> None:
    x, weight = normal(33, 64).to(dtype), (0.2 * normal(160, 64, seed=1)).to(dtype)
    ours, theirs = gated_linear(x, weight), gated_linear_eager(x, weight)
    assert isinstance(ours, Tensor)
    assert isinstance(theirs, Tensor)
    assert ours.dtype == theirs.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("fp8_weight", [True, False])
def test_gated_linear_gives_fp8(fp8_weight: bool) -> None:
    x, weight = inputs_of_gated_linear(fp8_weight)
    ours, theirs = gated_linear(x, weight, fp8=True), gated_linear_eager(x, weight, fp8=True)
    assert isinstance(ours, Rows8)
    assert isinstance(theirs, Rows8)
    torch.testing.assert_close(ours.scale, theirs.scale, rtol=0.02, atol=0)  # the interpreter misrounds
    exact = theirs.dequantize(torch.float32)
    assert (ours.dequantize(torch.float32) - exact).norm() < 0.06 * exact.norm()


def test_gated_linear_takes_fp8_and_gives_plain_rows() -> None:
    x, weight = inputs_of_gated_linear(True)
    for dtype in (torch.float32, torch.float16):
        ours, theirs = gated_linear(x, weight, dtype=dtype), gated_linear_eager(x, weight, dtype=dtype)
        assert isinstance(ours, Tensor)
        assert isinstance(theirs, Tensor)
        assert ours.dtype == theirs.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


def inputs_of_gated_linear(fp8: bool) -> tuple[Rows, Packed]:
    x, weight = normal(33, 64), 0.2 * normal(160, 64, seed=1)
    return (quantize_rows_eager(x), prepare(quantize_fp8(weight))) if fp8 else (x, weight)


def test_rows_and_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(SettingError, match="PackedInt4"):
        linear(quantize_rows_eager(normal(4, 64)), prepare(quantize_int4(normal(16, 64))))
