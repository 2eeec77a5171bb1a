"""The numbers of a tensor that is stored in one of llama.cpp's quantized types, by the `gguf` package's decoders."""

from __future__ import annotations

import mmap
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from redraft.errors import CheckpointError

_PART = 1 << 15
"""Numbers decoded at a time, a multiple of any block: their intermediate results stay in a core's cache. PyTorch shares
out larger copies among threads, which took three times as long. Four threads that decode gained 7%."""


class Stored(NamedTuple):
    """A type: its name, and how many numbers one block of it holds in how many bytes."""

    name: str
    numbers: int
    bytes: int


PLAIN = {0: Stored("F32", 1, 4), 1: Stored("F16", 1, 2), 30: Stored("BF16", 1, 2)}
"""The types that need no decoding, by their numbers in the file."""


@lru_cache
def stored_as(number: int) -> Stored:
    """The type of this number. Raises `CheckpointError` without the package, and if it cannot decode the type."""
    if number in PLAIN:
        return PLAIN[number]
    gguf = _package()
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError:
        raise CheckpointError(f"the installed gguf package does not know type {number}.") from None
    stored = Stored(kind.name, *gguf.GGML_QUANT_SIZES[kind])
    try:
        gguf.dequantize(np.zeros(stored.bytes, np.uint8), kind)
    except NotImplementedError:
        raise CheckpointError(f"the installed gguf package cannot decode type {kind.name}.") from None
    return stored


def decoded(mapped: mmap.mmap, type: str, shape: tuple[int, ...], start: int, end: int) -> torch.Tensor:
    """A tensor of a coded type from its bytes in a mapped file, rounded to bfloat16, in which the model was trained."""
    gguf = _package()
    kind = gguf.GGMLQuantizationType[type]
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    codes = np.frombuffer(mapped, np.uint8, end - start, start)
    result = torch.empty(shape, dtype=torch.bfloat16)
    step = _PART // numbers * size
    parts = (codes[first : first + step] for first in range(0, len(codes), step))
    with np.errstate(all="ignore"):  # infinite scales give NaN, which whoever takes the numbers looks for
        for part, place in zip(parts, result.view(-1).split(_PART), strict=True):
            place.copy_(torch.from_numpy(gguf.dequantize(part, kind)))
    return result


def _package() -> ModuleType:
    try:
        import gguf
    except ImportError:
        raise CheckpointError("quantized GGUF files need the gguf package: pip install 'redraft[gguf]'.") from None
    return gguf
