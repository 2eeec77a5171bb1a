"""The two products over experts with INT4 weights on Hopper, for experts with more than a few rows.

A program walks over its share of tiles: 256 rows of one expert's weights times up to 80 of its rows. Some of its warps
load codes, scales and rows through a ring that does not pause between tiles; two warp groups multiply
(`int4_products`). Sums are scaled as in `kernels.triton.expert_kernels`, so rows get the same bits.
"""

# Variables of tiles with many rows are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from torch import Tensor

from redraft.kernels.gluon.int4_copies import down_copy, down_rows, gate_copy, gate_gather, group_size, pieces
from redraft.kernels.gluon.int4_products import first_rows, multiply, new_ring, short
from redraft.kernels.gluon.language import descriptor, gl, gluon, use_gluon
from redraft.kernels.gluon.ring import pass_over
from redraft.kernels.gluon.walk import down_tile, down_tile_count, down_walk, gate_tile, gate_tile_count, gate_walk
from redraft.kernels.gluon.weights_first import Given, row_facts, store_hidden, store_rows, token_scale
from redraft.kernels.triton.hardware import processors
from redraft.kernels.triton.routing import Routing

STAGES = {64: 8, 80: 6}
"""Steps of 128 inputs held in shared memory (codes, scales and rows), by the most rows of one expert in a tile.

Tiles of 96 rows run out of registers.
"""


def fits(x: Tensor, width: int, inner: int, group: int) -> bool:
    """Whether the kernels take FP8 rows x of a model's width or its experts' inner width, and groups of weights."""
    shapes = group in (32, 64) and width % 256 == inner % 64 == 0 and inner >= 128
    return use_gluon(x) and x.element_size() == 1 and shapes


def gate(x: Tensor, x_scale: Tensor, codes: Tensor, scale: Tensor, routing: Routing, out: Tensor) -> None:
    """x [T,D], codes [E,D/64,2I,32], scale int32 [E,P,2I] -> out [T*K,I], in the order of `routing.order`.

    P pairs of groups: one for every 64 inputs or for every 128.
    """
    (_, blocks, both, _), lines = codes.shape, routing.block_rows
    _gate_kernel[(processors(x.device),)](
        x, x_scale, pieces(codes), scale, out, routing.order, routing.tiles, routing.counts, D=64 * blocks,
        INNER=both // 2, TOP_K=routing.index.shape[1], LINES=lines, STAGES=STAGES[lines],
        GROUP=group_size(codes, scale), num_warps=4, maxnreg=168,
    )  # fmt: skip


def down(hidden: Tensor, hidden_scale: Tensor, codes: Tensor, scale: Tensor, routing: Routing, out: Tensor) -> None:
    """hidden [T*K,I] sorted, codes [E,I/64,D,32] -> out [T,K,D] in the order of assignments, times the router's weight.

    scale int32 [E,P,D]: pairs of groups; the second half of the last pair is 0 if there is no group for it.
    """
    (_, blocks, width, _), lines = codes.shape, routing.block_rows
    _down_kernel[(processors(hidden.device),)](
        descriptor(hidden, [min(lines, 64), 64]), descriptor(hidden, [max(lines - 64, 16), 64]), hidden_scale,
        pieces(codes), scale, routing.weight, out, routing.order, routing.tiles, routing.counts, D=width,
        INNER=64 * blocks, LINES=lines, STAGES=STAGES[lines],
        GROUP=group_size(codes, scale), num_warps=4, maxnreg=168,
    )  # fmt: skip


