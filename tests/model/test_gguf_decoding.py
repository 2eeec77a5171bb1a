"""Decoding quantized types of GGUF files: the `gguf` package's numbers, in parts, in threads that compute alone.

NaN has many bit patterns; only where it is must agree.
"""

import math
import mmap
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gguf_file import made_up_blocks
from redraft.model.gguf import decoding
from redraft.model.gguf.blocks import DECODERS
from redraft.model.gguf.decoding import decoded, stored_as

SCALES = (0.0, -0.0, 2.0**-24, -1.5, 65504.0, math.inf, -math.inf, math.nan)
"""Of half precision: zeros, the smallest, an ordinary one, the largest, and those that no file should have."""


def by_the_package(type: str, blocks: np.ndarray) -> Tensor:
    with np.errstate(all="ignore"):
        numbers = gguf.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[type])
    return torch.from_numpy(numbers).view(len(blocks), -1)


def same(found: Tensor, expected: Tensor) -> bool:
    bits = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[expected.dtype]
    nan = expected.isnan()
    if found.dtype != expected.dtype or not torch.equal(found.isnan(), nan):
        return False
    return torch.equal(found[~nan].view(bits), expected[~nan].view(bits))


def mapped(blocks: np.ndarray, start: int) -> mmap.mmap:
    """Memory in which the blocks are at `start`, among other bytes."""
    memory = mmap.mmap(-1, start + blocks.size + 100)
    memory[:] = b"\xa5" * len(memory)
    memory[start : start + blocks.size] = blocks.tobytes()
    return memory


def in_memory(type: str, blocks: np.ndarray, start: int = 32) -> Tensor:
    """The numbers of blocks as `decoded` reads them, one block a row."""
    shape = (len(blocks), stored_as(gguf.GGMLQuantizationType[type]).numbers)
    return decoded(mapped(blocks, start), type, shape, start, start + blocks.size)


@pytest.mark.parametrize("type", DECODERS)
def test_the_types_are_the_packages(type: str) -> None:
    kind, decoder = gguf.GGMLQuantizationType[type], DECODERS[type]
    assert (decoder.type, (decoder.numbers, decoder.bytes)) == (kind.value, gguf.GGML_QUANT_SIZES[kind])
    assert stored_as(kind.value) == (type, decoder.numbers, decoder.bytes)


@pytest.mark.parametrize("type", DECODERS)
@given(count=st.integers(1, 40), scale=st.sampled_from([None, *SCALES]), seed=st.integers(0, 2**32))
def test_blocks_of_any_bytes_are_the_packages_numbers(type: str, count: int, scale: float | None, seed: int) -> None:
    blocks = made_up_blocks(type, count, scale, seed)
    assert same(DECODERS[type].decode(torch.from_numpy(blocks)), by_the_package(type, blocks))


@pytest.mark.parametrize("type", [*DECODERS, "IQ4_NL"])
def test_parts_together_are_the_whole_rounded_once(type: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one block, whole parts, and parts of which the last is smaller."""
    numbers = stored_as(gguf.GGMLQuantizationType[type]).numbers
    monkeypatch.setattr(decoding, "_PART" if type in DECODERS else "_PACKAGE_PART", 3 * numbers)
    for count in (1, 2, 3, 4, 6, 17):
        blocks = made_up_blocks(type, count, None, seed=count)
        expected = by_the_package(type, blocks).bfloat16()
        assert same(in_memory(type, blocks), expected)
        with torch.inference_mode():
            assert same(in_memory(type, blocks, start=2), expected)


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K"])
def test_threads_decode_parts_at_once_and_each_alone(type: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And PyTorch has as many threads as before when they are done, here and in threads that begin later."""
    decoder, together, seen = DECODERS[type], Barrier(threads, timeout=60), []

    def decode(blocks: Tensor) -> Tensor:
        together.wait()  # in fewer threads it breaks
        seen.append((len(blocks), torch.get_num_threads()))
        return decoder.decode(blocks)

    monkeypatch.setitem(DECODERS, type, decoder._replace(decode=decode))
    monkeypatch.setattr(decoding, "_PART", 1024)
    blocks = made_up_blocks(type, 4 * 1024 // decoder.numbers, 1.0, seed=1)
    assert same(in_memory(type, blocks), by_the_package(type, blocks).bfloat16())
    assert seen == [(1024 // decoder.numbers, 1)] * 4
    assert torch.get_num_threads() == threads
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == threads


def test_the_package_decodes_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose copies PyTorch does not share out."""
    sizes, decode = [], gguf.dequantize
    blocks = made_up_blocks("IQ4_NL", 3000, 1.0, seed=1)
    expected = by_the_package("IQ4_NL", blocks).bfloat16()
    stored_as(gguf.GGMLQuantizationType.IQ4_NL)  # the first time, a block shows that it can be decoded
    monkeypatch.setattr(gguf, "dequantize", lambda codes, kind: sizes.append(codes.size) or decode(codes, kind))
    assert same(in_memory("IQ4_NL", blocks), expected)
    assert sum(sizes) == blocks.size
    assert max(sizes) <= 32768 // 32 * 18
