"""NVFP4 against its definition, value by value."""

import pytest
import torch

from nvfp4 import quantize_nvfp4
from redraft.quant.nvfp4 import LEVELS, Nvfp4Weight


def test_a_code_is_sign_and_level_and_the_even_input_is_in_the_low_nibble() -> None:
    codes = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    weight = Nvfp4Weight(codes, torch.full((1, 1), 2.0).to(torch.float8_e4m3fn), torch.full((1, 1), 0.5))
    positive = list(LEVELS)
    assert weight.shape == (1, 16)
    assert weight.dequantize(torch.float32)[0].tolist() == positive + [-level for level in positive]


@pytest.mark.parametrize("shape", [(8, 32), (3, 4, 64)])
def test_rounding_errs_by_at_most_half_a_level(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape)
    rounded = quantize_nvfp4(weight).dequantize(torch.float32)
    peak = weight.unflatten(-1, (-1, 16)).abs().amax(-1, keepdim=True)
    error = (rounded - weight).unflatten(-1, (-1, 16)).abs() / peak
    assert error.max() < 1 / 6 + 0.07  # half of the widest step (4 to 6), and the scale's own rounding of 1/16


def test_zeros_stay_zero() -> None:
    assert not quantize_nvfp4(torch.zeros(2, 16)).dequantize(torch.float32).any()