@gluon
def _gate_kernel(
    x, x_scale, codes, scale, out, order, tiles, counts, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """hidden = gelu(gate x) * up x. A tile's weights are 128 columns' gates and ups; the last may have 64 only."""
    ring = new_ring(codes, LINES, STAGES, GROUP, 65)  # 64 threads that copy rows and scales, and the bulk copies
    walk = gate_walk(tiles, counts)
    given = (order, x_scale, out)
    gl.warp_specialize([
        (_gate_columns, (ring, walk, given, 0, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_columns, (ring, walk, given, 1, D, INNER, TOP_K, LINES, STAGES)),
        (gate_gather, (ring, walk, x, scale, order, D, INNER, TOP_K, LINES, STAGES)),
        (gate_copy, (ring, walk, codes, D, INNER, STAGES)),
    ], [4, 2, 1], [224, 56, 56])  # fmt: skip


@gluon
def _gate_columns(
    ring, walk, given, WARP_GROUP: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's 64 columns of every tile."""
    SHORT: gl.constexpr = short(LINES)
    number = 0
    for index in range(gl.program_id(0), gate_tile_count(walk, INNER), gl.num_programs(0)):
        _expert, start, end, first = gate_tile(walk, index, INNER)
        first += WARP_GROUP * 64
        if first >= INNER:
            pass_over(ring.ready, ring.free, number, D // 128, STAGES)
        elif end - start > SHORT:
            _gate_tile(ring, number, given, start, end, first, WARP_GROUP, LINES, D, INNER, TOP_K, STAGES)
        else:
            _gate_tile(ring, number, given, start, end, first, WARP_GROUP, SHORT, D, INNER, TOP_K, STAGES)
        number += D // 128


@gluon
def _gate_tile(
    ring, number, given, start, end, first, WARP_GROUP: gl.constexpr, LINES: gl.constexpr, D: gl.constexpr,
    INNER: gl.constexpr, TOP_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """At most LINES rows of a tile; their scales are loaded during the product."""
    order, x_scale, out = given
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST
    scale = token_scale(order, x_scale, start, end, TOP_K, FIRST)
    if REST:
        rest_scale = token_scale(order, x_scale, start + FIRST, end, TOP_K, REST)
    gates, ups, gates_rest, ups_rest = multiply(ring, number, D // 128, D, WARP_GROUP, LINES, STAGES, True)
    store_hidden(out, gates, ups, scale, start, end, first, INNER, FIRST)
    if REST:
        store_hidden(out, gates_rest, ups_rest, rest_scale, start + FIRST, end, first, INNER, REST)


@gluon
def _down_kernel(
    hidden, hidden_rest, hidden_scale, codes, scale, worth, out, order, tiles, counts, D: gl.constexpr,
    INNER: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """out = worth * (down hidden), each row to its assignment's place; tiles of dead rows take no step and store 0."""
    ring = new_ring(codes, LINES, STAGES, GROUP, 34)  # 32 threads that copy scales, bulk copies of codes and of rows
    walk = down_walk(tiles, counts, D)
    given = Given(order, hidden_scale, worth, out)
    gl.warp_specialize([
        (_down_columns, (ring, walk, given, 0, D, INNER, LINES, STAGES)),
        (_down_columns, (ring, walk, given, 1, D, INNER, LINES, STAGES)),
        (down_rows, (ring, walk, hidden, hidden_rest, D, INNER, LINES, STAGES)),
        (down_copy, (ring, walk, codes, scale, D, INNER, STAGES)),
    ], [4, 1, 1], [224, 56, 56])  # fmt: skip


@gluon
def _down_columns(
    ring, walk, given, WARP_GROUP: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's columns of every tile: 64, and another 64 that are 128 further on."""
    SHORT: gl.constexpr = short(LINES)
    number = 0
    for index in range(gl.program_id(0), down_tile_count(walk), gl.num_programs(0)):
        tile, steps = down_tile(walk, index, D, INNER)
        _expert, start, end, first = tile
        first += WARP_GROUP * 64
        if end - start > SHORT:
            _down_tile(ring, number, steps, given, start, end, first, WARP_GROUP, LINES, D, INNER, STAGES)
        else:
            _down_tile(ring, number, steps, given, start, end, first, WARP_GROUP, SHORT, D, INNER, STAGES)
        number += steps


@gluon
def _down_tile(
    ring, number, steps, given, start, end, first, WARP_GROUP: gl.constexpr, LINES: gl.constexpr, D: gl.constexpr,
    INNER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """At most LINES rows of a tile; their scales and places are loaded during the product."""
    FIRST: gl.constexpr = first_rows(LINES)
    REST: gl.constexpr = LINES - FIRST
    facts = row_facts(given, start, end, steps, FIRST)
    if REST:
        rest_facts = row_facts(given, start + FIRST, end, steps, REST)
    one, other, one_rest, other_rest = multiply(ring, number, steps, INNER, WARP_GROUP, LINES, STAGES, False)
    store_rows(given.out, one, facts, start, end, first, D, FIRST)
    store_rows(given.out, other, facts, start, end, first + 128, D, FIRST)
    if REST:
        store_rows(given.out, one_rest, rest_facts, start + FIRST, end, first, D, REST)
        store_rows(given.out, other_rest, rest_facts, start + FIRST, end, first + 128, D, REST)
