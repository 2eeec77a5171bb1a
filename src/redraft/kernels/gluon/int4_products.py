"""The inner part of the products over experts with INT4 weights: a ring of places in shared memory, and sums over it.

A tile is 256 rows of one expert's weights times up to 80 of its rows. Two warp groups take 128 weight rows each, 64 at
a time: they turn codes into e4m3 in registers, multiply, and add the last product, times its groups' scales, while the
next one is being computed. A tile's codes are unpacked once for all of its rows; rows beyond 64 take a narrower
instruction, and so do tiles of few rows. A product has the inputs of one group, 64 or 32. Sums are made group by group
as in `kernels.triton.expert_kernels`, so rows get the same bits.
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


@constant
def short(lines):
    """Up to how many rows a tile of at most `lines` takes narrower instructions."""
    return {64: 32, 80: 64}[lines]


class Ring(NamedTuple):
    """Places in shared memory, two blocks of 64 inputs per stage, and whether a stage is full, or free.

    Places for codes, for a tile's first rows and the rest of them (the same if there are no others), and for scales:
    a stage has one place for pairs of groups of 64, and two for pairs of groups of 32.
    """

    codes: Any
    rows: Any
    rest: Any
    scales: Any
    ready: Any
    free: Any


@gluon
def new_ring(
    codes, LINES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, ARRIVALS: gl.constexpr,
    WARP_GROUPS: gl.constexpr = 2,
):  # fmt: skip
    """A ring whose stages are full after ARRIVALS and free after all groups."""
    FIRST: gl.constexpr = first_rows(LINES)
    ROW_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(64, 8, rank=2)
    places = gl.allocate_shared_memory(gl.uint8, [8 * STAGES, 16, 128], codes.layout)
    rows = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, FIRST, 64], ROW_LAYOUT)
    rest = rows
    if LINES > FIRST:
        rest = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, LINES - FIRST, 64], ROW_LAYOUT)
    scales = gl.allocate_shared_memory(gl.int32, [64 // GROUP * STAGES, 256], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready, free = new_barriers(STAGES, ARRIVALS, WARP_GROUPS)
    return Ring(places, rows, rest, scales, ready, free)


@constant
def group_of(places, stages):
    """How many inputs share a scale, given the number of places for scales."""
    return 64 * stages // places


@gluon
def unpacked(codes, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """The weights of a block's first and last group (the same in groups of 64), e4m3 [64,GROUP] in units of 2^-9.

    codes [16,128], 64 times 32 of them, in shared memory; weights are in registers.
    """
    low, high = codes_to_e4m3(codes.reshape([64, 32]).load(_codes(ROWS)))
    if GROUP == 64:
        both = gl.reshape(gl.permute(gl.join(low, high), (0, 2, 1)), [64, 64])
        low = gl.convert_layout(both, _codes(ROWS), assert_trivial=True)
        high = low
    return low, high


@gluon
def pair_scales(ring, stage, first, PAIR: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """The scales [64] of weight rows from `first` on, for a stage's pair of groups."""
    return ring.scales.index(stage * (64 // GROUP) + PAIR).slice(first, 64).load(gl.SliceLayout(1, sums_layout(ROWS)))


@gluon
def group_scale(pair, NUMBER: gl.constexpr, ROWS: gl.constexpr):
    """The scales [64] of a stage's group with a number, which is in this pair."""
    pair = gl.convert_layout(pair, gl.SliceLayout(1, sums_layout(ROWS)), assert_trivial=True)
    return high_half(pair) if NUMBER % 2 else low_half(pair)


@gluon
def product(left, rows, stage, NUMBER: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """Start the product of weights [64,GROUP] and the inputs of a stage's group of ROWS rows in shared memory."""
    left = gl.convert_layout(left, _codes(ROWS), assert_trivial=True)
    right = rows.index(stage * 2 + NUMBER * GROUP // 64)
    if rows.shape[1] > ROWS:
        right = right.slice(0, ROWS)
    if GROUP == 32:
        right = right.slice(NUMBER % 2 * 32, 32, 1)
    zeros = gl.zeros([64, ROWS], gl.float32, sums_layout(ROWS))
    return hopper.warpgroup_mma(left, right.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon
def _pairs(ring, stage, PAIR: gl.constexpr, WARP_GROUP: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """`pair_scales` of both blocks of a warp group's weight rows."""
    one = pair_scales(ring, stage, WARP_GROUP * 64, PAIR, GROUP, ROWS)
    return one, pair_scales(ring, stage, 128 + WARP_GROUP * 64, PAIR, GROUP, ROWS)


@gluon
def _added(one, other, part, pairs, JOB: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """`one` or `other`, whichever a job is for, plus part times its group's scales."""
    SIDE: gl.constexpr = _side(JOB, GROUP)
    scale = group_scale(pairs[SIDE], _group(JOB, GROUP), ROWS)
    if SIDE:
        other += part * scale[:, None]
    else:
        one += part * scale[:, None]
    return one, other


@constant
def _side(job, group):
    """Whether a job is for the second of a warp group's blocks of 64 weight rows; they take turns every 64 inputs."""
    return job * group // 64 % 2


@constant
def _group(job, group):
    """The number of a job's group in a stage."""
    per_block = 64 // group
    return job // (2 * per_block) * per_block + job % per_block


@gluon
def _step(
    ring, number, sums, BLOCKS: gl.constexpr, WARP_GROUP: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
    ORDINARY: gl.constexpr,
):  # fmt: skip
    """Add the products of one place of the ring, over BLOCKS * 64 inputs, to the sums of a warp group.

    A job is 64 weight rows and a group of inputs. Its product with a tile's first rows, and that with the rest, are
    scaled while other products run. Data from ORDINARY copies is made visible to matrix instructions first.
    """
    codes, rows, rest, _scales, ready, free = ring
    one, other, one_rest, other_rest = sums
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST
    GROUP: gl.constexpr = group_of(ring.scales.shape[0], STAGES)
    JOBS: gl.constexpr = 2 * BLOCKS * 64 // GROUP
    stage = number % STAGES
    hopper.mbarrier.wait(ready.index(stage), number // STAGES & 1)
    if ORDINARY:
        hopper.fence_async_shared()
    pairs = _pairs(ring, stage, 0, WARP_GROUP, GROUP, FIRST)
    left, last = unpacked(codes.index(stage * 8 + WARP_GROUP), GROUP, FIRST)
    part = product(left, rows, stage, 0, GROUP, FIRST)
    if REST:
        spare = product(left, rest, stage, 0, GROUP, REST)
    for job in gl.static_range(1, JOBS):
        if job * GROUP % 64:
            left = last
        else:
            left, last = unpacked(codes.index(stage * 8 + job * GROUP // 64 * 2 + WARP_GROUP), GROUP, FIRST)
        if job == 5:  # the first to be scaled by the second pair has begun
            pairs = _pairs(ring, stage, 1, WARP_GROUP, GROUP, FIRST)
        if REST:
            part = hopper.warpgroup_mma_wait(1, deps=[part])
            one, other = _added(one, other, part, pairs, job - 1, GROUP, FIRST)
            part = product(left, rows, stage, _group(job, GROUP), GROUP, FIRST)
            spare = hopper.warpgroup_mma_wait(1, deps=[spare])
            one_rest, other_rest = _added(one_rest, other_rest, spare, pairs, job - 1, GROUP, REST)
            spare = product(left, rest, stage, _group(job, GROUP), GROUP, REST)
        else:
            following = product(left, rows, stage, _group(job, GROUP), GROUP, FIRST)
            part = hopper.warpgroup_mma_wait(1, deps=[part])
            one, other = _added(one, other, part, pairs, job - 1, GROUP, FIRST)
            part = following
    if REST:
        part = hopper.warpgroup_mma_wait(1, deps=[part])
        one, other = _added(one, other, part, pairs, JOBS - 1, GROUP, FIRST)
        spare = hopper.warpgroup_mma_wait(0, deps=[spare])
        one_rest, other_rest = _added(one_rest, other_rest, spare, pairs, JOBS - 1, GROUP, REST)
    else:
        part = hopper.warpgroup_mma_wait(0, deps=[part])
        one, other = _added(one, other, part, pairs, JOBS - 1, GROUP, FIRST)
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
