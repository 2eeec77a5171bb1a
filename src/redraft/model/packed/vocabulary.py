"""The vocabulary of a packed model: the tied table of token embeddings, as it is or in FP8.

In FP8 it is stored twice, in half the bytes each, because an FP8 product reads both its factors along the sum: with a
scale per token for the head, and transposed, with a scale per column, for soft embeddings. Nothing reads another
table: rows of tokens are taken from the head's.

Shapes: V vocabulary, D width, W some tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft import kernels
from redraft.kernels.packed import LARGEST_E4M3, Matrix, PackedFp8, rows_of, values_and_scale
from redraft.kernels.triton.language import use_triton
from redraft.kernels.triton.linear import linear
from redraft.kernels.triton.quantize import quantize_rows
from redraft.kernels.triton.self_conditioning import weighted_sums
from redraft.model.packed.upload import upload
from redraft.quant.fp8 import quantize_fp8

NUMBERS_AT_A_TIME = 1 << 25


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """The table of token embeddings.

    head    [V,D] for the logits and for looking up rows of some tokens
    transposed  [D,V] for dense soft embeddings in FP8; if None, they take `head`, which is plain
    """

    head: Matrix
    transposed: PackedFp8 | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the numbers are stored."""
        return values_and_scale(self.head)[0].dtype

    def on(self, device: torch.device) -> Vocabulary:
        """The same table on another device; this one, if it is there."""
        if device == values_and_scale(self.head)[0].device:
            return self
        return Vocabulary(
            head=upload(self.head, device), transposed=self.transposed and upload(self.transposed, device)
        )

    def rows(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Embeddings of tokens [...] in a working dtype, [...,D]; FP8 values times the token's scale, rounded once."""
        many = tokens_at_a_time(self.head.shape[1])
        if isinstance(self.head, Tensor) or token_ids.numel() <= many:
            return rows_of(self.head, token_ids, dtype)
        return torch.cat([rows_of(self.head, part, dtype) for part in token_ids.split(many)])

    def logits(self, hidden: Tensor, cap: float, temperature: float) -> Tensor:
        """What `kernels.head` returns for hidden states [...,D], fp32 [...,V]; in FP8 with the product of a step."""
        if isinstance(self.head, Tensor):
            return kernels.head(hidden, self.head, cap, temperature)
        product = linear(quantize_rows(hidden.reshape(-1, hidden.shape[-1])), self.head, dtype=hidden.dtype)  # [R,V]
        return product.float().div_(cap).tanh_().mul_(cap / temperature).view(*hidden.shape[:-1], -1)

    def mean(self, probabilities: Tensor) -> Tensor:
        """Embeddings weighted by probabilities [...,V] in the working dtype, [...,D].

        In FP8 the tokens' scales are applied to the probabilities, which keep the working dtype.
        """
        if isinstance(self.head, Tensor):
            return kernels.expectation(probabilities, self.head)
        if use_triton(probabilities):
            weights = (probabilities.flatten(0, -2) * self.head.scale).to(probabilities.dtype)  # [R,V]
            sums = weighted_sums(weights, self.head.values)
            return sums.to(probabilities.dtype).view(*probabilities.shape[:-1], -1)
        dtype, total = probabilities.dtype, torch.zeros((), device=probabilities.device)
        for part in parts_of(*self.head.shape):
            weights = (probabilities[..., part] * self.head.scale[part]).to(dtype)
            total = total + kernels.expectation(weights, self.head.values[part].to(dtype)).float()
        return total.to(dtype)


def pack_vocabulary(table: Tensor, device: torch.device, dtype: torch.dtype, *, fp8: bool = False) -> Vocabulary:
    """The table [V,D], from any device, on `device`: in the working dtype, or in FP8.

    In FP8 the device holds only a few rows of the original besides the result.
    """
    table = table.detach()
    if not fp8:
        return Vocabulary(head=upload(table.to(dtype), device).contiguous())
    count, width = table.shape

    def rows(part: slice) -> Tensor:
        return upload(table[part].to(dtype), device)

    head, transposed = _empty(count, width, device), _empty(width, count, device)
    for part in parts_of(count, width):
        rounded = quantize_fp8(rows(part))
        head.values[part], head.scale[part] = rounded.values, rounded.scale
    fill_transposed(transposed, rows)
    return Vocabulary(head=head, transposed=transposed)


def tokens_at_a_time(width: int) -> int:
    """A number of tokens for which products are fast."""
    return max(NUMBERS_AT_A_TIME // width // 128 * 128, 16)


def parts_of(count: int, width: int) -> list[slice]:
    """Slices that cover `count` tokens."""
    size = tokens_at_a_time(width)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def fill_transposed(transposed: PackedFp8, rows: Callable[[slice], Tensor]) -> None:
    """Fill the transposed table [D,V] from `rows`: the columns' scales, then the values, a few tokens at a time."""
    parts = parts_of(*reversed(transposed.shape))
    largest = torch.stack([rows(part).abs().amax(0) for part in parts]).amax(0)  # [D]
    transposed.scale.copy_(largest.float().clamp(min=1e-12) / LARGEST_E4M3)
    for part in parts:
        scaled = (rows(part).float() / transposed.scale).clamp(-LARGEST_E4M3, LARGEST_E4M3)
        transposed.values[:, part] = scaled.to(transposed.values.dtype).T


def _empty(outputs: int, inputs: int, device: torch.device) -> PackedFp8:
    values = torch.empty(outputs, inputs, dtype=torch.float8_e4m3fn, device=device)
    return PackedFp8(values, torch.empty(outputs, device=device))
