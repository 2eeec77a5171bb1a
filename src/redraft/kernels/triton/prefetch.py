"""Brings weights into the L2 cache before they are needed, while device memory has nothing else to do.

Nothing is computed and nothing depends on it: later products just find their first weights in the cache.
"""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.triton.language import INTERPRETED, cdiv, jit, tl, use_triton

LINE = 128
"""Bytes of a cache line."""
LINES = 1024
"""Lines that one program asks for."""


def prefetch(weight: Tensor, most: int) -> None:
    """Ask for the first `most` bytes of a weight; nothing at all without a GPU."""
    if not use_triton(weight) or INTERPRETED:
        return
    size = min(most, weight.nbytes)
    prefetch_kernel[(cdiv(size, LINE * LINES),)](weight, size // LINE, LINE=LINE, LINES=LINES, num_warps=8)


@jit
def prefetch_kernel(weight, lines, LINE: tl.constexpr, LINES: tl.constexpr):
    """Ask for LINES lines, repeating the very last one if there are no more."""
    line = tl.minimum(tl.program_id(0) * LINES + tl.arange(0, LINES), lines - 1)
    address = weight.to(tl.int64, bitcast=True) + line.to(tl.int64) * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )
