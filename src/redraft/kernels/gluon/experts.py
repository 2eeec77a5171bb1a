"""The two products over experts on Hopper, for experts with many rows.

A program walks over its share of tiles: up to 128 rows of one expert times 256 rows of its weights. One partition of
its warps loads rows and weights through a ring that does not pause between tiles; two warp groups multiply, for gates
each by its half of the weights, for down projections each its half of the rows if there are more than 64. Where it
saves a tile, tiles have up to REST rows more: instructions take 64 rows, but any number of columns from 8 on, so the
rest of the rows are the columns of products with the weights first. Sums are made and scaled as in
`kernels.triton.expert_kernels`, so rows get the same bits.
"""

# Variables of a format are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from redraft.kernels.gluon.language import (
    bulk_load,
    descriptor,
    gl,
    gluon,
    hopper,
    load_lines,
    product_layout,
    use_gluon,
)
from redraft.kernels.gluon.ring import new_barriers, pass_over
from redraft.kernels.gluon.walk import down_tile, down_tile_count, down_walk, gate_tile, gate_tile_count, gate_walk
from redraft.kernels.triton.expert_kernels import gelu_gate
from redraft.kernels.triton.hardware import processors
from redraft.kernels.triton.routing import Routing

STAGES = 4
"""Steps along the inputs held in shared memory: 128 bytes of 128 rows and of 256 weight rows each."""


class _Ring(NamedTuple):
    """Places in shared memory for steps along the inputs of rows and weights, and whether they are full, or free.

    `rest` has the rows beyond 128; it is `rows` if there are none.
    """

    rows: Any
    rest: Any
    weights: Any
    ready: Any
    free: Any


def fits(x: Tensor, width: int, inner: int) -> bool:
    """Whether the kernels take rows x of a model's width or its experts' inner width, in bf16 or FP8."""
    return use_gluon(x) and x.element_size() <= 2 and width % 256 == inner % 64 == 0


def gate(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, routing: Routing, out: Tensor
) -> None:
    """x [T,D], weight [E,2I,D], gate rows first -> out [T*K,I], hidden rows in the order of `routing.order`."""
    _, both, width = weight.shape
    depth = 128 // x.element_size()
    _gate_kernel[(processors(x.device),)](
        x, x_scale, descriptor(weight.flatten(0, 1), [64, depth]), weight_scale, out, routing.order, routing.tiles,
        routing.counts, D=width, INNER=both // 2, TOP_K=routing.index.shape[1], DEPTH=depth, STAGES=STAGES,
        HALVES=x_scale is not None or routing.mean <= 64, REST=_rest(routing), num_warps=4, maxnreg=168,
    )  # fmt: skip


def down(
    hidden: Tensor, hidden_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, routing: Routing,
    out: Tensor,
) -> None:  # fmt: skip
    """hidden [T*K,I] sorted, weight [E,D,I] -> out [T,K,D] in the order of assignments, times the router's weight."""
    _, width, inner = weight.shape
    depth, rest = 128 // hidden.element_size(), _rest(routing)
    _down_kernel[(processors(hidden.device),)](
        descriptor(hidden, [64, depth]), descriptor(hidden, [rest, depth]) if rest else None, hidden_scale,
        descriptor(weight.flatten(0, 1), [64, depth]), weight_scale, routing.weight, out, routing.order, routing.tiles,
        routing.counts, D=width, INNER=inner, DEPTH=depth, STAGES=STAGES, REST=rest, num_warps=4, maxnreg=168,
    )  # fmt: skip


def _rest(routing: Routing) -> int:
    """How many rows a tile may have beyond 128."""
    return routing.block_rows - 128


@gluon
def _new_ring(
    weight, DEPTH: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr, ARRIVALS: gl.constexpr
):  # fmt: skip
    """Places for rows and weights, and barriers: full after ARRIVALS, free after both warp groups."""
    rows = gl.allocate_shared_memory(weight.dtype, [STAGES, 128, DEPTH], weight.layout)
    rest = rows
    if REST:
        rest = gl.allocate_shared_memory(weight.dtype, [STAGES, REST, DEPTH], weight.layout)
    weights = gl.allocate_shared_memory(weight.dtype, [STAGES, 256, DEPTH], weight.layout)
    ready, free = new_barriers(STAGES, ARRIVALS)
    return _Ring(rows, rest, weights, ready, free)


