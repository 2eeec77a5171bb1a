"""Which expert reads which row: top-k, sort by expert and the list of tiles, all without involving the host.

The products over experts walk a list of *tiles*: up to `block_rows` rows of one expert each. The list lives on the
device and has room for the worst case, so one captured graph serves every routing. Dead rows (padding) take no expert;
they have separate tiles at the end, where the products write zeros.

A GPU that holds only some of the experts, its *share*, gets their assignments alone: the others appear in no tile, and
nothing writes their products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels.triton import tables
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import LOWEST, cdiv, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import chained

TILES_AT_ONCE = 32
"""Tiles that one program writes to the list."""
PARTS = 11
"""Parts in which the router's product is summed; few rows need several programs per row tile to fill a GPU."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts of T rows with K each, and T*K assignments (row t's k-th is assignment t*K + k) sorted by expert.

    index       int32 [T,K]   chosen experts, counted from the share's first; -1 in dead rows and outside the share
    weight      fp32  [T,K]   the weight of each; 0 where there is none
    order       int32 [T*K]   assignments sorted by (expert, row), dead ones last; undefined after those of a share
    tiles       int32 [M,3]   (expert, first, end) into `order`; expert -1 for dead rows; beyond those, first >= end
    counts      int32 [2]     tiles of live rows, all tiles
    block_rows  the most rows in a tile
    num_experts how many experts the rows were routed among
    """

    index: Tensor
    weight: Tensor
    order: Tensor
    tiles: Tensor
    counts: Tensor
    block_rows: int
    num_experts: int

    @property
    def mean(self) -> float:
        """The mean number of rows that an expert gets."""
        return len(self.order) / self.num_experts


def usual_rows(block_rows: int) -> int:
    """The rows of an expert's tiles but the last, unless tiles of `block_rows` are fewer: kernels like 128 best."""
    return block_rows // 128 * 128 or block_rows


def max_tiles(rows: int, top_k: int, experts: int, block_rows: int) -> int:
    """The most tiles that any routing of `rows` rows can have."""
    touched = min(experts, rows * top_k)
    return touched + 1 + rows * top_k // usual_rows(block_rows)


def route_rows(
    x: Tensor, weight: Tensor, expert_scale: Tensor, top_k: int, block_rows: int, lengths: Tensor | None = None,
    share: range | None = None,
) -> Routing:  # fmt: skip
    """Choose experts by logits, x [T,D] times weight [E,D] transposed, rounded to x's dtype.

    fp32 softmax, top-k, renormalised, times expert_scale [E]; for equal probabilities the lower expert wins.
    `lengths` int32 [S]: the rows are S segments of T/S rows, and in each, rows from its length on are dead; None means
    that all are live. `share`: the experts that are held here, if not all.

    Three launches on CUDA. The product is summed in the same `PARTS` parts for any number of rows, so a row's experts
    do not depend on other rows. A single launch for choice and sort, whose programs wait for one another, takes just as
    long.
    """
    if not use_triton(x):
        return route_eager(F.linear(x, weight), expert_scale, top_k, block_rows, lengths, share)
    rows, (experts, width) = len(x), weight.shape
    tile = tables.routing_tile(rows)
    spread = PARTS if tile.split else 1  # programs that share a row's product
    parts = torch.empty(spread, rows, experts, device=x.device)
    router_kernel[cdiv(rows, tile.router), spread](
        x, weight, parts, rows, EXPERTS=experts, PADDED=max(16, next_power_of_2(experts)), WIDTH=width,
        PART=part_columns(width), PARTS=PARTS // spread, BM=tile.router,
        num_warps=4, num_stages=4 if experts <= 128 else 2, **chained(x, rows),
    )  # fmt: skip
    return _route(parts, x.dtype, expert_scale, top_k, block_rows, lengths, share)


