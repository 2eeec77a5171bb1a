"""The two products over experts with INT4 weights on Hopper, for experts with more than a few rows.

A program walks over its share of tiles: 256 rows of one expert's weights times up to 80 of its rows. Some of its warps
bring codes, scales and rows through a ring that does not pause between tiles; two warp groups multiply
(`int4_products`). Sums are scaled as in `kernels.triton.expert_kernels`: a row gets the same bits.
"""

# What a tile of many rows needs is bound under the same condition under which it is used.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import Any

from torch import Tensor

from redraft.kernels.gluon.int4_products import first_rows, multiply, new_ring, pass_over
from redraft.kernels.gluon.language import descriptor, gl, gluon, hopper, use_gluon
from redraft.kernels.gluon.walk import down_place, gate_place, gate_tiles
from redraft.kernels.gluon.weights_first import row_facts, store_hidden, store_rows, token_scale
from redraft.kernels.triton.language import processors
from redraft.kernels.triton.routing import Routing

STAGES = {64: 8, 80: 6}
"""By the most rows of one expert in a tile: steps of 128 inputs whose codes, scales and rows lie in shared memory.

With tiles of 96 rows registers run out.
"""


def fits(x: Tensor, width: int, inner: int, group: int) -> bool:
    """Whether the kernels take FP8 rows x of a model's width or its experts' inner width, and groups of weights."""
    return use_gluon(x) and group == 64 and width % 256 == inner % 64 == 0 and inner >= 128


def gate(x: Tensor, x_scale: Tensor | None, codes: Tensor, scale: Tensor | None, routing: Routing, out: Tensor) -> None:
    """x [T,D], codes [E,D/64,2I,32], scale int32 [E,D/128,2I] -> out [T*K,I], in the order of `routing.order`."""
    (_, blocks, both, _), lines = codes.shape, routing.block_rows
    _gate_kernel[(processors(x.device),)](
        x, x_scale, pieces(codes), scale, out, routing.order, routing.tiles, routing.counts, D=64 * blocks,
        INNER=both // 2, TOP_K=routing.index.shape[1], LINES=lines, STAGES=STAGES[lines], num_warps=4, maxnreg=168,
    )  # fmt: skip


def down(
    hidden: Tensor, hidden_scale: Tensor | None, codes: Tensor, scale: Tensor | None, routing: Routing, out: Tensor
) -> None:
    """hidden [T*K,I] sorted, codes [E,I/64,D,32] -> out [T,K,D] in the order of assignments, times the router's weight.

    scale int32 [E,P,D]: pairs of groups, the last one's second half is 0 if there is no group for it.
    """
    (_, blocks, width, _), lines = codes.shape, routing.block_rows
    _down_kernel[(processors(hidden.device),)](
        descriptor(hidden, [min(lines, 64), 64]), descriptor(hidden, [max(lines - 64, 16), 64]), hidden_scale,
        pieces(codes), scale, routing.weight, out, routing.order, routing.tiles, routing.counts, D=width,
        INNER=64 * blocks, LINES=lines, STAGES=STAGES[lines], num_warps=4, maxnreg=168,
    )  # fmt: skip


def pieces(codes: Tensor) -> Any:
    """A descriptor of codes [...,32], four weight rows in a line of 128 bytes, by pieces of 64 weight rows."""
    return descriptor(codes.view(-1, 128), [16, 128])


