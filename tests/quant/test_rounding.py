"""FP8 and INT4 hold the nearest number that their scales can express, and zeros stay zeros."""

import torch

from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4


def test_zeros_stay_zero() -> None:
    for quantized in (quantize_fp8(torch.zeros(2, 64)), quantize_int4(torch.zeros(2, 64))):
        assert torch.equal(quantized.dequantize(torch.float32), torch.zeros(2, 64))


def test_a_value_in_fp8_is_the_nearest_multiple_of_the_rows_largest_over_448() -> None:
    weight = torch.randn(8, 128, generator=torch.Generator().manual_seed(1))
    quantized = quantize_fp8(weight)
    assert torch.equal(quantized.scale, weight.abs().amax(-1) / 448)
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = codes[codes.isfinite()] * quantized.scale[:, None]  # [N,codes]
    apart = (weight[..., None] - numbers[:, None]).abs().amin(-1)
    assert torch.equal((weight - quantized.dequantize(torch.float32)).abs(), apart)


def test_a_value_in_int4_is_the_nearest_multiple_of_the_scale_as_it_is_stored() -> None:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    quantized = quantize_int4(weight, 32)
    scale = quantized.scale.float()
    multiples = torch.arange(-8, 8) * scale[..., None]  # [N,K/32,16]
    apart = weight.unflatten(-1, (-1, 32))[..., None] - multiples[:, :, None]  # [N,K/32,32,16]
    kept = quantized.dequantize(torch.float32).unflatten(-1, (-1, 32))
    assert torch.equal((weight.unflatten(-1, (-1, 32)) - kept).abs(), apart.abs().amin(-1))
    assert set((kept / scale[..., None]).round().unique().tolist()) == set(range(-8, 8))
