"""attention.py: the kernel against its twin over pages in any order, for every kind of segment."""

import pytest
import torch
from making import normal, segments

from redraft import kernels
from redraft.kernels.triton.attention import AttentionTile, attend
from redraft.kernels.triton.segments import DENOISE, ENCODE, SAMPLED_OUTSIDE, UNUSED

ROWS, GROUPS, DIM = 16, 2, 16


MIXED = segments(
    ROWS, (DENOISE, 0, 16), (ENCODE, 0, 16), (DENOISE, 500, 11), (ENCODE, 251, 13), (UNUSED, 9, 5),
    (SAMPLED_OUTSIDE, 40, 0),
)  # fmt: skip


F32, F16, FP8 = torch.float32, torch.float16, torch.float8_e4m3fn


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize(
    ("dtype", "kept", "heads", "splits", "parts"),
    [(F32, F32, 4, 1, 1), (F16, F16, 4, 2, 2), (F32, F32, 6, 3, 1), (F16, F16, 6, 1, 1), (F16, FP8, 6, 1, 1)],
)
def test_attend(dtype: torch.dtype, kept: torch.dtype, window: int | None, heads: int, splits: int, parts: int) -> None:
    q = normal(len(MIXED.kind) * ROWS, heads, DIM, dtype=dtype)
    keys, values = (normal(9, 256, GROUPS, DIM, seed=seed, dtype=dtype).to(kept) for seed in (1, 2))
    table = torch.tensor([[4, 0, 0], [7, 0, 0], [8, 1, 2], [3, 5, 0], [0, 0, 0], [6, 0, 0]], dtype=torch.int32)
    if window is not None:
        table[2, 0] = -1  # given back: it lies behind the window
    tile = AttentionTile(rows=16, keys=32, splits=splits, parts=parts, warps=4, stages=2, inside=splits != 3)
    ours = attend(q, keys, values, table, MIXED, window=window, tile=tile)
    live = MIXED.live()
    with kernels.force("eager"):
        theirs = attend(q, keys, values, table, MIXED, window=window)[live].double()
        exact = attend(q.double(), *(pool.double() for pool in (keys, values)), table, MIXED, window=window)[live]
    assert (ours[live] - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6
    assert ours.isfinite().all()
