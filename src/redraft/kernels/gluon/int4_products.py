"""The inner part of the products over experts with INT4 weights: a ring of places in shared memory, and sums over it.

A tile is 256 rows of one expert's weights times up to 80 of its rows. Two warp groups take 128 weight rows each, 64 at
a time: they turn codes into e4m3 in registers, multiply, and add the last product, times its groups' scales, while the
next one is being computed. A tile's codes are unpacked once for all of its rows; rows beyond 64 take a narrower
instruction. Sums are made group by group as in `kernels.triton.expert_kernels`, so rows get the same bits.
"""

# Variables of tiles with many rows are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import Any, NamedTuple

from redraft.kernels.gluon.language import constant, gl, gluon, hopper
from redraft.kernels.gluon.ring import new_barriers
from redraft.kernels.gluon.weights_first import sums_layout
from redraft.kernels.triton.expert_kernels import codes_to_e4m3, high_half, low_half


@constant
def _codes(rows):
    """The register layout of weights that multiply this many rows."""
    return gl.DotOperandLayout(0, sums_layout(rows), 4)


@constant
def first_rows(lines):
    """How many of a tile's rows its first product takes."""
    return min(lines, 64)


class Ring(NamedTuple):
    """Places in shared memory, two blocks of 64 inputs per stage, and whether a stage is full, or free.

    Places for codes, for a tile's first rows and the rest of them (the same if there are no others), and for scales.
    """

    codes: Any
    rows: Any
    rest: Any
    scales: Any
    ready: Any
    free: Any


@gluon
def new_ring(
    codes, LINES: gl.constexpr, STAGES: gl.constexpr, ARRIVALS: gl.constexpr, WARP_GROUPS: gl.constexpr = 2
):  # fmt: skip
    """A ring whose stages are full after ARRIVALS and free after all groups."""
    FIRST: gl.constexpr = first_rows(LINES)
    ROW_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(64, 8, rank=2)
    places = gl.allocate_shared_memory(gl.uint8, [8 * STAGES, 16, 128], codes.layout)
    rows = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, FIRST, 64], ROW_LAYOUT)
    rest = rows
    if LINES > FIRST:
        rest = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, LINES - FIRST, 64], ROW_LAYOUT)
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, 256], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready, free = new_barriers(STAGES, ARRIVALS, WARP_GROUPS)
    return Ring(places, rows, rest, scales, ready, free)


@gluon
def unpacked(codes, ROWS: gl.constexpr):
    """Codes [16,128], 64 times 32 of them, in shared memory as weights e4m3 [64,64] in registers, in units of 2^-9."""
    low, high = codes_to_e4m3(codes.reshape([64, 32]).load(_codes(ROWS)), True)
    both = gl.reshape(gl.permute(gl.join(low, high), (0, 2, 1)), [64, 64])
    return gl.convert_layout(both, _codes(ROWS), assert_trivial=True)


