"""Rows as long as the vocabulary, in few passes over memory. For any device; on a CPU in blocks that fit its cache."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 18
"""Numbers in a block of rows that several passes go over: 1 MiB in fp32."""
NEVER = -1e30
"""A logit, or the logarithm of a probability, that means "never": far below any soft-capped logit at any temperature
that settings allow, and finite, so that sums of it are not NaN."""


def distribution(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`eager.distribution` in blocks of rows, with the maximum searched in chunks first; overwrites the logits."""
    probabilities, entropy = torch.empty_like(logits), torch.empty_like(logits[:, 0])
    argmax = torch.empty_like(entropy, dtype=torch.long)
    for rows in blocks(logits):
        argmax[rows], peak = _largest(logits[rows])
        shifted = logits[rows].sub_(peak[:, None])
        torch.softmax(shifted, -1, out=probabilities[rows])
        entropy[rows] = -torch.linalg.vecdot(probabilities[rows], shifted)
    # The argmax has a shifted logit of 0, so minus its log-probability is the log of the sum of all exponentials.
    # Rounding can make its probability more than 1; only a certainty has no entropy at all.
    entropy -= probabilities.gather(1, argmax[:, None])[:, 0].log().clamp_(max=0)
    return probabilities, argmax, entropy


def _largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the first largest value in each row [R,V], and the value; by chunks, which is faster."""
    parts = chunks(values)
    peaks = parts.amax(-1)  # [R,V/chunk]
    which = peaks.argmax(-1)
    return which * parts.shape[2] + one_each(parts, which).argmax(-1), peaks.amax(-1)


@lru_cache(maxsize=64)
def bias_row(bias: tuple[tuple[int, float], ...], vocab: int, device: torch.device) -> Tensor:
    """What (token, bias) pairs add to logits, fp32 [V]; not to be modified. The first call for a device waits for it.

    The largest number is 0: softmax does not see that all are lower, and the logits of likely tokens, which are rounded
    elsewhere, stay as small as they were.
    """
    row = torch.zeros(vocab)
    tokens, biases = zip(*bias, strict=True)
    row[list(tokens)] = torch.tensor(biases)
    return (row - row.max()).to(device)


def chunks(values: Tensor) -> Tensor:
    """Rows [R,V] as [R,V/chunk,chunk]; the chunk is the largest power of two up to 128 that divides V."""
    vocab = values.shape[1]
    chunk = min(vocab & -vocab, 128)
    return values.view(len(values), vocab // chunk, chunk)


def one_each(parts: Tensor, which: Tensor) -> Tensor:
    """One chunk of each row [R,chunk]."""
    return parts[torch.arange(len(parts), device=parts.device), which]


def blocks(values: Tensor) -> list[slice]:
    """The rows of [R,V] in blocks that fit the processor's cache, for several passes in a row."""
    size = max(1, BLOCK_ELEMENTS // values.shape[1]) if values.device.type == "cpu" else len(values)
    return [slice(first, first + size) for first in range(0, len(values), size)]