def _route(
    parts: Tensor, dtype: torch.dtype, expert_scale: Tensor, top_k: int, block_rows: int, lengths: Tensor | None,
    share: range | None,
) -> Routing:  # fmt: skip
    """The two kernels, from logits [P,T,E] that are summed over their P parts and, for bf16, rounded to `dtype`."""
    count, rows, experts = parts.shape
    held = range(experts) if share is None else share
    new = partial(torch.empty, dtype=torch.int32, device=parts.device)
    index, weight, order = new(rows, top_k), parts.new_empty(rows, top_k, dtype=torch.float32), new(rows * top_k)
    tiles, counts = new(max_tiles(rows, top_k, len(held), block_rows), 3), new(2)
    tile = tables.routing_tile(rows)
    chunks = cdiv(rows, tile.choose)
    found, ranks = new(chunks, len(held)), torch.empty(rows, len(held), dtype=torch.int8, device=parts.device)
    span = rows if lengths is None else rows // len(lengths)
    after = chained(parts, rows)
    choose_kernel[chunks,](
        parts, expert_scale, lengths, index, weight, ranks, found, rows, span,
        PARTS=count, BF16=dtype == torch.bfloat16, ROWS=tile.choose,
        EXPERTS=experts, PADDED=max(16, next_power_of_2(experts)), FIRST=held.start, HELD=len(held), TOP_K=top_k,
        num_warps=tile.choose, **after,
    )  # fmt: skip
    place_kernel[cdiv(rows, tile.place) + cdiv(len(tiles), TILES_AT_ONCE),](
        ranks, found, order, tiles, counts, rows, chunks, len(tiles), WHOLE=len(held) == experts, EXPERTS=len(held),
        PADDED=max(16, next_power_of_2(len(held))), TOP_K=top_k, RANKS=next_power_of_2(top_k), ROWS=tile.place,
        CHUNKS=tile.place // tile.choose, STEP=min(64, next_power_of_2(chunks)), BM=block_rows,
        USUAL=usual_rows(block_rows), TILES_AT_ONCE=TILES_AT_ONCE, num_warps=tile.warps, **after,
    )  # fmt: skip
    return Routing(index, weight, order, tiles, counts, block_rows, experts)


def part_columns(width: int) -> int:
    """Columns of a part of the router's sum: at least two steps of 64.

    Triton adds a product of a single step to the sum of earlier parts inside the matrix instruction, which rounds
    differently from adding it afterwards.
    """
    return max(2, cdiv(cdiv(width, PARTS), 64)) * 64