@gluon
def product(left, right, ROWS: gl.constexpr):
    """Start the product of weights [64,64] and rows [ROWS,64] in shared memory."""
    left = gl.convert_layout(left, _codes(ROWS), assert_trivial=True)
    zeros = gl.zeros([64, ROWS], gl.float32, sums_layout(ROWS))
    return hopper.warpgroup_mma(left, right.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon
def _added(one, other, part, scales, JOB: gl.constexpr, ROWS: gl.constexpr):
    """`one` or `other`, by turns, plus part times its groups' scales: low or high halves of one of `scales` [64]."""
    words = gl.convert_layout(scales[JOB % 2], gl.SliceLayout(1, sums_layout(ROWS)), assert_trivial=True)
    scale = high_half(words) if JOB // 2 else low_half(words)
    if JOB % 2:
        other += part * scale[:, None]
    else:
        one += part * scale[:, None]
    return one, other


@gluon
def _step(
    ring, number, sums, BLOCKS: gl.constexpr, WARP_GROUP: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
    ORDINARY: gl.constexpr,
):  # fmt: skip
    """Add the products of one place of the ring, over BLOCKS * 64 inputs, to the sums of a warp group.

    A job is 64 weight rows and 64 inputs. Its product with a tile's first rows, and that with the rest, are scaled
    while other products run. Data from ORDINARY copies is made visible to matrix instructions first.
    """
    codes, rows, rest, words, ready, free = ring
    one, other, one_rest, other_rest = sums
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST
    LAST: gl.constexpr = 2 * BLOCKS - 1
    SIDE: gl.constexpr = gl.SliceLayout(1, sums_layout(FIRST))
    stage = number % STAGES
    hopper.mbarrier.wait(ready.index(stage), number // STAGES & 1)
    if ORDINARY:
        hopper.fence_async_shared()
    here = words.index(stage)
    scales = (here.slice(WARP_GROUP * 64, 64).load(SIDE), here.slice(128 + WARP_GROUP * 64, 64).load(SIDE))
    place = stage * 2
    left = unpacked(codes.index(place * 4 + WARP_GROUP), FIRST)
    part = product(left, rows.index(place), FIRST)
    if REST:
        spare = product(left, rest.index(place), REST)
    for job in gl.static_range(1, 2 * BLOCKS):
        place = stage * 2 + job // 2
        left = unpacked(codes.index(place * 4 + job % 2 * 2 + WARP_GROUP), FIRST)
        if REST:
            part = hopper.warpgroup_mma_wait(1, deps=[part])
            one, other = _added(one, other, part, scales, job - 1, FIRST)
            part = product(left, rows.index(place), FIRST)
            spare = hopper.warpgroup_mma_wait(1, deps=[spare])
            one_rest, other_rest = _added(one_rest, other_rest, spare, scales, job - 1, REST)
            spare = product(left, rest.index(place), REST)
        else:
            following = product(left, rows.index(place), FIRST)
            part = hopper.warpgroup_mma_wait(1, deps=[part])
            one, other = _added(one, other, part, scales, job - 1, FIRST)
            part = following
    if REST:
        part = hopper.warpgroup_mma_wait(1, deps=[part])
        one, other = _added(one, other, part, scales, LAST, FIRST)
        spare = hopper.warpgroup_mma_wait(0, deps=[spare])
        one_rest, other_rest = _added(one_rest, other_rest, spare, scales, LAST, REST)
    else:
        part = hopper.warpgroup_mma_wait(0, deps=[part])
        one, other = _added(one, other, part, scales, LAST, FIRST)
    hopper.mbarrier.arrive(free.index(stage), count=1)
    return one, other, one_rest, other_rest


@gluon
def multiply(
    ring, at, steps, INPUTS: gl.constexpr, WARP_GROUP: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
    ORDINARY: gl.constexpr,
):  # fmt: skip
    """The sums of one warp group over `steps` places of the ring from number `at` on.

    Two blocks of 64 weight rows times a tile's first rows [64,FIRST], then both times the rest; LINES rows in all. If
    INPUTS is an odd number of blocks of 64, the last step has one block.
    """
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST if LINES > FIRST else 16  # unused in that case
    PAIRS: gl.constexpr = INPUTS // 128
    one = gl.zeros([64, FIRST], gl.float32, sums_layout(FIRST))
    other = gl.zeros([64, FIRST], gl.float32, sums_layout(FIRST))
    one_rest = gl.zeros([64, REST], gl.float32, sums_layout(REST))
    other_rest = gl.zeros([64, REST], gl.float32, sums_layout(REST))
    # Not over range(at, ...): Triton 3.6 drops changes to a number that is used only in the bounds of inner loops.
    for step in range(gl.minimum(steps, PAIRS)):
        sums = (one, other, one_rest, other_rest)
        one, other, one_rest, other_rest = _step(ring, at + step, sums, 2, WARP_GROUP, LINES, STAGES, ORDINARY)
    if INPUTS % 128:  # noqa: SIM102  (known before the rest is compiled)
        if steps > PAIRS:
            sums = (one, other, one_rest, other_rest)
            one, other, one_rest, other_rest = _step(ring, at + PAIRS, sums, 1, WARP_GROUP, LINES, STAGES, ORDINARY)
    return one, other, one_rest, other_rest
