"""Kernel layouts hold exactly the numbers that are stored."""

import pytest
import torch
from torch import Tensor

from redraft.errors import SettingError
from redraft.kernels.packed import PackedExperts, PackedFp8, PackedInt4
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import Int4Weight, quantize_int4
from redraft.quant.prepare import in_panels, prepare


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("shape", "group"),
    [((8, 128), 32), ((8, 128), 64), ((8, 128), 128), ((3, 16, 192), 32), ((3, 16, 384), 192), ((2, 2, 8, 704), 64)],
)
def test_int4_keeps_every_value(shape: tuple[int, ...], group: int) -> None:
    """Groups of more than 64 inputs are some of 64 with one scale."""
    stored = quantize_int4(normal(*shape), group)
    packed = prepare(stored)
    assert isinstance(packed, PackedInt4)
    assert packed.group == min(group, 64)
    assert packed.shape == shape
    assert torch.equal(packed.dequantize(torch.float32), stored.dequantize(torch.float32))
    assert packed.codes.nbytes == stored.packed.nbytes


@pytest.mark.parametrize("shape", [(32, 64), (3, 64, 96), (2, 2, 96, 128)])
@pytest.mark.parametrize("group", [16, 32])
def test_panels_keep_every_value(shape: tuple[int, ...], group: int) -> None:
    stored = quantize_int4(normal(*shape), group)
    panels = in_panels(stored)
    assert panels.shape == shape
    assert torch.equal(panels.dequantize(torch.float32), stored.dequantize(torch.float32))
    assert panels.nbytes == stored.nbytes


def test_panels_are_what_the_product_on_a_cpu_reads() -> None:
    """Byte j of a line: output j of the panel low, output 16 + j high; a line is an input."""
    weight = torch.zeros(64, 32)
    weight[32 + 3, 7], weight[32 + 16 + 3, 7] = 3.0, -3.0
    panels = in_panels(Int4Weight(*_codes(weight), group=32))
    assert panels.codes[1, 7, 3] == (8 + 3) | (8 - 3) << 4
    assert (panels.codes[0] == 0x88).all()


def test_int4_knows_all_sixteen_codes() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(4)  # [64]
    stored = Int4Weight(codes[None, 0::2] | codes[None, 1::2] << 4, torch.ones(1, 1, dtype=torch.bfloat16), 64)
    assert prepare(stored).dequantize(torch.float32)[0].tolist() == list(range(-8, 8)) * 4


def test_int4_layout_is_what_the_kernels_document() -> None:
    """Byte j of block b: input 64b + j low, input 64b + 32 + j high; scales in pairs, over the unit of a code."""
    weight = torch.zeros(2, 192)
    weight[1, 64 + 5], weight[1, 64 + 32 + 5] = 3.0, -3.0
    packed = prepare(Int4Weight(*_codes(weight), group=64))
    assert isinstance(packed, PackedInt4)
    assert packed.codes.shape == (3, 2, 32)
    assert packed.codes[1, 1, 5] == 3 | (8 | 2) << 4
    assert packed.scale.shape == (2, 2, 2)
    assert packed.scale[0, 1].tolist() == [512.0, 512.0]
    assert packed.scale[1, 1].tolist() == [512.0, 0.0]  # the third group has no partner


def _codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    codes = (weight + 8).to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4, torch.ones(len(weight), weight.shape[1] // 64, dtype=torch.bfloat16)


def test_experts_one_by_one_equal_all_at_once() -> None:
    stored = quantize_int4(normal(4, 8, 128))
    whole = prepare(stored)
    assert isinstance(whole, PackedInt4)
    for expert in range(4):
        one = prepare(Int4Weight(stored.packed[expert], stored.scale[expert], stored.group))
        assert isinstance(one, PackedInt4)
        assert torch.equal(one.codes, whole[expert].codes)
        assert torch.equal(one.scale, whole[expert].scale)


def test_fp8_and_plain_weights_share_memory() -> None:
    weight, stored = normal(3, 8, 64), quantize_fp8(normal(3, 8, 64))
    packed = prepare(stored)
    assert isinstance(packed, PackedFp8)
    assert packed.values.data_ptr() == stored.values.data_ptr()
    assert torch.equal(packed.dequantize(torch.float32), stored.dequantize(torch.float32))
    assert prepare(weight) is weight


def test_layer_of_experts() -> None:
    layer = PackedExperts(prepare(quantize_fp8(normal(2, 16, 64))), prepare(quantize_fp8(normal(2, 64, 8))))
    assert layer.gate_up.shape == (2, 16, 64)
    assert layer.nbytes == 2 * (16 * 64 + 64 * 8) + 4 * 2 * (16 + 64)


def test_groups_that_the_kernels_lack_are_named() -> None:
    with pytest.raises(SettingError, match="16"):
        prepare(quantize_int4(normal(4, 64), 16))
