"""Decoders of the quantized types that most GGUF files have, in PyTorch's operations.

A block holds codes of a few bits, and scales that make numbers of them: ggml's `ggml-common.h` describes it. A decoder
takes blocks [N,bytes] as uint8 and returns their numbers [N,numbers] in fp32, the same as the `gguf` package's, bit
for bit: all products are exact, so only a minimum that is added or subtracted is rounded.

Operations on bytes are fast along contiguous memory. So a shift of all codes makes one row of them, and the rows
[shifts,codes] are woven last, since of a block's numbers 16 or 32 at a time come from the same shift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def _shifts(*counts: int) -> Tensor:
    return torch.tensor(counts, dtype=torch.uint8, device="cpu").unsqueeze(1)


_NIBBLES, _PAIRS, _BITS = _shifts(0, 4), _shifts(0, 2, 4, 6), _shifts(*range(8))
"""What bytes are shifted by for codes of four, two and one bits."""
_FIFTH_BITS = (((torch.arange(256, device="cpu").unsqueeze(1) >> _BITS.view(-1)) & 1) << 4).byte()
"""The bits of every byte, the lowest first, as the fifth bits of eight codes: [256,8]."""


def _q4_0(blocks: Tensor) -> Tensor:
    codes = _shifted(blocks[:, 2:], _NIBBLES, 15).sub_(8).view(torch.int8)
    return _in_order(codes, 16).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    codes = _shifted(blocks[:, 4:], _NIBBLES, 15)
    return _in_order(codes, 16).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    codes = _shifted(blocks[:, 6:], _NIBBLES, 15).bitwise_or_(_fifth_bits(blocks, 2))
    return _in_order(codes.sub_(16).view(torch.int8), 16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _shifted(blocks[:, 8:], _NIBBLES, 15).bitwise_or_(_fifth_bits(blocks, 4))
    return _in_order(codes, 16).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _q2_k(blocks: Tensor) -> Tensor:
    scales, minima = _shifted(blocks[:, :16], _NIBBLES, 15).view(2, -1, 16).float()
    codes = _shifted(blocks[:, 16:80], _PAIRS, 3)
    return _scaled(codes, scales.mul_(_half(blocks, 80)), minima.mul_(_half(blocks, 82)))


def _q3_k(blocks: Tensor) -> Tensor:
    third_bits = _shifted(blocks[:, :32], _NIBBLES, 15).view(2, -1, 32).transpose(0, 1)  # [N,2,32], four in each byte
    codes = _shifted(blocks[:, 32:96], _PAIRS, 3)
    codes |= _shifted(third_bits, _BITS[:4], 1).bitwise_left_shift_(2)
    words = _words(blocks, 96)  # [3,N], four bytes in each
    low = ((words[:2] >> _NIBBLES.unsqueeze(1)) & 0x0F0F0F0F).flatten(0, 1)
    high = ((words[2] >> _PAIRS) & 0x03030303) << 4
    scales = (low | high).t().contiguous().view(torch.uint8).sub_(32).view(torch.int8).float()
    return _scaled(codes.sub_(4).view(torch.int8), scales.mul_(_half(blocks, 108)))


def _q4_k(blocks: Tensor) -> Tensor:
    return _scaled(_shifted(blocks[:, 16:], _NIBBLES, 15), *_scales_and_minima(blocks))


def _q5_k(blocks: Tensor) -> Tensor:
    four = blocks[:, 48:].unflatten(1, (4, 32)).transpose(0, 1).reshape(4, 1, -1)  # each for two parts of a block
    codes = (four >> _NIBBLES).bitwise_and_(15).view(8, -1)
    codes |= _shifted(blocks[:, 16:48], _BITS, 1).bitwise_left_shift_(4)
    return _scaled(codes, *_scales_and_minima(blocks))


def _q6_k(blocks: Tensor) -> Tensor:
    two = blocks[:, :128].reshape(-1, 2, 32).transpose(0, 1)  # each for two parts of half a block
    codes = _shifted(two, _NIBBLES, 15).view(4, -1)
    codes |= _shifted(blocks[:, 128:192], _PAIRS, 3).bitwise_left_shift_(4)
    scales = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks, 208))
    return _scaled(codes.sub_(32).view(torch.int8), scales)


def _shifted(codes: Tensor, shifts: Tensor, mask: int) -> Tensor:
    """What is left of all codes after each shift: [shifts,codes]."""
    return (codes.reshape(1, -1) >> shifts).bitwise_and_(mask)


def _in_order(codes: Tensor, run: int) -> Tensor:
    """Codes [shifts,codes] as numbers [N,shifts*run]: `run` of every shift in turn."""
    return torch.stack(codes.view(len(codes), -1, run).unbind(), 1).flatten(1).float()


def _scaled(codes: Tensor, scales: Tensor, minima: Tensor | None = None) -> Tensor:
    """Codes [shifts,codes] in runs of 32, times the scales of the S parts of a block [N,S], less their minima."""
    numbers = _in_order(codes, 32).view(*scales.shape, -1).mul_(scales.unsqueeze(-1))
    if minima is not None:
        numbers.sub_(minima.unsqueeze(-1))
    return numbers.flatten(1)


def _scales_and_minima(blocks: Tensor) -> Tensor:
    """Of the eight parts of a block in Q4_K or Q5_K: [2,N,8]. In the file they have six bits, and a common scale.

    The upper two bits of the last four are beside the first four.
    """
    words = _words(blocks, 4)  # [3,N]
    first, upper = words[:2] & 0x3F3F3F3F, (words[:2] >> 2) & 0x30303030
    last = ((words[2] >> _NIBBLES) & 0x0F0F0F0F) | upper
    halves = torch.stack((_half(blocks, 0), _half(blocks, 2)))  # [2,N,1]
    return torch.stack((first, last), -1).view(torch.uint8).float().mul_(halves)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The number in half precision [N,1] that is there in every block."""
    return blocks[:, at : at + 2].view(torch.float16).float()


def _words(blocks: Tensor, at: int) -> Tensor:
    """Twelve bytes of every block as three integers of four bytes [3,N]."""
    return blocks[:, at : at + 12].clone(memory_format=torch.contiguous_format).view(torch.int32).t()


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Those of 32 codes, which are four bytes of every block, for the first 16 and the other 16: [2,codes]."""
    pairs = blocks.view(torch.int16)
    halves = torch.stack((pairs[:, at // 2], pairs[:, at // 2 + 1])).view(torch.uint8)  # [2,N*2]
    return _FIFTH_BITS.view(torch.int64).view(-1).index_select(0, halves.view(-1).int()).view(torch.uint8).view(2, -1)


class Decoder(NamedTuple):
    """A type, by its number in the file: how many numbers a block holds in how many bytes, and what decodes blocks."""

    type: int
    numbers: int
    bytes: int
    decode: Callable[[Tensor], Tensor]


DECODERS = {
    "Q4_0": Decoder(2, 32, 18, _q4_0),
    "Q4_1": Decoder(3, 32, 20, _q4_1),
    "Q5_0": Decoder(6, 32, 22, _q5_0),
    "Q5_1": Decoder(7, 32, 24, _q5_1),
    "Q8_0": Decoder(8, 32, 34, _q8_0),
    "Q2_K": Decoder(10, 256, 84, _q2_k),
    "Q3_K": Decoder(11, 256, 110, _q3_k),
    "Q4_K": Decoder(12, 256, 144, _q4_k),
    "Q5_K": Decoder(13, 256, 176, _q5_k),
    "Q6_K": Decoder(14, 256, 210, _q6_k),
}