@gluon
def _gate_kernel(
    x, x_scale, codes, scale, out, order, tiles, counts, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """hidden = gelu(gate x) * up x. A tile's weights are 128 columns' gates and ups; the last may have 64 only."""
    ring = new_ring(codes, LINES, STAGES, 65)  # 64 threads that copy rows and scales, and the bulk copies
    walk = (tiles, gl.load(counts))
    given = (order, x_scale, out)
    gl.warp_specialize([
        (_gate_columns, (ring, walk, given, 0, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_columns, (ring, walk, given, 1, D, INNER, TOP_K, LINES, STAGES)),
        (gate_gather, (ring, walk, x, scale, order, D, INNER, TOP_K, LINES, STAGES)),
        (gate_copy, (ring, walk, codes, D, INNER, STAGES)),
    ], [4, 2, 1], [224, 56, 56])  # fmt: skip


@gluon
def _lines(x, order, start, end, D: gl.constexpr, TOP_K: gl.constexpr, COUNT: gl.constexpr):
    """Where COUNT tokens' first 64 inputs lie, from row `start` on, and which are before `end`."""
    GATHER: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [2, 1], [1, 0])
    line = start + gl.arange(0, COUNT, gl.SliceLayout(1, GATHER))
    token = gl.load(order + line, mask=line < end, other=0) // TOP_K
    depth = gl.arange(0, 64, gl.SliceLayout(0, GATHER))[None]
    return x + (token[:, None] * D + depth), (line < end)[:, None]


@gluon
def gate_gather(
    ring, walk, x, scale, order, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr, LINES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the tile's tokens and the scales of its weights."""
    _weights, rows, rest, scales, ready, free = ring
    FIRST: gl.constexpr = first_rows(LINES)
    word = gl.arange(0, 256, gl.BlockedLayout([2], [32], [2], [0]))  # 128 gates, 128 ups
    number = 0
    for index in range(gl.program_id(0), gate_tiles(walk, INNER), gl.num_programs(0)):
        expert, start, end, first = gate_place(walk, index, INNER)
        source, live = _lines(x, order, start, end, D, TOP_K, FIRST)
        if LINES > FIRST:
            further, alive = _lines(x, order, start + FIRST, end, D, TOP_K, LINES - FIRST)
        column = first + word % 128
        pairs = scale + expert.to(gl.int64) * (D // 128 * 2 * INNER) + word // 128 * INNER + column
        for step in range(D // 128):
            stage = number % STAGES
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            words = pairs + step * (2 * INNER)
            hopper.async_copy.async_copy_global_to_shared(scales.index(stage), words, mask=column < INNER)
            for block in gl.static_range(2):
                k, place = step * 128 + block * 64, stage * 2 + block
                hopper.async_copy.async_copy_global_to_shared(rows.index(place), source + k, mask=live)
                if LINES > FIRST:
                    hopper.async_copy.async_copy_global_to_shared(rest.index(place), further + k, mask=alive)
            hopper.async_copy.mbarrier_arrive(ready.index(stage), increment_count=False)
            number += 1


@gluon
def gate_copy(ring, walk, codes, D: gl.constexpr, INNER: gl.constexpr, STAGES: gl.constexpr):
    """Copy the codes in bulk: pieces of gates, then of ups."""
    weights, _rows, _rest, _scales, ready, free = ring
    number = 0
    for index in range(gl.program_id(0), gate_tiles(walk, INNER), gl.num_programs(0)):
        expert, _start, _end, first = gate_place(walk, index, INNER)
        gates = (expert * (D // 64 * 2 * INNER) + first) // 4
        both = first + 64 < INNER
        for step in range(D // 128):
            stage = number % STAGES
            full = ready.index(stage)
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, 2 * 256 * 32, pred=both)
            hopper.mbarrier.expect(full, 2 * 128 * 32, pred=first + 64 >= INNER)
            for piece in gl.static_range(8):
                line = gates + (4 * step + piece // 2) * (INNER // 4) + piece % 2 * 16
                place = weights.index(stage * 8 + piece)
                wanted = both if piece % 2 else step >= 0
                hopper.tma.async_copy_global_to_shared(codes, [line, 0], full, place, pred=wanted)
            number += 1


@gluon
def _gate_columns(
    ring, walk, given, HALF: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's 64 columns of every tile."""
    FIRST: gl.constexpr = first_rows(LINES)
    number = 0
    for index in range(gl.program_id(0), gate_tiles(walk, INNER), gl.num_programs(0)):
        _expert, start, end, first = gate_place(walk, index, INNER)
        first += HALF * 64
        if first >= INNER:
            pass_over(ring, number, D // 128, STAGES)
        elif LINES == FIRST:  # known before the rest is compiled
            _gate_tile(ring, number, given, start, end, first, HALF, FIRST, D, INNER, TOP_K, STAGES)
        elif end - start > FIRST:
            _gate_tile(ring, number, given, start, end, first, HALF, LINES, D, INNER, TOP_K, STAGES)
        else:
            _gate_tile(ring, number, given, start, end, first, HALF, FIRST, D, INNER, TOP_K, STAGES)
        number += D // 128


@gluon
def _gate_tile(
    ring, number, given, start, end, first, HALF: gl.constexpr, LINES: gl.constexpr, D: gl.constexpr,
    INNER: gl.constexpr, TOP_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """At most LINES rows of a tile; their scales are on their way during the product."""
    order, x_scale, out = given
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST
    scale = token_scale(order, x_scale, start, end, TOP_K, FIRST)
    if REST:
        rest_scale = token_scale(order, x_scale, start + FIRST, end, TOP_K, REST)
    gates, ups, gates_rest, ups_rest = multiply(ring, number, D // 128, D, HALF, LINES, STAGES, True)
    store_hidden(out, gates, ups, scale, start, end, first, INNER, FIRST)
    if REST:
        store_hidden(out, gates_rest, ups_rest, rest_scale, start + FIRST, end, first, INNER, REST)


@gluon
def _down_kernel(
    hidden, hidden_rest, hidden_scale, codes, scale, worth, out, order, tiles, counts, D: gl.constexpr,
    INNER: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """out = worth * (down hidden), each row to its assignment's place; tiles of dead rows take no step and store 0."""
    ring = new_ring(codes, LINES, STAGES, 34)  # 32 threads that copy scales, the bulk copies of codes and of rows
    walk = (tiles, gl.load(counts + 1) * (D // 256))
    given = (order, hidden_scale, worth, out)
    gl.warp_specialize([
        (_down_columns, (ring, walk, given, 0, D, INNER, LINES, STAGES)),
        (_down_columns, (ring, walk, given, 1, D, INNER, LINES, STAGES)),
        (down_rows, (ring, walk, hidden, hidden_rest, D, INNER, LINES, STAGES)),
        (down_copy, (ring, walk, codes, scale, D, INNER, STAGES)),
    ], [4, 1, 1], [224, 56, 56])  # fmt: skip


@gluon
def down_rows(
    ring, walk, hidden, hidden_rest, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Copy hidden rows, which lie sorted: a tile's first ones, then the rest of them."""
    _weights, rows, rest, _scales, ready, free = ring
    FIRST: gl.constexpr = first_rows(LINES)
    number = 0
    for index in range(gl.program_id(0), walk[1], gl.num_programs(0)):
        _expert, start, end, _first, steps = down_place(walk, index, D, INNER)
        tall = end - start > FIRST
        for step in range(steps):
            stage, both = number % STAGES, step < INNER // 128
            full = ready.index(stage)
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            _expect(full, tall, both, FIRST * 64, (LINES - FIRST) * 64)
            for block in gl.static_range(2):
                there = both if block == 1 else step >= 0
                k, place = step * 128 + block * 64, stage * 2 + block
                hopper.tma.async_copy_global_to_shared(hidden, [start, k], full, rows.index(place), pred=there)
                if LINES > FIRST:
                    hopper.tma.async_copy_global_to_shared(
                        hidden_rest, [start + FIRST, k], full, rest.index(place), pred=there & tall
                    )
            number += 1


@gluon
def _expect(full, tall, both, BYTES: gl.constexpr, MORE: gl.constexpr):
    """Announce the bytes of a block, MORE of them for a tall tile, twice for both blocks."""
    hopper.mbarrier.expect(full, 2 * (BYTES + MORE), pred=tall & both)
    hopper.mbarrier.expect(full, BYTES + MORE, pred=tall & (both == 0))
    hopper.mbarrier.expect(full, 2 * BYTES, pred=(tall == 0) & both)
    hopper.mbarrier.expect(full, BYTES, pred=(tall == 0) & (both == 0))


@gluon
def down_copy(ring, walk, codes, scale, D: gl.constexpr, INNER: gl.constexpr, STAGES: gl.constexpr):
    """Copy codes in bulk, and scales beside them."""
    weights, _rows, _rest, scales, ready, free = ring
    word = gl.arange(0, 256, gl.BlockedLayout([4], [32], [1], [0]))
    number = 0
    for index in range(gl.program_id(0), walk[1], gl.num_programs(0)):
        expert, _start, _end, first, steps = down_place(walk, index, D, INNER)
        pairs = scale + expert.to(gl.int64) * ((INNER + 127) // 128 * D) + first + word
        lines = (expert * (INNER // 64 * D) + first) // 4
        for step in range(steps):
            stage, both = number % STAGES, step < INNER // 128
            full = ready.index(stage)
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, 2 * 256 * 32, pred=both)
            hopper.mbarrier.expect(full, 256 * 32, pred=both == 0)
            hopper.async_copy.async_copy_global_to_shared(scales.index(stage), pairs + step * D)
            for piece in gl.static_range(8):
                line = lines + (2 * step + piece // 4) * (D // 4) + piece % 4 * 16
                there = both if piece > 3 else step >= 0
                place = weights.index(stage * 8 + piece)
                hopper.tma.async_copy_global_to_shared(codes, [line, 0], full, place, pred=there)
            hopper.async_copy.mbarrier_arrive(full, increment_count=False)
            number += 1


@gluon
def _down_columns(
    ring, walk, given, HALF: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's columns of every tile: 64, and 64 that are 128 further."""
    FIRST: gl.constexpr = first_rows(LINES)
    number = 0
    for index in range(gl.program_id(0), walk[1], gl.num_programs(0)):
        _expert, start, end, first, steps = down_place(walk, index, D, INNER)
        first += HALF * 64
        if LINES == FIRST:
            _down_tile(ring, number, steps, given, start, end, first, HALF, FIRST, D, INNER, STAGES)
        elif end - start > FIRST:
            _down_tile(ring, number, steps, given, start, end, first, HALF, LINES, D, INNER, STAGES)
        else:
            _down_tile(ring, number, steps, given, start, end, first, HALF, FIRST, D, INNER, STAGES)
        number += steps


@gluon
def _down_tile(
    ring, number, steps, given, start, end, first, HALF: gl.constexpr, LINES: gl.constexpr, D: gl.constexpr,
    INNER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """At most LINES rows of a tile; their scales and places are on their way during the product."""
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST
    facts = row_facts(given, start, end, steps, FIRST)
    if REST:
        rest_facts = row_facts(given, start + FIRST, end, steps, REST)
    one, other, one_rest, other_rest = multiply(ring, number, steps, INNER, HALF, LINES, STAGES, False)
    store_rows(given[3], one, facts, start, end, first, D, FIRST)
    store_rows(given[3], other, facts, start, end, first + 128, D, FIRST)
    if REST:
        store_rows(given[3], one_rest, rest_facts, start + FIRST, end, first, D, REST)
        store_rows(given[3], other_rest, rest_facts, start + FIRST, end, first + 128, D, REST)
