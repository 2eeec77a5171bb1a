"""The vocabulary head on Hopper: tiles of logits, and the statistics of each that `kernels.triton.head` needs.

A program walks over its share of tiles. One warp loads hidden rows and the table through a ring that does not pause
between tiles; two warp groups multiply, each for half of a tile's rows, and leave their logits in shared memory; other
warps store and summarize these while the next tile is multiplied. Products are added up as in
`kernels.triton.head`, so logits get the same bits.
"""

# Variables of a format are bound and used under the same condition.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from redraft.kernels.gluon.language import (
    bulk_load,
    bulk_store,
    descriptor,
    gl,
    gluon,
    hopper,
    product_layout,
    use_gluon,
)
from redraft.kernels.gluon.ring import new_barriers
from redraft.kernels.triton.hardware import processors
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import LOG2E, cdiv
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.segments import KIND_DENOISE, KIND_UNUSED, Segments
from redraft.kernels.triton.softcap import bounded, capped

MOST_TILES = 16
"""The most row tiles in a launch: their numbers, four bits each, are packed into one number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """How the product is cut for numbers of one size.

    rows, tokens  of a tile. A thread that multiplies has 128 sums in bf16, and twice 64 in FP8: those of the inputs
                  that are being added up, and those of all before
    warps         that summarize. An instruction over 256 tokens needs more registers at launch than 16 warps can
                  have, so bf16 has two, and twice the time
    launched      registers of every thread at launch; groups then exchange them
    registers     of threads that multiply, summarize and copy
    stages        steps along the width held in shared memory, 128 bytes of each row and token
    """

    rows: int
    tokens: int
    warps: int
    launched: int
    registers: tuple[int, int, int]
    stages: int


TILES = {
    1: Tile(rows=128, tokens=128, warps=4, launched=128, registers=(184, 104, 40), stages=5),
    2: Tile(rows=128, tokens=256, warps=2, launched=168, registers=(208, 88, 88), stages=3),
}
"""Tiles by the size of a number in bytes."""


def tile_for(x: Tensor, vocab: int) -> Tile | None:
    """The tile for hidden rows [R,D] and a vocabulary of this size; None if the kernel does not take them."""
    tile = TILES.get(x.element_size()) if use_gluon(x) else None
    if tile is None or vocab % tile.tokens or len(x) > MOST_TILES * tile.rows:
        return None
    return tile


def multiply(
    x: Tensor, table: Tensor, scales: tuple[Tensor | None, Tensor | None], cap: float, temperatures: Tensor,
    segments: Segments, logits: Tensor, parts: list[Tensor], tile: Tile, together: int,
) -> None:  # fmt: skip
    """x [R,D] times table [V,D] transposed -> logits [R,V], and parts: every tile's peaks, masses, moments.

    These are [R,V/tokens] each, as `kernels.triton.head.Tiles` describes them. FP8 rows and tokens have `scales`. The
    matrix unit adds up the products of `together` inputs; their sums are added in fp32.
    """
    (rows, width), depth, half = x.shape, 128 // x.element_size(), tile.rows // 2
    _head_kernel[(processors(x.device),)](
        descriptor(x, [tile.rows, depth]), descriptor(table, [tile.tokens, depth]),
        descriptor(logits, [half, tile.tokens]), *scales, *parts, temperatures, segments.kind,
        segments.length, rows, len(table), cap, SEGMENT_ROWS=segments.rows, HALF_ROWS=half, TOKENS=tile.tokens,
        DEPTH=depth, STEPS=cdiv(width, depth), TOGETHER=cdiv(together, depth), STAGES=tile.stages,
        MOST_TILES=MOST_TILES, WARPS=tile.warps, REGISTERS=tile.registers, num_warps=4, maxnreg=tile.launched,
        **early(x),
    )  # fmt: skip


@gluon
def _head_kernel(
    x, table, logits, row_scale, token_scale, peaks, masses, moments, temperatures, kind, length, rows, vocab, cap,
    SEGMENT_ROWS: gl.constexpr, HALF_ROWS: gl.constexpr, TOKENS: gl.constexpr, DEPTH: gl.constexpr, STEPS: gl.constexpr,
    TOGETHER: gl.constexpr, STAGES: gl.constexpr, MOST_TILES: gl.constexpr, WARPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Tiles of 2*HALF_ROWS rows x TOKENS; row tiles of the same tokens run side by side to share the cache."""
    await_inputs()
    tiles = _live_tiles(kind, length, rows, SEGMENT_ROWS, 2 * HALF_ROWS, MOST_TILES)
    hidden = gl.allocate_shared_memory(x.dtype, [STAGES, 2 * HALF_ROWS, DEPTH], x.layout)
    tokens = gl.allocate_shared_memory(table.dtype, [STAGES, TOKENS, DEPTH], table.layout)
    ready, free = new_barriers(STAGES, 1)
    shown = gl.allocate_shared_memory(logits.dtype, [2, HALF_ROWS, TOKENS], logits.layout)
    made, taken = new_barriers(2, 1, 1)
    ring = (hidden, tokens, ready, free)
    show = (shown, made, taken)
    scales = (row_scale, token_scale)
    parts = (peaks, masses, moments)
    gl.warp_specialize([
        (_multiply, (ring, show, tiles, scales, rows, vocab, 0, HALF_ROWS, TOKENS, STEPS, TOGETHER, STAGES)),
        (_multiply, (ring, show, tiles, scales, rows, vocab, 1, HALF_ROWS, TOKENS, STEPS, TOGETHER, STAGES)),
        (_summarize, (show, tiles, logits, parts, temperatures, rows, vocab, cap, SEGMENT_ROWS, HALF_ROWS, TOKENS,
                      WARPS)),
        (_copy, (ring, tiles, x, table, vocab, HALF_ROWS, TOKENS, DEPTH, STEPS, STAGES)),
    ], [4, WARPS, 1], [REGISTERS[0], REGISTERS[1], REGISTERS[2]])  # fmt: skip