@jit(varying=("rows",))
def router_kernel(
    x,  # [T,D]
    weight,  # [E,D]
    parts,  # fp32 [P,T,E]
    rows,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Logits of BM rows: the sum over PART columns from each of PARTS places, one after the other; experts first.

    Copies run on from part to part, because both loops are compiled as one.
    """
    if PDL:
        await_inputs()
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    expert = tl.arange(0, PADDED)
    inner = tl.arange(0, 64)
    live, real = row < rows, expert < EXPERTS
    lines = x + row[:, None].to(tl.int64) * WIDTH
    total = tl.zeros((PADDED, BM), tl.float32)
    for part in tl.range(PARTS, flatten=PARTS > 1):
        first = (tl.program_id(1) + part) * PART
        acc = tl.zeros((PADDED, BM), tl.float32)
        for k in tl.range(0, PART, 64):
            column = first + k + inner
            inside = (column < WIDTH)[None, :]
            left = tl.load(weight + expert[:, None] * WIDTH + column[None, :], mask=real[:, None] & inside, other=0.0)
            right = tl.load(lines + column[None, :], mask=live[:, None] & inside, other=0.0)
            acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
        total += acc
    target = parts + (tl.program_id(1) * rows + row[:, None]).to(tl.int64) * EXPERTS + expert[None, :]
    tl.store(target, tl.trans(total), mask=live[:, None] & real[None, :])


@jit(varying=("rows",))
def choose_kernel(
    parts,  # [P,T,E]
    expert_scale,  # [E]
    lengths,  # int32 [S], or None
    index,  # int32 [T,K]
    weight,  # fp32 [T,K]
    ranks,  # int8 [T,HELD]: the rank at which a row chose an expert, TOP_K if it did not
    found,  # int32 [chunks,HELD]: how many of this program's rows chose each expert
    rows,
    span,  # rows per segment
    PARTS: tl.constexpr,
    BF16: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    FIRST: tl.constexpr,
    HELD: tl.constexpr,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Softmax and top-k of ROWS rows, a warp for each; the HELD experts from FIRST on are passed on."""
    if PDL:
        await_inputs()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, PADDED)[None, :]
    inside, real = row < rows, expert < EXPERTS
    logit = tl.zeros((ROWS, PADDED), tl.float32)
    for part in tl.static_range(PARTS):
        at = parts + (part * rows + row[:, None]).to(tl.int64) * EXPERTS + expert
        logit += tl.load(at, mask=inside[:, None] & real, other=0.0).to(tl.float32)
    if BF16:
        logit = logit.to(tl.bfloat16).to(tl.float32)
    logit = tl.where(logit == logit, logit, LOWEST)  # NaN still leaves K experts to choose
    logit = tl.where(real, logit, float("-inf"))
    mass = tl.exp(logit - tl.max(logit, 1)[:, None])
    probability = mass / exact_sum(mass)[:, None]  # [R,E]
    rank = tl.full((ROWS, PADDED), TOP_K, tl.int32)
    left = sortable(logit, expert, PADDED) if BF16 else tl.where(real, probability, -1.0)
    for k in tl.static_range(TOP_K):
        if BF16:
            best = left == tl.max(left, 1)[:, None]
            left = tl.where(best, -2147483648, left)
        else:
            best = expert == tl.argmax(left, 1, tie_break_left=True)[:, None]
            left = tl.where(best, -1.0, left)
        rank = tl.where(best, k, rank)
    live = inside
    if lengths is not None:
        live = live & (row % span < tl.load(lengths + row // span, mask=inside, other=0))
    chosen = rank < TOP_K
    worth = probability / exact_sum(tl.where(chosen, probability, 0.0))[:, None]
    worth *= tl.load(expert_scale + expert, mask=real, other=0.0).to(tl.float32)
    here = row[:, None] * TOP_K + rank
    held = (expert >= FIRST) & (expert < FIRST + HELD)
    own = live[:, None] & held
    tl.store(index + here, tl.where(own, expert - FIRST, -1), mask=chosen & inside[:, None])
    tl.store(weight + here, tl.where(own, worth, 0.0), mask=chosen & inside[:, None])
    rank = tl.where(own, rank, TOP_K)
    tl.store(ranks + row[:, None] * HELD + expert - FIRST, rank.to(tl.int8), mask=inside[:, None] & held)
    taken = tl.sum((rank < TOP_K).to(tl.int32), 0)[None, :]
    tl.store(found + tl.program_id(0) * HELD + expert - FIRST, taken, mask=held)


@jit
def exact_sum(x):
    """The sum of every row of x [R,E], numbers from 0 to 1, in steps of 2^-32.

    It uses whole numbers, because the order of a sum depends on a tile's layout in registers, and so on its size.
    """
    return tl.sum((x * 4294967296.0).to(tl.int64), 1).to(tl.float32) * 2.3283064365386963e-10


@jit
def sortable(logit, expert, PADDED: tl.constexpr):
    """bf16 numbers with their experts in the low bits, as int32 in the same order, lower experts first on ties."""
    bits = logit.to(tl.int32, bitcast=True) >> 16
    bits = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    return (bits << 16) | (PADDED - 1 - expert)


@jit(varying=("rows", "chunks", "room"))
def place_kernel(
    ranks,  # int8 [T,E]
    found,  # int32 [chunks,E]
    order,  # int32 [T*K]
    tiles,  # int32 [M,3]
    counts,  # int32 [2]
    rows,
    chunks,
    room,  # M
    WHOLE: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    TOP_K: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
    STEP: tl.constexpr,
    BM: tl.constexpr,
    USUAL: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first programs put the assignments of ROWS rows each in place; the others write TILES_AT_ONCE tiles each.

    EXPERTS are those held here; unless they are the WHOLE, rows may have fewer than TOP_K, and dead ones get no tiles.
    """
    if PDL:
        await_inputs()
    me = tl.program_id(0)
    expert = tl.arange(0, PADDED)
    real = expert < EXPERTS
    size = tl.zeros((PADDED,), tl.int32)  # [E] assignments of each expert
    earlier = tl.zeros((PADDED,), tl.int32)  # [E] ... in the rows before this program's
    for first in range(0, chunks, STEP):
        chunk = first + tl.arange(0, STEP)[:, None]
        held = tl.load(found + chunk * EXPERTS + expert[None, :], mask=(chunk < chunks) & real[None, :], other=0)
        size += tl.sum(held, 0)
        earlier += tl.sum(tl.where(chunk < me * CHUNKS, held, 0), 0)
    start = tl.cumsum(size, 0) - size
    live_total = tl.sum(size, 0)
    if me * ROWS < rows:
        place_rows(
            ranks, order, me * ROWS, rows, start + earlier, earlier, live_total, WHOLE, EXPERTS, PADDED, TOP_K, RANKS,
            ROWS,
        )  # fmt: skip
    else:
        first = (me - (rows + ROWS - 1) // ROWS) * TILES_AT_ONCE
        assignments = rows * TOP_K if WHOLE else live_total
        place_tiles(tiles, counts, first, room, assignments, size, start, live_total, PADDED, BM, USUAL, TILES_AT_ONCE)


@jit
def place_rows(ranks, order, first, rows, base, earlier, live_total, WHOLE: tl.constexpr, EXPERTS: tl.constexpr,
               PADDED: tl.constexpr, TOP_K: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Place the assignments of ROWS rows; base [E] is where an expert's first one goes, dead ones go to the end."""
    expert = tl.arange(0, PADDED)
    line = tl.arange(0, ROWS)
    row = first + line
    mask = (row < rows)[:, None] & (expert < EXPERTS)[None, :]
    rank = tl.load(ranks + row[:, None] * EXPERTS + expert[None, :], mask=mask, other=TOP_K)
    chosen = rank < TOP_K
    below = (line[:, None] > line[None, :]).to(tl.float16)
    # [R,E] earlier rows of this program with the same expert
    before = tl.dot(below, chosen.to(tl.float16)).to(tl.int32)
    tl.store(order + base[None, :] + before, row[:, None] * TOP_K + rank, mask=chosen)
    if WHOLE:
        dead = (row < rows) & (tl.sum(chosen.to(tl.int32), 1) == 0)
        ahead = first - tl.sum(earlier, 0) // TOP_K + tl.cumsum(dead.to(tl.int32), 0) - dead.to(tl.int32)
        k = tl.arange(0, RANKS)[None, :]
        place = order + live_total + ahead[:, None] * TOP_K + k
        tl.store(place, row[:, None] * TOP_K + k, mask=dead[:, None] & (k < TOP_K))


@jit
def place_tiles(tiles, counts, first, room, assignments, size, start, live_total, PADDED: tl.constexpr,
                BM: tl.constexpr, USUAL: tl.constexpr, TILES_AT_ONCE: tl.constexpr):  # fmt: skip
    """Write the counts, and some tiles from `first` on, of experts with `size` [E] assignments from `start` [E] on."""
    expert = tl.arange(0, PADDED)
    pieces = (size + BM - 1) // BM  # [E] tiles of each expert
    height = tl.where(pieces * USUAL < size, BM, USUAL)  # [E] rows of its tiles, but of the last
    last = tl.cumsum(pieces, 0)
    live_tiles = tl.sum(pieces, 0)
    tile = first + tl.arange(0, TILES_AT_ONCE)
    owner = tl.sum((last[None, :] <= tile[:, None]).to(tl.int32), 1)  # [TILES_AT_ONCE] experts that end before the tile
    mine = expert[None, :] == owner[:, None]
    own = tl.sum(tl.where(mine, height[None, :], 0), 1)  # [TILES_AT_ONCE]
    begin = tl.sum(tl.where(mine, (start - (last - pieces) * height)[None, :], 0), 1) + tile * own
    stop = tl.minimum(begin + own, tl.sum(tl.where(mine, (start + size)[None, :], 0), 1))
    over = tile >= live_tiles
    begin = tl.where(over, live_total + (tile - live_tiles) * BM, begin)
    stop = tl.where(over, tl.minimum(begin + BM, assignments), stop)
    entry = tiles + tile * 3
    tl.store(entry, tl.where(over, -1, owner), mask=tile < room)
    tl.store(entry + 1, begin, mask=tile < room)
    tl.store(entry + 2, stop, mask=tile < room)
    if first == 0:
        tl.store(counts, live_tiles)
        tl.store(counts + 1, live_tiles + (assignments - live_total + BM - 1) // BM)


def route_eager(
    logits: Tensor,
    expert_scale: Tensor,
    top_k: int,
    block_rows: int,
    lengths: Tensor | None = None,
    share: range | None = None,
) -> Routing:
    """`route_rows` with given logits [T,E] in plain PyTorch; it may wait for the device."""
    rows, experts = logits.shape
    held = range(experts) if share is None else share
    probabilities = logits.softmax(-1, dtype=torch.float32)
    index = probabilities.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]  # [T,K]
    weight = probabilities.gather(-1, index)
    weight = weight / weight.sum(-1, keepdim=True) * expert_scale.float()[index]
    if lengths is not None:
        span = rows // len(lengths)
        live = torch.arange(span, device=logits.device) < lengths[:, None]  # [S,T/S]
        index = index.where(live.flatten()[:, None], -1)
    own = (index >= held.start) & (index < held.stop)
    index, weight = (index - held.start).where(own, -1), weight.where(own, 0.0)
    keys = index.where(own, len(held)).flatten()  # [T*K]
    order = keys.argsort(stable=True)
    sizes = keys.bincount(minlength=len(held) + 1).tolist()
    if len(held) < experts:
        sizes[-1] = 0  # dead rows get no tiles
    tiles, counts = _tiles(sizes, block_rows)
    table = torch.full((max_tiles(rows, top_k, len(held), block_rows), 3), -1, dtype=torch.int32, device=logits.device)
    if tiles:
        table[: len(tiles)] = torch.tensor(tiles, dtype=torch.int32, device=logits.device)
    counts = torch.tensor(counts, dtype=torch.int32, device=logits.device)
    return Routing(index.int(), weight, order.int(), table, counts, block_rows, experts)


def _tiles(sizes: list[int], block_rows: int) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """Tiles of consecutive groups of rows; the last group holds the dead ones."""
    tiles, start, live = [], 0, 0
    for expert, size in enumerate(sizes):
        dead = expert == len(sizes) - 1
        live = len(tiles) if dead else live
        end, usual = start + size, usual_rows(block_rows)
        height = block_rows if dead or cdiv(size, block_rows) < cdiv(size, usual) else usual
        tiles += [(-1 if dead else expert, first, min(first + height, end)) for first in range(start, end, height)]
        start = end
    return tiles, (live, len(tiles))
