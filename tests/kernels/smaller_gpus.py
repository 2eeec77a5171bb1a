"""What kernels need of a GPU with 99 KiB of shared memory, as JSON: `smaller_gpus.py CAPABILITY`.

"shared" is the most bytes of shared memory that one takes, "waiting" names the products that read a matrix number by
number, which nothing can run ahead of. A process of its own, because Triton keeps the table of number conversions of
the first GPU that a process compiles for.
"""

import json
import sys
from itertools import product

import pytest
import torch
from compiling import Compiled, bf16, compiled, fp32, int32, meta
from test_hopper_code import COUNTERS, HEADS, ROWS, SEGMENT, SEGMENTS, TABLE, VOCAB, WIDTH, soft_embeddings
from test_hopper_products import both_products, layer_of

from redraft.kernels.packed import PackedFp8, Rows8, values_and_scale
from redraft.kernels.triton import attention, descriptors, experts, head, linear, routing, self_conditioning, tables


def everything(capability: int) -> list[Compiled]:
    """All kernels with products, in FP8 where the GPU has it, compiled for a compute capability."""
    given = {"capability": capability}
    found = []
    fp8 = capability >= 89
    kept = (torch.bfloat16, torch.float8_e4m3fn) if fp8 else (torch.bfloat16,)
    for (dim, groups), dtype in product(((256, 8), (512, 2)), kept):
        pages, q = meta(64, 256, groups, dim, dtype=dtype), bf16(ROWS, HEADS, dim)
        found += compiled(attention.attend, q, pages, pages, int32(SEGMENTS, 32), SEGMENT, window=None, **given)
    for table in (bf16(VOCAB, WIDTH), TABLE) if fp8 else (bf16(VOCAB, WIDTH),):
        arguments = bf16(ROWS, WIDTH), table, 30.0, fp32(SEGMENTS), COUNTERS, SEGMENT, bf16(ROWS, VOCAB)
        found += compiled(head.predict, *arguments, **given)
        found += soft_embeddings(table is TABLE, capability)
        found += compiled(self_conditioning.weighted_sums, bf16(48, VOCAB), values_and_scale(table)[0], **given)
    for count, rows in product((128, 256), (256, 1024, 4096)):
        x, gate = bf16(rows, WIDTH), bf16(count, WIDTH)
        found += compiled(routing.route_rows, x, gate, fp32(count), 8, 64, int32(SEGMENTS), **given)
    for weights, rows in product(("plain", "fp8", "int4") if fp8 else ("plain", "int4"), (256, 1024, 4096)):
        found += compiled(both_products, rows, weights, layer_of(weights), plain=not fp8, **given)
    if fp8:
        x = Rows8(meta(ROWS, WIDTH, dtype=torch.float8_e4m3fn), fp32(ROWS, 1))
        weight = PackedFp8(meta(8192, WIDTH, dtype=torch.float8_e4m3fn), fp32(8192))
        found += compiled(linear.linear, x, weight, **given)
    return found


def waits(kernel: Compiled) -> bool:
    """Whether a product's matrices come by loads of single numbers."""
    return "mma.sync" in kernel.ptx and ("ld.global.b16" in kernel.ptx or "ld.global.b8" in kernel.ptx)


if __name__ == "__main__":
    capability = int(sys.argv[1])
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, head, self_conditioning, tables):
            patch.setattr(module, "roomy", lambda device: False)
        for module in (attention, descriptors, experts, head, self_conditioning):
            patch.setattr(module, "bulk_copies", lambda device: capability >= 90)
        found = everything(capability)
    shared = max(kernel.shared for kernel in found)
    print(json.dumps({"shared": shared, "waiting": sorted({kernel.name for kernel in found if waits(kernel)})}))
