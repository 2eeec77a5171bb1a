"""Soft embeddings: what the model believed at a step, as the mean embedding under its distribution.

There are two ways, chosen for every row on the device. If a few hundred tokens hold all of a row's mass but 2^-9 (the
rounding error of a bf16 probability), the row gathers just these embeddings; the error is at most 2^-9 times the
largest distance between a dropped embedding and the mean. The other rows are packed together and take the dense
product over the whole vocabulary, which returns at once when there are none. A row's way and its order of summation
depend on that row alone.

With the table in FP8 the dense product is a linear layer over the vocabulary like any other in FP8: weights and table
in e4m3, a scale per row and per column of the result. A row's most likely token has weight 448, and the rounded weights
are divided by their own sum. A weight is off by at most 2^-4 of itself, those below 2^-15 of the largest by 2^-19 of
it. Rows that gather keep their weights and read the head's table, which has a scale per token.

Shapes: S segments of L rows, R = S*L rows, V vocabulary, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from redraft.kernels.packed import LARGEST_E4M3, Matrix, PackedFp8, dequantized, values_and_scale
from redraft.kernels.triton.descriptors import bulk_copies, descriptor, load_tile
from redraft.kernels.triton.hardware import roomy
from redraft.kernels.triton.head import HeadResult, Tiles
from redraft.kernels.triton.instructions import await_inputs, rounded
from redraft.kernels.triton.language import LN2, LOG2E, cdiv, constexpr, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.quantize import E4M3_MAX
from redraft.kernels.triton.segments import DENOISE, KIND_DENOISE, Segments
from redraft.kernels.triton.softcap import capped, tempered

DROPPED = 2.0**-9
"""Probability mass that a row may leave out. The unrounded tempered logits may leave out half of it; rounding them to
bf16 changes a probability by a factor of at most e^0.25, which doubles the dropped mass at worst."""

KEPT_TOKENS = 512
"""Tokens that a row may gather, anywhere in the vocabulary. On an H200 this many cost less than the dense product."""

CHUNK = 16384
"""Logits that one program turns into weights for the dense product."""

NOTHING, SPARSE, DENSE = 0, 1, 2
"""Ways that a row can take."""

WAY_NOTHING, WAY_SPARSE, WAY_DENSE = constexpr(NOTHING), constexpr(SPARSE), constexpr(DENSE)
"""The same as constants for kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftTile:
    """How the dense product is cut: rows x width columns, in steps of `depth` tokens, the vocabulary in `splits`."""

    rows: int
    columns: int
    depth: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """Every row's way [R], and for sparse rows their tokens and weights [R,KEPT_TOKENS], with their number and sum."""

    way: Tensor
    count: Tensor
    total: Tensor
    token: Tensor
    weight: Tensor


def soft_embeddings(
    logits: Tensor,
    prediction: HeadResult,
    embedding: Matrix,
    scale: Tensor,
    cap: float | None,
    temperatures: Tensor,
    want: Tensor,
    segments: Segments,
    *,
    transposed: PackedFp8 | None = None,
    tile: SoftTile | None = None,
) -> Tensor:
    """Probability-weighted embeddings times `scale` [1], [R,D] in the scale's dtype; 0 where not wanted.

    logits [R,V] as `head.predict` stored them (the kernels overwrite them), temperatures fp32 [S], want int32 [S]: 0
    for segments whose next step needs none. Tempered logits are rounded to the working dtype first, as the reference
    stores them between steps. `transposed` [D,V] holds the embedding for the dense product in FP8, which an embedding
    in FP8 requires; `tile` overrides the product's tuned shape. Kernels need the tiles of a prediction by kernels.
    """
    if use_triton(logits) and prediction.tiles is not None:
        ways = choose(logits, prediction.tiles, cap, temperatures, want, segments)
        tile = tile or tuned(values_and_scale(embedding if transposed is None else transposed)[0])
        return mean_embeddings(logits, prediction.peak, ways, embedding, transposed, scale, cap, temperatures, tile)
    x = tempered(logits, cap, temperatures).to(scale.dtype)
    probabilities = x.softmax(-1, dtype=torch.float32)
    mean = probabilities.to(scale.dtype) @ dequantized(embedding, scale.dtype)
    if transposed is not None:
        mean = torch.where(few_explain(probabilities)[:, None], mean, fp8_mean(x, transposed).to(scale.dtype))
    wanted = segments.live() & ((segments.kind == DENOISE) & (want != 0)).repeat_interleave(segments.rows)
    return torch.where(wanted[:, None], mean * scale, 0.0)


