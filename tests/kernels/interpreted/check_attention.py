"""attention.py: the kernel against its twin over pages in any order, for every kind of segment."""

import pytest
import torch
from making import normal, segments, with_images
from torch import Tensor

from redraft import kernels
from redraft.kernels.triton.attention import AttentionTile, attend
from redraft.kernels.triton.segments import DENOISE, ENCODE, ENCODE_IMAGES, SAMPLED_OUTSIDE, UNUSED, Segments

ROWS, GROUPS, DIM = 16, 2, 16


MIXED = segments(
    ROWS, (DENOISE, 0, 16), (ENCODE, 0, 16), (DENOISE, 500, 11), (ENCODE, 251, 13), (UNUSED, 9, 5),
    (SAMPLED_OUTSIDE, 40, 0),
)  # fmt: skip


IMAGES = with_images(
    segments(ROWS, (ENCODE_IMAGES, 0, 16), (ENCODE_IMAGES, 250, 16), (ENCODE_IMAGES, 266, 9), (DENOISE, 275, 11)),
    (0, range(3, 7)), (0, range(8, 16)), (1, range(255, 272)), (2, range(255, 272)),
)  # fmt: skip
"""The last image begins in one segment, on one page, and ends in another."""

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
    check(q, keys, values, table, MIXED, window, tile)


@pytest.mark.parametrize("window", [None, 24])
def test_pages_of_half_the_size_hold_the_same(window: int | None) -> None:
    q = normal(len(MIXED.kind) * ROWS, 4, DIM)
    keys, values = (normal(9, 256, GROUPS, DIM, seed=seed) for seed in (1, 2))
    table = torch.tensor([[4, 0, 0], [7, 0, 0], [8, 1, 2], [3, 5, 0], [0, 0, 0], [6, 0, 0]], dtype=torch.int32)
    halves = torch.stack([2 * table, 2 * table + 1], 2).flatten(1)
    tile = AttentionTile(rows=16, keys=32, splits=1, parts=1, warps=4, stages=2)
    whole = attend(q, keys, values, table, MIXED, window=window, tile=tile)
    small = (pool.view(18, 128, GROUPS, DIM) for pool in (keys, values))
    assert torch.equal(attend(q, *small, halves, MIXED, window=window, tile=tile), whole)


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("splits", "parts", "rows"), [(1, 1, 16), (2, 2, 16), (1, 1, 32)])
def test_an_image_sees_all_of_itself(window: int | None, inside: bool, splits: int, parts: int, rows: int) -> None:
    """Beyond its segment's end and the window, and beside what is before it."""
    q = normal(len(IMAGES.kind) * ROWS, 4, DIM)
    keys, values = (normal(4, 256, GROUPS, DIM, seed=seed) for seed in (1, 2))
    table = torch.tensor([[3, 1], [0, 2], [0, 2], [0, 2]], dtype=torch.int32)
    tile = AttentionTile(rows=rows, keys=16, splits=splits, parts=parts, warps=4, stages=2, inside=inside)
    check(q, keys, values, table, IMAGES, window, tile)


def test_the_twin_shows_a_row_what_its_range_says() -> None:
    """By hand: row 5 of segment 1 is the first of its image; it sees the image to its end and what is before it."""
    keys, values = normal(4, 256, GROUPS, DIM, seed=1), normal(4, 256, GROUPS, DIM, seed=2)
    table, q = torch.tensor([[3, 1], [0, 2], [0, 2], [0, 2]]), normal(len(IMAGES.kind) * ROWS, GROUPS, DIM)
    with kernels.force("eager"):
        out = attend(q, keys, values, table.int(), IMAGES, window=4).view(-1, GROUPS, DIM)[ROWS + 5]
    seen = torch.cat([keys[0, 252:], keys[2, :16]]), torch.cat([values[0, 252:], values[2, :16]])
    weights = torch.einsum("gd,sgd->gs", q[ROWS + 5], seen[0]).softmax(-1)
    torch.testing.assert_close(out, torch.einsum("gs,sgd->gd", weights, seen[1]))


def check(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, segments: Segments, window: int | None, tile: AttentionTile
) -> None:
    """The kernel against its twin and both against fp64."""
    ours = attend(q, keys, values, table, segments, window=window, tile=tile)
    live = segments.live()
    with kernels.force("eager"):
        theirs = attend(q, keys, values, table, segments, window=window)[live].double()
        exact = attend(q.double(), *(pool.double() for pool in (keys, values)), table, segments, window=window)[live]
    assert (ours[live] - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 1e-6
    assert ours.isfinite().all()