@gluon
def _multiply(
    ring, at, steps, ROW: gl.constexpr, ROWS: gl.constexpr, FIRST: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, ORDINARY: gl.constexpr, OWN: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """fp32 [ROWS,COLUMNS], a tile's rows from ROW on times its weights from FIRST on, over `steps` places of the ring;
    and two of [64,REST], its weights from OWN and from OWN + 64 on times the rest of the rows, if there are any.

    The first place is number `at`. Data from ORDINARY copies must be made visible to matrix instructions first.
    """
    LINES: gl.constexpr = REST if REST else 16  # unused if there is no rest
    sums = gl.zeros([ROWS, COLUMNS], gl.float32, product_layout(ring.rows.dtype, COLUMNS))
    one = gl.zeros([64, LINES], gl.float32, product_layout(ring.rows.dtype, LINES))
    other = gl.zeros([64, LINES], gl.float32, product_layout(ring.rows.dtype, LINES))
    for number in range(at, at + steps):
        stage = number % STAGES
        hopper.mbarrier.wait(ring.ready.index(stage), number // STAGES & 1)
        if ORDINARY:
            hopper.fence_async_shared()
        left = ring.rows.index(stage).slice(ROW, ROWS, dim=0)
        weights = ring.weights.index(stage)
        right = weights.slice(FIRST, COLUMNS, dim=0)
        sums = hopper.warpgroup_mma(left, right.permute((1, 0)), sums, is_async=True)
        if REST:
            rest = ring.rest.index(stage).permute((1, 0))
            one = hopper.warpgroup_mma(weights.slice(OWN, 64, dim=0), rest, one, is_async=True)
            other = hopper.warpgroup_mma(weights.slice(OWN + 64, 64, dim=0), rest, other, is_async=True)
            sums, one, other = hopper.warpgroup_mma_wait(3, deps=[sums, one, other])
        else:
            sums = hopper.warpgroup_mma_wait(1, deps=[sums])
        hopper.mbarrier.arrive(ring.free.index((number - 1) % STAGES), count=1, pred=number > at)
    if REST:
        sums, one, other = hopper.warpgroup_mma_wait(0, deps=[sums, one, other])
    else:
        sums = hopper.warpgroup_mma_wait(0, deps=[sums])
    hopper.mbarrier.arrive(ring.free.index((at + steps - 1) % STAGES), count=1, pred=steps > 0)
    return sums, one, other


@gluon
def _gate_kernel(
    x, x_scale, weight, weight_scale, out, order, tiles, counts, D: gl.constexpr, INNER: gl.constexpr,
    TOP_K: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, HALVES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """hidden = gelu(gate x) * up x. A tile's weights are 128 columns' gates and ups; the last may have 64 only.

    HALVES: a tile of at most 64 rows is multiplied as such. In bf16 that is slower where few tiles are so short.
    """
    ring = _new_ring(weight, DEPTH, STAGES, REST, 129)  # 128 threads that copy rows, and the bulk copies
    walk = gate_walk(tiles, counts)
    given = (order, x_scale, weight_scale, out)
    gl.warp_specialize([
        (_gate_columns, (ring, walk, given, 0, D, INNER, TOP_K, DEPTH, STAGES, HALVES, REST)),
        (_gate_columns, (ring, walk, given, 1, D, INNER, TOP_K, DEPTH, STAGES, HALVES, REST)),
        (_gate_copy, (ring, walk, x, weight, order, D, INNER, TOP_K, DEPTH, STAGES, REST)),
    ], [4, 4], [208, 88])  # fmt: skip


@gluon
def _gate_copy(
    ring, walk, x, weight, order, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """Gather the tile's tokens, 16 bytes a thread, and copy the weights in bulk."""
    GATHER: gl.constexpr = gl.BlockedLayout([1, DEPTH // 8], [4, 8], [4, 1], [1, 0])
    depth = gl.arange(0, DEPTH, gl.SliceLayout(0, GATHER))[None]
    number = 0
    for index in range(gl.program_id(0), gate_tile_count(walk, INNER), gl.num_programs(0)):
        expert, start, end, first = gate_tile(walk, index, INNER)
        line = start + gl.arange(0, 128, gl.SliceLayout(1, GATHER))
        token = gl.load(order + line, mask=line < end, other=0) // TOP_K
        source, live = x + token[:, None].to(gl.int64) * D + depth, (line < end)[:, None]
        if REST:
            line = start + 128 + gl.arange(0, REST, gl.SliceLayout(1, GATHER))
            token = gl.load(order + line, mask=line < end, other=0) // TOP_K
            further, alive = x + token[:, None].to(gl.int64) * D + depth, (line < end)[:, None]
        gates, ups = expert * (2 * INNER) + first, expert * (2 * INNER) + INNER + first
        both = first + 64 < INNER
        for k in range(0, D, DEPTH):
            stage = number % STAGES
            full = ring.ready.index(stage)
            hopper.mbarrier.wait(ring.free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, 256 * 128, pred=both)
            hopper.mbarrier.expect(full, 128 * 128, pred=first + 64 >= INNER)
            lines = ring.weights.index(stage)
            bulk_load(weight, [gates, k], full, lines.slice(0, 64, dim=0))
            bulk_load(weight, [ups, k], full, lines.slice(64, 64, dim=0))
            bulk_load(weight, [gates + 64, k], full, lines.slice(128, 64, dim=0), pred=both)
            bulk_load(weight, [ups + 64, k], full, lines.slice(192, 64, dim=0), pred=both)
            load_lines(ring.rows.index(stage), source + k, mask=live)
            if REST:
                load_lines(ring.rest.index(stage), further + k, mask=alive)
            hopper.async_copy.mbarrier_arrive(full, increment_count=False)
            number += 1


@gluon
def _gate_columns(
    ring, walk, given, WARP_GROUP: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, HALVES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """One warp group's 64 columns of every tile."""
    number = 0
    for index in range(gl.program_id(0), gate_tile_count(walk, INNER), gl.num_programs(0)):
        tile = gate_tile(walk, index, INNER)
        if tile.first + WARP_GROUP * 64 >= INNER:
            pass_over(ring.ready, ring.free, number, D // DEPTH, STAGES)
        elif HALVES and tile.end - tile.start <= 64:
            _gate_tile(ring, number, given, tile, WARP_GROUP, 64, D, INNER, TOP_K, DEPTH, STAGES, 0)
        elif REST and tile.end - tile.start > 128:
            _gate_tile(ring, number, given, tile, WARP_GROUP, 128, D, INNER, TOP_K, DEPTH, STAGES, REST)
        else:
            _gate_tile(ring, number, given, tile, WARP_GROUP, 128, D, INNER, TOP_K, DEPTH, STAGES, 0)
        number += D // DEPTH


@gluon
def _gate_tile(
    ring, number, given, tile, WARP_GROUP: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr,
    TOP_K: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """At most ROWS rows of a tile, and the rest of them; scales of the former are loaded during the product."""
    order, x_scale, weight_scale, out = given
    expert, start, end, first = tile
    first += WARP_GROUP * 64
    OWN: gl.constexpr = WARP_GROUP * 128
    SUMS: gl.constexpr = product_layout(ring.rows.dtype, 128)
    if weight_scale is not None:
        line = start + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))
        token = gl.load(order + line, mask=line < end, other=0) // TOP_K
        row_scale = gl.load(x_scale + token, mask=line < end, other=0.0)[:, None]
        column = gl.arange(0, 128, gl.SliceLayout(0, SUMS))  # 64 gates, 64 ups
        column_scale = gl.load(weight_scale + expert * (2 * INNER) + first + column % 64 + column // 64 * INNER)[None]
    sums, rest_gates, rest_ups = _multiply(ring, number, D // DEPTH, 0, ROWS, OWN, 128, STAGES, True, OWN, REST)
    if weight_scale is not None:
        sums = sums * column_scale * row_scale
    gates, ups = gl.split(gl.permute(gl.reshape(sums, [ROWS, 2, 64]), (0, 2, 1)))
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    hidden = gl.convert_layout(gelu_gate(gates, ups).to(out.dtype.element_ty), WIDE)
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    line = start + gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))
    place = out + line[:, None].to(gl.int64) * INNER + column[None]
    gl.store(place, hidden, mask=(line < end)[:, None], eviction_policy="evict_last")  # the next launches read it
    if REST:
        _store_hidden_rest(rest_gates, rest_ups, given, tile, first, INNER, TOP_K, REST)


@gluon
def _store_hidden_rest(
    gates, ups, given, tile, first, INNER: gl.constexpr, TOP_K: gl.constexpr, REST: gl.constexpr
):  # fmt: skip
    """64 columns from `first` of the rest of a tile's hidden rows, from their products [64,REST]."""
    order, x_scale, weight_scale, out = given
    expert, start, end, _first = tile
    if weight_scale is not None:
        scale = weight_scale + expert * (2 * INNER) + first + _weight_rows(gates)
        line = start + 128 + _rest_rows(gates)
        token = gl.load(order + line, mask=line < end, other=0) // TOP_K
        row_scale = gl.load(x_scale + token, mask=line < end, other=0.0)[None]
        gates, ups = gates * gl.load(scale)[:, None] * row_scale, ups * gl.load(scale + INNER)[:, None] * row_scale
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    hidden = gl.convert_layout(gl.permute(gelu_gate(gates, ups).to(out.dtype.element_ty), (1, 0)), WIDE)
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    line = start + 128 + gl.arange(0, REST, gl.SliceLayout(1, WIDE))
    place = out + line[:, None].to(gl.int64) * INNER + column[None]
    gl.store(place, hidden, mask=(line < end)[:, None], eviction_policy="evict_last")


@gluon
def _weight_rows(sums):
    """The number of every weight row of sums [64,REST]."""
    return gl.arange(0, sums.shape[0], gl.SliceLayout(1, sums.type.layout))


@gluon
def _rest_rows(sums):
    """The number of every row of sums [64,REST]."""
    return gl.arange(0, sums.shape[1], gl.SliceLayout(0, sums.type.layout))


@gluon
def _down_kernel(
    hidden, hidden_rest, hidden_scale, weight, weight_scale, worth, out, order, tiles, counts, D: gl.constexpr,
    INNER: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """out = worth * (down hidden), each row to its assignment's place; tiles of dead rows take no step and store 0."""
    ring = _new_ring(weight, DEPTH, STAGES, REST, 1)
    walk = down_walk(tiles, counts, D)
    given = (order, hidden_scale, weight_scale, worth, out)
    gl.warp_specialize([
        (_down_columns, (ring, walk, given, 0, D, INNER, DEPTH, STAGES, REST)),
        (_down_columns, (ring, walk, given, 1, D, INNER, DEPTH, STAGES, REST)),
        (_down_copy, (ring, walk, hidden, hidden_rest, weight, D, INNER, DEPTH, STAGES, REST)),
    ], [4, 1], [240, 24])  # fmt: skip


@gluon
def _down_copy(
    ring, walk, hidden, hidden_rest, weight, D: gl.constexpr, INNER: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """Copy hidden rows, which are sorted, and weights in bulk."""
    number = 0
    for index in range(gl.program_id(0), down_tile_count(walk), gl.num_programs(0)):
        tile, steps = down_tile(walk, index, D, INNER, DEPTH)
        expert, start, end, first = tile
        row = expert * D + first
        tall = end - start > 64
        for step in range(steps):
            stage, k = number % STAGES, step * DEPTH
            full, lines, columns = ring.ready.index(stage), ring.rows.index(stage), ring.weights.index(stage)
            hopper.mbarrier.wait(ring.free.index(stage), number // STAGES & 1 ^ 1)
            if REST:
                taller = end - start > 128
                hopper.mbarrier.expect(full, 384 * 128, pred=tall & (taller == 0))
                hopper.mbarrier.expect(full, (384 + REST) * 128, pred=taller)
                bulk_load(hidden_rest, [start + 128, k], full, ring.rest.index(stage), pred=taller)
            else:
                hopper.mbarrier.expect(full, 384 * 128, pred=tall)
            hopper.mbarrier.expect(full, 320 * 128, pred=end - start <= 64)
            bulk_load(hidden, [start, k], full, lines.slice(0, 64, dim=0))
            bulk_load(hidden, [start + 64, k], full, lines.slice(64, 64, dim=0), pred=tall)
            for part in gl.static_range(4):
                bulk_load(weight, [row + part * 64, k], full, columns.slice(part * 64, 64, dim=0))
            number += 1


@gluon
def _down_columns(
    ring, walk, given, WARP_GROUP: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """One warp group's part of every tile."""
    number = 0
    for index in range(gl.program_id(0), down_tile_count(walk), gl.num_programs(0)):
        tile, steps = down_tile(walk, index, D, INNER, DEPTH)
        if tile.end - tile.start <= 64:
            _down_tile(ring, number, given, tile, steps, WARP_GROUP, 0, 0, D, STAGES)
        elif REST and tile.end - tile.start > 128:
            _down_tile(ring, number, given, tile, steps, WARP_GROUP, 64, REST, D, STAGES)
        else:
            _down_tile(ring, number, given, tile, steps, WARP_GROUP, 64, 0, D, STAGES)
        number += steps


@gluon
def _down_tile(
    ring, number, given, tile, steps, WARP_GROUP: gl.constexpr, APART: gl.constexpr, REST: gl.constexpr,
    D: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """64 rows of a tile times its weights: all of these if each warp group has other rows, APART by 64, else its half.
    The rest of the rows times its half of the weights. Scales of the former are loaded during the product."""
    order, hidden_scale, weight_scale, worth, out = given
    expert, start, end, first = tile
    OWN: gl.constexpr = WARP_GROUP * 128
    FIRST: gl.constexpr = 0 if APART else OWN
    COLUMNS: gl.constexpr = 256 if APART else 128
    rest, own = start + 128, first + OWN
    start += WARP_GROUP * APART
    first += FIRST
    SUMS: gl.constexpr = product_layout(ring.rows.dtype, COLUMNS)
    line = start + gl.arange(0, 64, gl.SliceLayout(1, SUMS))
    place = gl.load(order + line, mask=line < end, other=0)
    factor = gl.load(worth + place, mask=line < end, other=0.0)[:, None]
    if weight_scale is not None:
        column = first + gl.arange(0, COLUMNS, gl.SliceLayout(0, SUMS))
        column_scale = gl.load(weight_scale + gl.maximum(expert, 0) * D + column)[None]
        row_scale = gl.load(hidden_scale + line, mask=(line < end) & (steps > 0), other=0.0)[:, None]
    ROW: gl.constexpr = WARP_GROUP * APART
    sums, one, other = _multiply(ring, number, steps, ROW, 64, FIRST, COLUMNS, STAGES, False, OWN, REST)
    if weight_scale is not None:
        sums = sums * column_scale * row_scale
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    result = gl.convert_layout((sums * factor).to(out.dtype.element_ty), WIDE)
    place = gl.convert_layout(place, gl.SliceLayout(1, WIDE))
    column = first + gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))
    line = start + gl.arange(0, 64, gl.SliceLayout(1, WIDE))
    place = out + place[:, None].to(gl.int64) * D + column[None]
    gl.store(place, result, mask=(line < end)[:, None], eviction_policy="evict_last")  # until they are summed
    if REST:
        _store_rest(one, given, expert, rest, end, own, steps, D, REST)
        _store_rest(other, given, expert, rest, end, own + 64, steps, D, REST)


@gluon
def _store_rest(sums, given, expert, start, end, first, steps, D: gl.constexpr, REST: gl.constexpr):
    """64 columns from `first` of the rows from `start` on, each in its place, from their products [64,REST]."""
    order, hidden_scale, weight_scale, worth, out = given
    line = start + _rest_rows(sums)
    place = gl.load(order + line, mask=line < end, other=0)
    factor = gl.load(worth + place, mask=line < end, other=0.0)[None]
    if weight_scale is not None:
        scales = weight_scale + gl.maximum(expert, 0) * D + first + _weight_rows(sums)
        row_scale = gl.load(hidden_scale + line, mask=(line < end) & (steps > 0), other=0.0)[None]
        sums = sums * gl.load(scales)[:, None] * row_scale
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    result = gl.convert_layout(gl.permute((sums * factor).to(out.dtype.element_ty), (1, 0)), WIDE)
    line = start + gl.arange(0, REST, gl.SliceLayout(1, WIDE))
    place = gl.load(order + line, mask=line < end, other=0)
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    place = out + place[:, None].to(gl.int64) * D + column[None]
    gl.store(place, result, mask=(line < end)[:, None], eviction_policy="evict_last")