def few_explain(probabilities: Tensor) -> Tensor:
    """Which rows [...] of probabilities fp32 [...,V] gather."""
    kept = probabilities.topk(min(KEPT_TOKENS, probabilities.shape[-1]), sorted=False).values.sum(-1)
    return 1 - kept <= DROPPED / 2


def fp8_mean(x: Tensor, transposed: PackedFp8) -> Tensor:
    """The mean embedding fp32 [...,D] under tempered logits [...,V], with weights and table in FP8."""
    weights = ((x.float() - x.float().amax(-1, keepdim=True)).exp() * LARGEST_E4M3).to(transposed.values.dtype).float()
    return weights @ transposed.dequantize(torch.float32).T / weights.sum(-1, keepdim=True)


def tuned(table: Tensor) -> SoftTile:
    """The shape measured fastest on one H200, one that fits elsewhere, and one for fp32, which has no fast product."""
    if table.element_size() == 4:
        return SoftTile(rows=16, columns=32, depth=32, splits=2, warps=4, stages=2)
    size = table.element_size()
    if not roomy(table.device):
        return SoftTile(rows=64, columns=128, depth=128 // size, splits=6, warps=4, stages=2)
    return SoftTile(rows=128, columns=256, depth=128 // size, splits=6, warps=8, stages=4 if size == 1 else 3)


def choose(
    logits: Tensor, tiles: Tiles, cap: float | None, temperatures: Tensor, want: Tensor, segments: Segments
) -> Ways:
    """Which way every row takes, and the tokens of the sparse ones."""
    (rows, vocab), count = logits.shape, tiles.peaks.shape[1]
    way, kept = (torch.empty(rows, dtype=torch.int32, device=logits.device) for _ in range(2))
    total = torch.empty(rows, dtype=torch.float32, device=logits.device)
    token = torch.empty(rows, KEPT_TOKENS, dtype=torch.int32, device=logits.device)
    weight = torch.empty(rows, KEPT_TOKENS, dtype=torch.float32, device=logits.device)
    listed = torch.empty(rows, KEPT_TOKENS, dtype=torch.int32, device=logits.device)
    _choose_kernel[(rows,)](
        logits, tiles.peaks, tiles.masses, temperatures, want, segments.kind, segments.length, way, kept, total, token,
        weight, listed, vocab, cap, SEGMENT_ROWS=segments.rows, TOKENS=tiles.size, COUNT=count,
        BLOCK=next_power_of_2(count), DROPPED=DROPPED / 2, KEPT_TOKENS=KEPT_TOKENS, AT_ONCE=cdiv(1024, tiles.size),
        num_warps=4, **early(logits),
    )  # fmt: skip
    return Ways(way=way, count=kept, total=total, token=token, weight=weight)


def mean_embeddings(
    logits: Tensor, peak: Tensor, ways: Ways, embedding: Matrix, transposed: PackedFp8 | None, scale: Tensor,
    cap: float | None, temperatures: Tensor, tile: SoftTile,
) -> Tensor:  # fmt: skip
    """Soft embeddings [R,D] of rows whose ways are chosen; without `transposed`, weights replace logits in place."""
    (rows, vocab), width, device = logits.shape, embedding.shape[1], logits.device
    table, token_scale = values_and_scale(embedding)
    packed, place = (torch.empty(rows, dtype=torch.int32, device=device) for _ in range(2))
    dense = torch.empty(1, dtype=torch.int32, device=device)
    _pack_kernel[(1,)](ways.way, packed, place, dense, rows, BLOCK=next_power_of_2(rows), num_warps=8, **early(logits))
    sums = torch.empty(rows, cdiv(vocab, CHUNK), dtype=torch.float32, device=device)
    weights = logits if transposed is None else torch.empty(rows, vocab, dtype=transposed.values.dtype, device=device)
    _weigh_kernel[(rows, sums.shape[1])](
        logits, peak, temperatures, ways.way, place, weights, sums, vocab, cap,
        SEGMENT_ROWS=rows // len(temperatures), CHUNK=CHUNK, FP8=transposed is not None, num_warps=8, **early(logits),
    )  # fmt: skip
    if transposed is None:
        factors, column_scale = (weights, descriptor(table, tile.depth, tile.columns)), None
    else:
        of_weights = descriptor(weights, tile.rows, tile.depth)
        factors, column_scale = (of_weights, descriptor(transposed.values, tile.columns, tile.depth)), transposed.scale
    partial = _products(*factors, packed, dense, logits.shape, width, tile, fp8=transposed is not None)
    out = torch.empty(rows, width, dtype=scale.dtype, device=device)
    block = min(1024 // table.element_size(), next_power_of_2(width))  # a warp has 512 bytes of every row it reads
    _mean_kernel[(rows, cdiv(width, block))](
        ways.way, ways.count, ways.total, ways.token, ways.weight, table, token_scale, place, partial, sums,
        column_scale, scale, out, rows, width, SPLITS=tile.splits, KEPT_TOKENS=KEPT_TOKENS, CHUNKS=sums.shape[1],
        CHUNK_BLOCK=next_power_of_2(sums.shape[1]), BLOCK=block, AT_ONCE=4, num_warps=2,
        **early(logits),
    )  # fmt: skip
    return out


def weighted_sums(weights: Tensor, table: Tensor, *, tile: SoftTile | None = None) -> Tensor:
    """weights [R,V] times a table [V,D] in their dtype, or in e4m3 and then converted to it: fp32 [R,D].

    For rows that already have weights. A row's result does not depend on the others.
    """
    if not use_triton(weights):
        return weights.float() @ table.to(weights.dtype).float()
    rows = len(weights)
    tile = tile or _tuned_for_weights(rows, table)
    every = torch.arange(rows, dtype=torch.int32, device=weights.device)
    count = torch.full((1,), rows, dtype=torch.int32, device=weights.device)
    factors = weights, descriptor(table, tile.depth, tile.columns)
    partial = _products(*factors, every, count, weights.shape, table.shape[1], tile, fp8=False)
    return reduce(torch.add, partial)  # one by one: the order of a library's sum depends on the number of rows


def _products(
    weights: Any, table: Any, packed: Tensor, dense: Tensor, shape: torch.Size, width: int, tile: SoftTile, *, fp8: bool
) -> Tensor:
    """The products of the splits, fp32 [splits,R,D]; factors as `_product_kernel` takes them, weights of `shape`."""
    (rows, vocab), device = shape, packed.device
    partial = torch.empty(tile.splits, rows, width, dtype=torch.float32, device=device)
    _product_kernel[(cdiv(rows, tile.rows) * cdiv(width, tile.columns), tile.splits)](
        weights, table, packed, dense, partial, rows, width, vocab,
        TILE=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, SPLITS=tile.splits, FP8=fp8,
        EVEN=vocab % tile.depth == 0, BULK=bulk_copies(device), num_warps=tile.warps, num_stages=tile.stages,
        **early(packed),
    )  # fmt: skip
    return partial


def _tuned_for_weights(rows: int, table: Tensor) -> SoftTile:
    """Like `tuned`, for few rows or for many; both cut the sum in the same way."""
    tall, stages = rows > 64, 4 if roomy(table.device) else 2
    return SoftTile(rows=128 if tall else 64, columns=128, depth=64, splits=12, warps=8 if tall else 4, stages=stages)


@jit
def _rounded_weight(x, peak, logits):
    """e^(x - peak) of tempered logits in units of ln 2, both rounded to the logits' dtype in nats first."""
    dtype = logits.dtype.element_ty
    gap = rounded(x * LN2, dtype) - (peak * LN2).to(dtype).to(tl.float32)
    return tl.exp2(gap * LOG2E)


@jit(varying=("want",))
def _choose_kernel(
    logits, peaks, masses, temperatures, want, kind, length, way, kept, totals, tokens, weights, listed, vocab, cap,
    SEGMENT_ROWS: tl.constexpr, TOKENS: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, DROPPED: tl.constexpr,
    KEPT_TOKENS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Look for one row's likely tokens in the tiles that hold nearly all its mass."""
    await_inputs()
    row = tl.program_id(0)
    segment = row // SEGMENT_ROWS
    live = (tl.load(kind + segment) == KIND_DENOISE) & (row % SEGMENT_ROWS < tl.load(length + segment))
    if (tl.load(want + segment) == 0) | (live == 0):
        tl.store(way + row, WAY_NOTHING)
        return
    temperature = tl.load(temperatures + segment)
    tile = tl.arange(0, BLOCK)
    here, inside = row.to(tl.int64) * COUNT + tile, tile < COUNT
    raw_peaks = tl.load(peaks + here, inside, other=float("-inf"))
    peak = capped(tl.max(raw_peaks, 0), cap, temperature)
    top = tl.where(inside, capped(raw_peaks, cap, temperature) - peak, float("-inf"))
    mass = tl.where(inside, tl.load(masses + here, inside, other=0.0) * tl.exp2(top), 0.0)
    whole = tl.sum(mass, 0)
    top -= tl.log2(whole)  # log2 of the tile's largest probability
    bound = _bound(top, mass, whole, DROPPED)
    likely = (top >= bound).to(tl.int32)
    found = tl.sum(likely, 0)
    if found > KEPT_TOKENS:  # each has at least one
        tl.store(way + row, WAY_DENSE)
        return
    listed += row * KEPT_TOKENS
    tl.store(listed + tl.cumsum(likely, 0) - 1, tile, likely != 0)
    tl.debug_barrier()  # every thread reads what others listed

    count = 0
    seen = 0.0
    total = 0.0
    for first in tl.range(0, found, AT_ONCE):
        turn = first + tl.arange(0, AT_ONCE)
        which = tl.load(listed + turn, turn < found, other=0)
        token = which[:, None] * TOKENS + tl.arange(0, TOKENS)[None]
        real = (turn < found)[:, None] & (token < vocab)
        logit = tl.load(logits + row.to(tl.int64) * vocab + token, real, other=0.0).to(tl.float32)
        x = capped(logit, cap, temperature)
        mine = real & (x - peak - tl.log2(whole) >= bound - 4)
        weight = tl.where(mine, _rounded_weight(x, peak, logits), 0.0)
        flat = tl.reshape(mine.to(tl.int32), [AT_ONCE * TOKENS])
        place = tl.reshape(count + tl.cumsum(flat, 0) - 1, [AT_ONCE, TOKENS])
        fits = mine & (place < KEPT_TOKENS)
        tl.store(tokens + row * KEPT_TOKENS + place, token, fits)
        tl.store(weights + row * KEPT_TOKENS + place, weight, fits)
        count += tl.sum(flat, 0)
        seen += tl.sum(tl.sum(tl.where(mine, tl.exp2(x - peak), 0.0), 1), 0)
        total += tl.sum(tl.sum(weight, 1), 0)
    enough = (whole - seen <= DROPPED * whole) & (count <= KEPT_TOKENS)
    tl.store(way + row, tl.where(enough, WAY_SPARSE, WAY_DENSE))
    tl.store(kept + row, count)
    tl.store(totals + row, total)


@jit
def _bound(top, mass, whole, DROPPED: tl.constexpr):
    """The highest of some bounds (log2) below which tiles, with their likeliest token's `top`, hold next to nothing."""
    bound = -22.0
    for level in tl.static_range(5):
        missed = tl.sum(tl.where(top < -20.0 + 2 * level, mass, 0.0), 0)
        bound = tl.where(missed <= 0.5 * DROPPED * whole, -20.0 + 2 * level, bound)
    return bound


@jit(varying=("rows",))
def _pack_kernel(way, packed, place, dense, rows, BLOCK: tl.constexpr):
    """Number the dense rows: `packed` lists them, `place` says where each stands."""
    await_inputs()
    row = tl.arange(0, BLOCK)
    mine = (tl.load(way + row, row < rows, other=WAY_NOTHING) == WAY_DENSE).to(tl.int32)
    number = tl.cumsum(mine, 0) - 1
    tl.store(packed + number, row, mine != 0)
    tl.store(place + row, number, row < rows)
    tl.store(dense, tl.sum(mine, 0))


@jit
def _weigh_kernel(
    logits, peaks, temperatures, way, place, weights, sums, vocab, cap, SEGMENT_ROWS: tl.constexpr, CHUNK: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """Turn a chunk of a dense row's logits into weights and sum them; FP8 weights are packed, others stay in place."""
    await_inputs()
    row = tl.program_id(0)
    if tl.load(way + row) != WAY_DENSE:
        return
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    here = logits + row.to(tl.int64) * vocab + token
    x = capped(tl.load(here, token < vocab, other=0.0).to(tl.float32), cap, tl.load(temperatures + row // SEGMENT_ROWS))
    weight = tl.where(token < vocab, _rounded_weight(x, tl.load(peaks + row) * LOG2E, logits), 0.0)
    if FP8:
        rounded = (weight * E4M3_MAX).to(tl.float8e4nv)
        tl.store(weights + tl.load(place + row).to(tl.int64) * vocab + token, rounded, token < vocab)
        weight = rounded.to(tl.float32)
    else:
        tl.store(here, weight.to(logits.dtype.element_ty), token < vocab)
    tl.store(sums + row * tl.num_programs(1) + tl.program_id(1), tl.sum(weight, 0))


@jit(varying=("rows",))
def _product_kernel(
    weights, table, packed, dense, partial, rows, width, vocab, TILE: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, SPLITS: tl.constexpr, FP8: tl.constexpr, EVEN: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """One tile of the packed rows' weights times the table, over one split of the vocabulary.

    In FP8 these are the packed weights [R,V] and the transposed table [D,V], both read as tiles. Otherwise an e4m3
    table is converted to the weights' dtype.
    """
    await_inputs()
    row_tiles = tl.cdiv(rows, TILE)
    first = tl.program_id(0) % row_tiles * TILE
    count = tl.load(dense)
    if first >= count:
        return
    number = first + tl.arange(0, TILE)
    first_column = tl.program_id(0) // row_tiles * COLUMNS
    split = tl.program_id(1)
    share = tl.cdiv(tl.cdiv(vocab, DEPTH), SPLITS) * DEPTH
    begin = split * share
    end = tl.minimum(begin + share, vocab)
    total = tl.zeros([TILE, COLUMNS], tl.float32)
    if FP8:
        for at in tl.range(begin, end, DEPTH):
            w = load_tile(weights, first, at, rows, vocab, TILE, DEPTH, BULK)
            e = load_tile(table, first_column, at, width, vocab, COLUMNS, DEPTH, BULK)
            total = tl.dot(w, tl.trans(e), total)
    else:
        row = tl.load(packed + number, number < count, other=0).to(tl.int64)
        depth = tl.arange(0, DEPTH)
        left = weights + row[:, None] * vocab + begin + depth[None]
        for at in tl.range(begin, end, DEPTH):
            w = tl.load(left) if EVEN else tl.load(left, (depth < vocab - at)[None], other=0.0)
            e = load_tile(table, at, first_column, vocab, width, DEPTH, COLUMNS, BULK).to(w.dtype)
            total = tl.dot(w, e, total, input_precision="ieee")
            left += DEPTH
    column = first_column + tl.arange(0, COLUMNS)
    here = (split * rows + number).to(tl.int64)[:, None] * width + column[None]
    tl.store(partial + here, total, (number < count)[:, None] & (column < width)[None])


@jit(varying=("rows",))
def _mean_kernel(
    way, count, total, tokens, weights, embedding, token_scale, place, partial, sums, column_scale, scale, out, rows,
    width, SPLITS: tl.constexpr, KEPT_TOKENS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Columns of one row's soft embedding: gathered, or the sum of the dense product's splits."""
    await_inputs()
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    dtype = out.dtype.element_ty
    mine = tl.load(way + row)
    mean = tl.zeros([BLOCK], tl.float32)
    if mine == WAY_SPARSE:
        several = tl.zeros([AT_ONCE, BLOCK], tl.float32)
        last = tl.load(count + row)
        for first in tl.range(0, last, AT_ONCE):
            number = first + tl.arange(0, AT_ONCE)
            token = tl.load(tokens + row * KEPT_TOKENS + number, number < last, other=0).to(tl.int64)
            weight = tl.load(weights + row * KEPT_TOKENS + number, number < last, other=0.0)
            here = embedding + token[:, None] * width + column[None]
            found = tl.load(here, inside[None] & (number < last)[:, None], other=0.0).to(tl.float32)
            if token_scale is not None:
                found *= tl.load(token_scale + token, number < last, other=0.0)[:, None]
                found = rounded(found, dtype)
            several += weight[:, None] * found
        mean = tl.sum(several, 0) / tl.load(total + row)
    if mine == WAY_DENSE:
        chunk = tl.arange(0, CHUNK_BLOCK)
        mass = tl.sum(tl.load(sums + row * CHUNKS + chunk, chunk < CHUNKS, other=0.0), 0)
        number = tl.load(place + row)
        for split in tl.static_range(SPLITS):
            mean += tl.load(partial + (split * rows + number).to(tl.int64) * width + column, inside, other=0.0)
        mean = mean / mass
        if column_scale is not None:
            mean *= tl.load(column_scale + column, inside, other=0.0)
    mean = mean.to(dtype).to(tl.float32) * tl.load(scale).to(tl.float32)
    tl.store(out + row.to(tl.int64) * width + column, mean.to(dtype), inside)
