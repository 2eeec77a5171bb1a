"""The numbers of a tensor that is stored in one of llama.cpp's quantized types.

The common types are decoded here (`blocks.py`), all others by the `gguf` package.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.gguf.blocks import DECODERS, Decoder

_PART = 1 << 19
"""Numbers that a thread decodes at a time here, a multiple of any block: enough that calls cost little, and few enough
for a cache."""
_THREADS = 4
"""At most; each holds up to 15 MB of intermediate results. On 16 processors eight were faster for Q8_0 alone."""
_PACKAGE_PART = 1 << 15
"""The same for the package, on one core. PyTorch shares out larger copies among threads, which took three times as
long. Four threads that decode gained 7%."""


class Stored(NamedTuple):
    """A type: its name, and how many numbers one block of it holds in how many bytes."""

    name: str
    numbers: int
    bytes: int


_PLAIN = {0: Stored("F32", 1, 4), 1: Stored("F16", 1, 2), 30: Stored("BF16", 1, 2)}
_OWN = {decoder.type: Stored(name, decoder.numbers, decoder.bytes) for name, decoder in DECODERS.items()}
_WITHOUT_PACKAGE = _PLAIN | _OWN
"""The types that need no package, by their numbers in the file."""


@lru_cache
def stored_as(number: int) -> Stored:
    """The type of this number. Raises `CheckpointError` if only the package could decode it and cannot or is absent."""
    if number in _WITHOUT_PACKAGE:
        return _WITHOUT_PACKAGE[number]
    gguf = _package_for(number)
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


def decoded(mapped: mmap.mmap, type: str, shape: tuple[int, ...], start: int, end: int) -> Tensor:
    """A tensor of a coded type from its bytes in a mapped file, rounded to bfloat16, in which the model was trained."""
    own = DECODERS.get(type)
    decoder = own or _of_package(type)
    codes = torch.frombuffer(mapped, dtype=torch.uint8, count=end - start, offset=start).view(-1, decoder.bytes)
    result = torch.empty(shape, dtype=torch.bfloat16)
    count = (_PART if own else _PACKAGE_PART) // decoder.numbers
    parts = codes.split(count), result.view(-1, decoder.numbers).split(count)
    mode = torch.is_inference_mode_enabled()  # a thread has its own, and only this one may write to the result

    def decode(blocks: Tensor, place: Tensor) -> None:
        with torch.inference_mode(mode):
            place.copy_(decoder.decode(blocks))

    if own:
        _in_threads(decode, *parts)
    else:
        for blocks, place in zip(*parts, strict=True):
            decode(blocks, place)
    return result


def _in_threads(work: Callable[[Tensor, Tensor], None], *parts: Sequence[Tensor]) -> None:
    """Do the work on all parts in as many threads as PyTorch has, at most `_THREADS`, each of which computes alone.

    PyTorch's own wait for one another after every operation. Where other processes kept the cores busy, they often made
    decoding slower than one thread, and up to 50 times as slow.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(min(threads, _THREADS), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(work, *parts))
    finally:
        torch.set_num_threads(threads)  # also of threads that begin later


def _of_package(type: str) -> Decoder:
    gguf = _package_for(type)
    kind = gguf.GGMLQuantizationType[type]
    numbers, size = gguf.GGML_QUANT_SIZES[kind]

    def decode(blocks: Tensor) -> Tensor:
        with np.errstate(all="ignore"):  # infinite scales give NaN, which whoever takes the numbers looks for
            return torch.from_numpy(gguf.dequantize(blocks.numpy().reshape(-1), kind)).view(-1, numbers)

    return Decoder(kind, numbers, size, decode)


def _package_for(type: int | str) -> ModuleType:
    try:
        import gguf
    except ImportError:
        raise CheckpointError(f"type {type} needs the gguf package: pip install 'redraft[gguf]'.") from None
    return gguf
