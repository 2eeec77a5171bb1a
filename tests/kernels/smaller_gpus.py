"""Prints the most bytes of shared memory that a kernel takes on a GPU with 99 KiB of it: `smaller_gpus.py CAPABILITY`.

A process of its own, because Triton keeps the table of number conversions of the first GPU that a process compiles for.
"""

import sys
from itertools import product

import pytest
import torch
from compiling import bf16, compiled, fp32, int32, meta
from test_hopper_code import COUNTERS, HEADS, ROWS, SEGMENT, SEGMENTS, VOCAB, WIDTH

from redraft.kernels.packed import PackedFp8, Rows8
from redraft.kernels.triton import attention, head, linear, self_conditioning, tables


def most_shared(capability: int) -> int:
    found = []
    for (dim, groups), kept in product(((256, 8), (512, 2)), (torch.bfloat16, torch.float8_e4m3fn)):
        pages, q = meta(64, 256, groups, dim, dtype=kept), bf16(ROWS, HEADS, dim)
        arguments = q, pages, pages, int32(SEGMENTS, 32), SEGMENT
        found += compiled(attention.attend, *arguments, window=None, capability=capability)
    arguments = bf16(ROWS, WIDTH), bf16(VOCAB, WIDTH), 30.0, fp32(SEGMENTS), COUNTERS, SEGMENT, bf16(ROWS, VOCAB)
    found += compiled(head.predict, *arguments, capability=capability)
    x = Rows8(meta(ROWS, WIDTH, dtype=torch.float8_e4m3fn), fp32(ROWS, 1))
    weight = PackedFp8(meta(8192, WIDTH, dtype=torch.float8_e4m3fn), fp32(8192))
    found += compiled(linear.linear, x, weight, capability=capability)
    return max(kernel.shared for kernel in found)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, head, self_conditioning, tables):
            patch.setattr(module, "roomy", lambda device: False)
        print(most_shared(int(sys.argv[1])))
