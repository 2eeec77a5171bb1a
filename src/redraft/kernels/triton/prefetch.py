"""Weights into the second-level cache before they are needed, while the device's memory has nothing else to do.

Nothing is computed and nothing depends on it: the products that follow find their first weights in the cache.
"""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.packed import Packed, PackedFp8, PackedInt4
from redraft.kernels.triton.language import INTERPRETED, cdiv, jit, tl, use_triton

LINE = 128
"""Bytes of a cache line."""
LINES = 1024
"""Lines that one program asks for."""


def prefetch(weight: Packed, most: int | None = None) -> None:
    """Ask for the first `most` bytes of a weight's values (all by default); nothing at all without a GPU."""
    values = weight if isinstance(weight, Tensor) else _values(weight)
    if not use_triton(values) or INTERPRETED:
        return
    size = values.nbytes if most is None else min(most, values.nbytes)
    prefetch_kernel[(cdiv(size, LINE * LINES),)](values, size // LINE, LINE=LINE, LINES=LINES, num_warps=8)


def _values(weight: PackedFp8 | PackedInt4) -> Tensor:
    """The part of a quantized weight that is nearly all of it."""
    return weight.values if isinstance(weight, PackedFp8) else weight.codes


@jit
def prefetch_kernel(start, lines, LINE: tl.constexpr, LINES: tl.constexpr):
    """Ask for LINES lines, the last of all again and again where there are no more."""
    line = tl.minimum(tl.program_id(0) * LINES + tl.arange(0, LINES), lines - 1)
    address = start.to(tl.int64, bitcast=True) + line.to(tl.int64) * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )
