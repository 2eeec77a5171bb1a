"""The two products over experts with INT4 weights on Hopper, for experts with few rows.

With few rows, most of the time goes into unpacking codes as they arrive. So four warp groups do it, for 64 of a tile's
256 weight rows each. In the gate product, two have the gates of the tile's columns, and two have the ups and pass their
products to the others. Copies are those of `int4_copies`, and sums are scaled as in `kernels.triton.expert_kernels`, so
rows get the same bits.
"""

# Variables of one kind of group are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from torch import Tensor

from redraft.kernels.gluon.int4_copies import down_copy, down_rows, gate_copy, gate_gather, group_size, pieces
from redraft.kernels.gluon.int4_products import group_of, group_scale, new_ring, pair_scales, product, unpacked
from redraft.kernels.gluon.language import descriptor, gl, gluon, hopper
from redraft.kernels.gluon.ring import new_barriers, pass_over
from redraft.kernels.gluon.walk import down_tile, down_tile_count, down_walk, gate_tile, gate_tile_count, gate_walk
from redraft.kernels.gluon.weights_first import Given, row_facts, store_hidden, store_rows, sums_layout, token_scale
from redraft.kernels.triton.hardware import processors
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.routing import Routing

LINES = 32
"""The most rows of one expert in a tile."""

STAGES = 6
"""Steps of 128 inputs whose codes, scales and rows are held in shared memory."""


def gate(x: Tensor, x_scale: Tensor, codes: Tensor, scale: Tensor, routing: Routing, out: Tensor) -> None:
    """x [T,D], codes [E,D/64,2I,32], scale int32 [E,P,2I] -> out [T*K,I], in the order of `routing.order`.

    P pairs of groups: one for every 64 inputs or for every 128.
    """
    _, blocks, both, _ = codes.shape
    _gate_kernel[(processors(x.device),)](
        x, x_scale, pieces(codes), scale, out, routing.order, routing.tiles, routing.counts, D=64 * blocks,
        INNER=both // 2, TOP_K=routing.index.shape[1], LINES=LINES, STAGES=STAGES,
        GROUP=group_size(codes, scale), num_warps=4, maxnreg=96, **early(x),
    )  # fmt: skip


def down(hidden: Tensor, hidden_scale: Tensor, codes: Tensor, scale: Tensor, routing: Routing, out: Tensor) -> None:
    """hidden [T*K,I] sorted, codes [E,I/64,D,32] -> out [T,K,D] in the order of assignments, times the router's weight.

    scale int32 [E,P,D]: pairs of groups; the second half of the last pair is 0 if there is no group for it.
    """
    _, blocks, width, _ = codes.shape
    _down_kernel[(processors(hidden.device),)](
        descriptor(hidden, [LINES, 64]), hidden_scale, pieces(codes), scale, routing.weight, out, routing.order,
        routing.tiles, routing.counts, D=width, INNER=64 * blocks, LINES=LINES, STAGES=STAGES,
        GROUP=group_size(codes, scale), num_warps=4, maxnreg=96, **early(hidden),
    )  # fmt: skip


