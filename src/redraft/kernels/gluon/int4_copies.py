"""Fills the rings of the products over experts with INT4 weights: codes, scales and rows, tile by tile.

Two partitions of warps copy for a product. One loads a tile's rows, the other its codes; scales come with the rows for
gates, and with the codes for down projections. A tile is 256 rows of one expert's weights times up to LINES of its
rows; a place in the ring takes 128 inputs of them.
"""

# Variables of tiles with many rows are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import Any

from torch import Tensor

from redraft.kernels.gluon.int4_products import first_rows
from redraft.kernels.gluon.language import bulk_load, descriptor, gl, gluon, hopper, load_lines
from redraft.kernels.gluon.walk import down_tile, down_tile_count, gate_tile, gate_tile_count


def pieces(codes: Tensor) -> Any:
    """A descriptor of codes [...,32], four weight rows in a line of 128 bytes, by pieces of 64 weight rows."""
    return descriptor(codes.view(-1, 128), [16, 128])


def group_size(codes: Tensor, scale: Tensor) -> int:
    """How many inputs share a scale: of codes [E,K/64,N,32] and scales [E,P,N], P pairs of groups; K is 128 or more."""
    return 32 if codes.shape[1] == scale.shape[1] else 64


@gluon
def _lines(x, order, start, end, D: gl.constexpr, TOP_K: gl.constexpr, COUNT: gl.constexpr):
    """Where the first 64 inputs of COUNT tokens are, from row `start` on, and which rows are before `end`."""
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
    FIRST: gl.constexpr = first_rows(LINES)
    PAIRS: gl.constexpr = ring.scales.shape[0] // STAGES
    word = gl.arange(0, 256, gl.BlockedLayout([2], [32], [2], [0]))  # 128 gates, 128 ups
    number = 0
    for index in range(gl.program_id(0), gate_tile_count(walk, INNER), gl.num_programs(0)):
        expert, start, end, first = gate_tile(walk, index, INNER)
        source, live = _lines(x, order, start, end, D, TOP_K, FIRST)
        if LINES > FIRST:
            further, alive = _lines(x, order, start + FIRST, end, D, TOP_K, LINES - FIRST)
        column = first + word % 128
        pairs = scale + expert.to(gl.int64) * (D // 128 * PAIRS * 2 * INNER) + word // 128 * INNER + column
        for step in range(D // 128):
            stage = number % STAGES
            hopper.mbarrier.wait(ring.free.index(stage), number // STAGES & 1 ^ 1)
            for pair in gl.static_range(PAIRS):
                words = pairs + (step * PAIRS + pair) * (2 * INNER)
                load_lines(ring.scales.index(stage * PAIRS + pair), words, mask=column < INNER)
            for block in gl.static_range(2):
                k, place = step * 128 + block * 64, stage * 2 + block
                load_lines(ring.rows.index(place), source + k, mask=live)
                if LINES > FIRST:
                    load_lines(ring.rest.index(place), further + k, mask=alive)
            hopper.async_copy.mbarrier_arrive(ring.ready.index(stage), increment_count=False)
            number += 1


@gluon
def gate_copy(ring, walk, codes, D: gl.constexpr, INNER: gl.constexpr, STAGES: gl.constexpr):
    """Copy the codes in bulk: pieces of gates, then of ups."""
    number = 0
    for index in range(gl.program_id(0), gate_tile_count(walk, INNER), gl.num_programs(0)):
        expert, _start, _end, first = gate_tile(walk, index, INNER)
        gates = (expert * (D // 64 * 2 * INNER) + first) // 4
        both = first + 64 < INNER
        for step in range(D // 128):
            stage = number % STAGES
            full = ring.ready.index(stage)
            hopper.mbarrier.wait(ring.free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, 2 * 256 * 32, pred=both)
            hopper.mbarrier.expect(full, 2 * 128 * 32, pred=first + 64 >= INNER)
            for piece in gl.static_range(8):
                line = gates + (4 * step + piece // 2) * (INNER // 4) + piece % 2 * 16
                place = ring.codes.index(stage * 8 + piece)
                wanted = both if piece % 2 else step >= 0
                bulk_load(codes, [line, 0], full, place, pred=wanted)
            number += 1


@gluon
def down_rows(
    ring, walk, hidden, hidden_rest, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Copy hidden rows, which are sorted: a tile's first ones, then the rest."""
    FIRST: gl.constexpr = first_rows(LINES)
    number = 0
    for index in range(gl.program_id(0), down_tile_count(walk), gl.num_programs(0)):
        tile, steps = down_tile(walk, index, D, INNER)
        _expert, start, end, _first = tile
        tall = end - start > FIRST
        for step in range(steps):
            stage, both = number % STAGES, step < INNER // 128
            full = ring.ready.index(stage)
            hopper.mbarrier.wait(ring.free.index(stage), number // STAGES & 1 ^ 1)
            _expect(full, tall, both, FIRST * 64, (LINES - FIRST) * 64)
            for block in gl.static_range(2):
                there = both if block == 1 else step >= 0
                k, place = step * 128 + block * 64, stage * 2 + block
                bulk_load(hidden, [start, k], full, ring.rows.index(place), pred=there)
                if LINES > FIRST:
                    bulk_load(hidden_rest, [start + FIRST, k], full, ring.rest.index(place), pred=there & tall)
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
    """Copy codes in bulk, along with scales; an odd block at the end has one pair of groups, or half of one."""
    PAIRS: gl.constexpr = ring.scales.shape[0] // STAGES
    COUNT: gl.constexpr = (INNER * PAIRS + 127) // 128
    word = gl.arange(0, 256, gl.BlockedLayout([4], [32], [1], [0]))
    number = 0
    for index in range(gl.program_id(0), down_tile_count(walk), gl.num_programs(0)):
        tile, steps = down_tile(walk, index, D, INNER)
        expert, _start, _end, first = tile
        pairs = scale + expert.to(gl.int64) * (COUNT * D) + first + word
        lines = (expert * (INNER // 64 * D) + first) // 4
        for step in range(steps):
            stage, both = number % STAGES, step < INNER // 128
            full = ring.ready.index(stage)
            hopper.mbarrier.wait(ring.free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, 2 * 256 * 32, pred=both)
            hopper.mbarrier.expect(full, 256 * 32, pred=both == 0)
            load_lines(ring.scales.index(stage * PAIRS), pairs + step * PAIRS * D)
            if PAIRS == 2:
                more, there = ring.scales.index(stage * PAIRS + 1), (word >= 0) & both
                load_lines(more, pairs + (step * PAIRS + 1) * D, mask=there)
            for piece in gl.static_range(8):
                line = lines + (2 * step + piece // 4) * (D // 4) + piece % 4 * 16
                there = both if piece > 3 else step >= 0
                place = ring.codes.index(stage * 8 + piece)
                bulk_load(codes, [line, 0], full, place, pred=there)
            hopper.async_copy.mbarrier_arrive(full, increment_count=False)
            number += 1