@gluon
def _live_tiles(kind, length, rows, SEGMENT_ROWS: gl.constexpr, TILE: gl.constexpr, MOST_TILES: gl.constexpr):
    """How many row tiles have a canvas row, and their numbers, four bits each, lowest first.

    A segment's live rows come first in it and start at a multiple of 16.
    """
    SAMPLES: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
    tile = gl.arange(0, MOST_TILES, gl.SliceLayout(1, SAMPLES))
    sample = tile[:, None] * TILE + gl.arange(0, TILE // 16, gl.SliceLayout(0, SAMPLES))[None] * 16
    live = sample < rows
    live &= gl.load(kind + sample // SEGMENT_ROWS, mask=live, other=KIND_UNUSED) == KIND_DENOISE
    live &= sample % SEGMENT_ROWS < gl.load(length + sample // SEGMENT_ROWS, mask=live, other=0)
    wanted = gl.sum(gl.max(live.to(gl.int32), 1) << tile, 0)
    count = 0
    numbers = wanted.to(gl.int64) * 0
    for i in gl.static_range(MOST_TILES):
        here = wanted >> i & 1
        numbers |= (here * i).to(gl.int64) << count * 4
        count += here
    return count, numbers


@gluon
def _place(tiles, index, HALF_ROWS: gl.constexpr, TOKENS: gl.constexpr):
    """First row and first token of the tile with an index."""
    count, numbers = tiles
    row_tile = (numbers >> (index % count * 4) & 15).to(gl.int32)
    return row_tile * (2 * HALF_ROWS), index // count * TOKENS


@gluon
def _copy(
    ring, tiles, x, table, vocab, HALF_ROWS: gl.constexpr, TOKENS: gl.constexpr, DEPTH: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load hidden rows and tokens as places in the ring become free."""
    hidden, tokens, ready, free = ring
    number = 0
    for index in range(gl.program_id(0), tiles[0] * (vocab // TOKENS), gl.num_programs(0)):
        row, token = _place(tiles, index, HALF_ROWS, TOKENS)
        for step in range(STEPS):
            stage = number % STAGES
            full = ready.index(stage)
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, (2 * HALF_ROWS + TOKENS) * 128)
            bulk_load(x, [row, step * DEPTH], full, hidden.index(stage))
            bulk_load(table, [token, step * DEPTH], full, tokens.index(stage))
            number += 1


@gluon
def _multiply(
    ring, show, tiles, scales, rows, vocab, WARP_GROUP: gl.constexpr, HALF_ROWS: gl.constexpr, TOKENS: gl.constexpr,
    STEPS: gl.constexpr, TOGETHER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's half of the rows of every tile; their scales are loaded during the product."""
    shown, made, taken = show
    row_scale, token_scale = scales
    SUMS: gl.constexpr = product_layout(ring[0].dtype, TOKENS)
    number = 0
    for index in range(gl.program_id(0), tiles[0] * (vocab // TOKENS), gl.num_programs(0)):
        row, token = _place(tiles, index, HALF_ROWS, TOKENS)
        if token_scale is not None:
            line = row + WARP_GROUP * HALF_ROWS + gl.arange(0, HALF_ROWS, gl.SliceLayout(1, SUMS))
            row_factor = gl.load(row_scale + line, mask=line < rows, other=0.0)[:, None]
            token_factor = gl.load(token_scale + token + gl.arange(0, TOKENS, gl.SliceLayout(0, SUMS)))[None]
        sums = _product(ring, number, TOGETHER, WARP_GROUP, HALF_ROWS, TOKENS, STAGES)
        for step in range(TOGETHER, STEPS, TOGETHER):
            steps = min(TOGETHER, STEPS - step)
            sums += _product(ring, number + step, steps, WARP_GROUP, HALF_ROWS, TOKENS, STAGES)
        number += STEPS
        if token_scale is not None:
            sums = sums * token_factor * row_factor
        hopper.mbarrier.wait(taken.index(WARP_GROUP), index // gl.num_programs(0) & 1 ^ 1)
        shown.index(WARP_GROUP).store(sums.to(shown.dtype))
        hopper.fence_async_shared()
        hopper.mbarrier.arrive(made.index(WARP_GROUP), count=1)


@gluon
def _product(
    ring, at, steps, WARP_GROUP: gl.constexpr, HALF_ROWS: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """A warp group's rows times a tile's tokens, summed over `steps` places of the ring; the first is number `at`."""
    hidden, tokens, ready, free = ring
    sums = gl.zeros([HALF_ROWS, TOKENS], gl.float32, product_layout(hidden.dtype, TOKENS))
    for number in range(at, at + steps):
        stage = number % STAGES
        hopper.mbarrier.wait(ready.index(stage), number // STAGES & 1)
        left = hidden.index(stage).slice(WARP_GROUP * HALF_ROWS, HALF_ROWS, dim=0)
        sums = hopper.warpgroup_mma(left, tokens.index(stage).permute((1, 0)), sums, is_async=True)
        sums = hopper.warpgroup_mma_wait(1, deps=[sums])
        hopper.mbarrier.arrive(free.index((number - 1) % STAGES), count=1, pred=number > at)
    sums = hopper.warpgroup_mma_wait(0, deps=[sums])
    hopper.mbarrier.arrive(free.index((at + steps - 1) % STAGES), count=1)
    return sums


@gluon
def _summarize(
    show, tiles, logits, parts, temperatures, rows, vocab, cap, SEGMENT_ROWS: gl.constexpr, HALF_ROWS: gl.constexpr,
    TOKENS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Store every tile's logits and the statistics of its rows, some rows at a time."""
    shown, made, taken = show
    COUNT: gl.constexpr = 1024 * WARPS // TOKENS
    for index in range(gl.program_id(0), tiles[0] * (vocab // TOKENS), gl.num_programs(0)):
        row, token = _place(tiles, index, HALF_ROWS, TOKENS)
        for half in gl.static_range(2):
            there = shown.index(half)
            hopper.mbarrier.wait(made.index(half), index // gl.num_programs(0) & 1)
            bulk_store(logits, [row + half * HALF_ROWS, token], there)
            for first in gl.static_range(0, HALF_ROWS, COUNT):
                _summarize_rows(
                    there.slice(first, COUNT, dim=0), row + half * HALF_ROWS + first, token // TOKENS, parts,
                    temperatures, rows, vocab // TOKENS, cap, SEGMENT_ROWS, COUNT, WARPS,
                )  # fmt: skip
            hopper.tma.store_wait(0)
            hopper.mbarrier.arrive(taken.index(half), count=1)


@gluon
def _summarize_rows(
    shown, first, token_tile, parts, temperatures, rows, token_tiles, cap, SEGMENT_ROWS: gl.constexpr,
    COUNT: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The largest logit, mass and moment of COUNT rows of a tile."""
    peaks, masses, moments = parts
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    logit = shown.load(WIDE).to(gl.float32)
    row = first + gl.arange(0, COUNT, gl.SliceLayout(1, WIDE))
    temperature = gl.load(temperatures + row // SEGMENT_ROWS, mask=row < rows, other=1.0)
    peak = gl.max(logit, 1)
    unit = cap * LOG2E / temperature
    x = bounded(logit, cap, (unit - capped(peak, cap, temperature))[:, None], (-2.0 * unit)[:, None])
    weight = gl.exp2(x)
    here = row * token_tiles + token_tile
    gl.store(peaks + here, peak, mask=row < rows)
    gl.store(masses + here, gl.sum(weight, 1), mask=row < rows)
    gl.store(moments + here, gl.sum(weight * x, 1), mask=row < rows)