@gluon
def _step(
    ring, number, sums, BLOCKS: gl.constexpr, WARP_GROUP: gl.constexpr, STAGES: gl.constexpr, ORDINARY: gl.constexpr
):  # fmt: skip
    """Add the products of one place of the ring, over BLOCKS * 64 inputs, to the sums of a warp group.

    One group is scaled while the next one's product is running. Data from ORDINARY copies is made visible to matrix
    instructions first.
    """
    LINES: gl.constexpr = ring.rows.shape[1]
    GROUP: gl.constexpr = group_of(ring.scales.shape[0], STAGES)
    GROUPS: gl.constexpr = BLOCKS * 64 // GROUP
    stage = number % STAGES
    hopper.mbarrier.wait(ring.ready.index(stage), number // STAGES & 1)
    if ORDINARY:
        hopper.fence_async_shared()
    pair = pair_scales(ring, stage, WARP_GROUP * 64, 0, GROUP, LINES)
    left, last = unpacked(ring.codes.index(stage * 8 + WARP_GROUP), GROUP, LINES)
    part = product(left, ring.rows, stage, 0, GROUP, LINES)
    for group in gl.static_range(1, GROUPS):
        if group * GROUP % 64:
            left = last
        else:
            left, last = unpacked(ring.codes.index(stage * 8 + group * GROUP // 64 * 4 + WARP_GROUP), GROUP, LINES)
        following = product(left, ring.rows, stage, group, GROUP, LINES)
        part = hopper.warpgroup_mma_wait(1, deps=[part])
        sums += part * group_scale(pair, group - 1, LINES)[:, None]
        if group == 2:
            pair = pair_scales(ring, stage, WARP_GROUP * 64, 1, GROUP, LINES)
        part = following
    part = hopper.warpgroup_mma_wait(0, deps=[part])
    sums += part * group_scale(pair, GROUPS - 1, LINES)[:, None]
    hopper.mbarrier.arrive(ring.free.index(stage), count=1)
    return sums


@gluon
def _multiply(
    ring, at, steps, INPUTS: gl.constexpr, WARP_GROUP: gl.constexpr, STAGES: gl.constexpr, ORDINARY: gl.constexpr
):  # fmt: skip
    """The sums [64,LINES] of one warp group over `steps` places of the ring from number `at` on.

    If INPUTS is an odd number of blocks of 64, the last step has one block.
    """
    PAIRS: gl.constexpr = INPUTS // 128
    LINES: gl.constexpr = ring.rows.shape[1]
    sums = gl.zeros([64, LINES], gl.float32, sums_layout(LINES))
    # Not over range(at, ...): Triton 3.6 drops changes to a number that is used only in the bounds of inner loops.
    for step in range(gl.minimum(steps, PAIRS)):
        sums = _step(ring, at + step, sums, 2, WARP_GROUP, STAGES, ORDINARY)
    if INPUTS % 128:  # noqa: SIM102  (known before the rest is compiled)
        if steps > PAIRS:
            sums = _step(ring, at + PAIRS, sums, 1, WARP_GROUP, STAGES, ORDINARY)
    return sums


@gluon
def _gate_kernel(
    x, x_scale, codes, scale, out, order, tiles, counts, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """hidden = gelu(gate x) * up x. A tile's weights are 128 columns' gates and ups; the last may have 64 only."""
    await_inputs()
    ring = new_ring(codes, LINES, STAGES, GROUP, 65, 4)  # 64 threads that copy rows and scales, and the bulk copies
    walk = gate_walk(tiles, counts)
    given = (order, x_scale, out)
    ups = gl.allocate_shared_memory(gl.float32, [2, 64, LINES], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    left, taken = new_barriers(2, 1, 1)
    swap = (ups, left, taken)
    gl.warp_specialize([
        (_gate_columns, (ring, walk, given, swap, 0, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_columns, (ring, walk, given, swap, 1, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_columns, (ring, walk, given, swap, 2, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_columns, (ring, walk, given, swap, 3, D, INNER, TOP_K, LINES, STAGES)),
        (gate_gather, (ring, walk, x, scale, order, D, INNER, TOP_K, LINES, STAGES)),
        (gate_copy, (ring, walk, codes, D, INNER, STAGES)),
    ], [4, 4, 4, 2, 1], [104, 104, 104, 56, 56])  # fmt: skip


@gluon
def _gate_columns(
    ring, walk, given, swap, WARP_GROUP: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The gates or the ups of 64 columns of every tile. Groups with ups pass them to those with the gates."""
    order, x_scale, out = given
    ups, left, taken = swap
    HALF: gl.constexpr = WARP_GROUP % 2
    number = 0
    turn = 0
    for index in range(gl.program_id(0), gate_tile_count(walk, INNER), gl.num_programs(0)):
        _expert, start, end, first = gate_tile(walk, index, INNER)
        first += HALF * 64
        if first >= INNER:
            pass_over(ring.ready, ring.free, number, D // 128, STAGES)
        else:
            if WARP_GROUP < 2:
                scale = token_scale(order, x_scale, start, end, TOP_K, LINES)
            sums = _multiply(ring, number, D // 128, D, WARP_GROUP, STAGES, True)
            if WARP_GROUP < 2:
                hopper.mbarrier.wait(left.index(HALF), turn & 1)
                there = ups.index(HALF).load(sums_layout(LINES))
                hopper.mbarrier.arrive(taken.index(HALF), count=1)
                store_hidden(out, sums, there, scale, start, end, first, INNER, LINES)
            else:
                hopper.mbarrier.wait(taken.index(HALF), turn & 1 ^ 1)
                ups.index(HALF).store(sums)
                hopper.mbarrier.arrive(left.index(HALF), count=1)
            turn += 1
        number += D // 128


@gluon
def _down_kernel(
    hidden, hidden_scale, codes, scale, worth, out, order, tiles, counts, D: gl.constexpr, INNER: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """out = worth * (down hidden), each row to its assignment's place; tiles of dead rows take no step and store 0."""
    await_inputs()
    ring = new_ring(codes, LINES, STAGES, GROUP, 34, 4)  # 32 threads that copy scales, bulk copies of codes and rows
    walk = down_walk(tiles, counts, D)
    given = Given(order, hidden_scale, worth, out)
    gl.warp_specialize([
        (_down_columns, (ring, walk, given, 0, D, INNER, LINES, STAGES)),
        (_down_columns, (ring, walk, given, 1, D, INNER, LINES, STAGES)),
        (_down_columns, (ring, walk, given, 2, D, INNER, LINES, STAGES)),
        (_down_columns, (ring, walk, given, 3, D, INNER, LINES, STAGES)),
        (down_rows, (ring, walk, hidden, hidden, D, INNER, LINES, STAGES)),
        (down_copy, (ring, walk, codes, scale, D, INNER, STAGES)),
    ], [4, 4, 4, 1, 1], [104, 104, 104, 56, 56])  # fmt: skip


@gluon
def _down_columns(
    ring, walk, given, WARP_GROUP: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's 64 columns of every tile of 256."""
    number = 0
    for index in range(gl.program_id(0), down_tile_count(walk), gl.num_programs(0)):
        tile, steps = down_tile(walk, index, D, INNER)
        _expert, start, end, first = tile
        facts = row_facts(given, start, end, steps, LINES)
        sums = _multiply(ring, number, steps, INNER, WARP_GROUP, STAGES, False)
        store_rows(given.out, sums, facts, start, end, first + WARP_GROUP * 64, D, LINES)
        number += steps
