"""Attention of every segment over its request's pages, without a mask tensor.

A canvas sees all keys from `window - 1` before its start (or from 0) to its own end; a prompt row sees keys up to
itself within the window, and an image row also sees all of its image. The canvas' own keys are in the pages too, after
the committed ones, so there is only one range of positions to read.

Shapes: R rows = S segments of L, N query heads, G key/value heads, H head dim, P pages of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.gluon import attention as gluon_attention
from redraft.kernels.gluon import wide_attention
from redraft.kernels.packed import Rows, Rows8
from redraft.kernels.triton.descriptors import bulk_copies, descriptor, load_tile
from redraft.kernels.triton.hardware import roomy
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import LOG2E, cdiv, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.quantize import e4m3_unit, quantize_rows, quantize_rows_eager
from redraft.kernels.triton.segments import (
    DENOISE,
    ENCODE_IMAGES,
    KIND_DENOISE,
    KIND_ENCODE_IMAGES,
    KIND_UNUSED,
    UNUSED,
    Segments,
)

PROGRAMS = 64
"""With fewer tiles of 64 rows of one canvas than this, several programs share a tile's keys."""

UNSPLIT_TILES = 32
"""With so many, the kernel of `kernels.gluon`, which does not split, is faster for several canvases. For one, a step of
half the 26B model's heads takes 2% more with it (two H100)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionTile:
    """How the kernel cuts its work. The number of splits is fixed, so that one graph serves any context length.

    rows     query rows (of all heads of a group) per program
    keys     keys per turn of its loop, a divisor of the page
    splits   programs that share the keys of one row tile
    parts    programs that share the columns of the values; each computes the scores again
    inside   a separate loop, without masks, for keys that all rows see: pays when a program reads many keys
    gluon    use a kernel of `kernels.gluon`: where one program has more than 256 columns, `wide_attention`, which looks
             at `keys` alone, else `attention`, which does not look at `splits`, `warps` and `inside`
    """

    rows: int
    keys: int
    splits: int
    parts: int
    warps: int
    stages: int
    inside: bool = False
    gluon: bool = False


def attend(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, segments: Segments, *, window: int | None,
    fp8: bool = False, tile: AttentionTile | None = None,
) -> Rows:  # fmt: skip
    """q [R,N,H] over pages keys and values [pages,256,G,H] -> [R,N*H] in q's dtype, or as e4m3 rows if `fp8`.

    table int32 [S,P]: the page of each 256 positions of a segment's request. `window` None: everything before.
    Scores have scale 1. Padding rows get finite results. Pages may be e4m3; they must hold finite numbers even where
    nothing has been written yet. `tile` overrides the tuned shape of the kernel.
    """
    if use_triton(q):
        return _attend(q, keys, values, table, segments, window or 0, fp8, tile or tuned(q, keys, segments))
    out = torch.zeros_like(q)  # [R,N,H]
    for s in range(len(segments.kind)):
        kind, start, length = (int(x[s]) for x in (segments.kind, segments.start, segments.length))
        if kind != UNUSED and length:
            here = slice(s * segments.rows, s * segments.rows + length)
            sight = [x[here].long() for x in segments.sight] if kind == ENCODE_IMAGES else None
            seen = _seen(kind, start, length, window, sight, q.device)
            k, v = (_gather(pool, table[s], seen.shape[1], q.dtype) for pool in (keys, values))
            out[here] = eager.attention(q[None, here].transpose(1, 2), k, v, seen[None, None]).view_as(out[here])
    return quantize_rows_eager(out.flatten(1)) if fp8 else out.flatten(1)


def _seen(
    kind: int, start: int, length: int, window: int | None, sight: list[Tensor] | None, device: torch.device
) -> Tensor:
    """Which positions each row of a segment sees, bool [length, positions], up to the last that any row sees."""
    end = start + length if sight is None else max(start + length, int(sight[1].max()))
    key = torch.arange(end, device=device)[None]
    row = torch.arange(start, start + length, device=device)[:, None]
    first = torch.full_like(row, start) if kind >= DENOISE else row
    last = torch.full_like(row, start + length - 1) if kind >= DENOISE else row
    seen = key <= last
    if window is not None:
        seen &= key > first - window
    return seen if sight is None else seen | ((key >= sight[0][:, None]) & (key < sight[1][:, None]))


def _gather(pool: Tensor, pages: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Positions 0..count of one request [1,G,count,H] in a dtype; pages given back (-1) read as zeros, never seen."""
    pages = pages[: cdiv(count, pool.shape[1])].long()
    rows = pool[pages.clamp(min=0)].to(dtype).masked_fill((pages < 0)[:, None, None, None], 0.0)
    return rows.flatten(0, 1)[:count].transpose(0, 1)[None]


def tuned(q: Tensor, keys: Tensor, segments: Segments) -> AttentionTile:
    """The shape measured fastest on one H200, or one that fits elsewhere.

    Everything that affects rounding (keys per turn, splits) follows from the model's shape alone, so a canvas gets the
    same numbers in any batch. Rows and parts do not affect a row's result; they are chosen to fill the GPU.
    """
    dim, groups = keys.shape[3], keys.shape[2]
    packed = segments.rows * (q.shape[1] // groups)
    tiles = groups * cdiv(packed, 64)
    splits = min(max(PROGRAMS // tiles, 1), 8)
    if q.element_size() == 4:  # no fast product
        return AttentionTile(rows=16, keys=16, splits=splits, parts=1, warps=4, stages=2)
    if not roomy(q.device):
        rows, keys_at_once = (32, 32) if dim <= 256 else (16, 16)
        parts = 1 if dim <= 256 else 2
        return AttentionTile(rows=rows, keys=keys_at_once, splits=splits, parts=parts, warps=4, stages=2)
    if tiles >= UNSPLIT_TILES and gluon_attention.fits(q, keys, segments):
        return _tuned_gluon(dim, packed, len(segments.kind) * groups)
    tall = len(segments.kind) * groups * cdiv(packed, 128)  # tiles of 128 rows
    if dim > 256:
        return AttentionTile(rows=64, keys=32, splits=splits, parts=2, warps=4, stages=3)
    kept_small = keys.element_size() == 1  # e4m3 is widened in registers, and a separate loop takes more of them
    if tall >= 96:
        stages = 3 if kept_small else 2
        return AttentionTile(rows=128, keys=64, splits=splits, parts=1, warps=8, stages=stages, inside=not kept_small)
    parts = 2 if len(segments.kind) == 1 and dim >= 128 else 1
    inside = parts == 1 and not kept_small
    return AttentionTile(rows=64, keys=64, splits=splits, parts=parts, warps=4, stages=3, inside=inside)


def _tuned_gluon(dim: int, packed: int, walks: int) -> AttentionTile:
    """Heads of 512: all columns in one program if there are enough of these for most SMs, so that scores are made once.

    Otherwise two groups per program if that is enough; else one, and more parts until it is.
    """
    enough, parts = 96, 1 if dim <= 256 else 2
    keys, rows = 64 // parts, 128
    if dim > 256 and walks * (packed // 64) >= enough:
        return AttentionTile(rows=64, keys=keys, splits=1, parts=1, warps=4, stages=2, gluon=True)
    if packed % 128 or walks * (packed // 128) * parts < enough:
        rows = 64
        parts *= 1 if walks * (packed // 64) * parts >= enough else 2
    stages = 3 if rows == 64 and dim == 256 else 2
    return AttentionTile(rows=rows, keys=keys, splits=1, parts=parts, warps=4, stages=stages, gluon=True)


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    segments: Segments,
    window: int,
    fp8: bool,
    tile: AttentionTile,
) -> Rows:
    (rows, heads, dim), groups, count = q.shape, keys.shape[2], len(segments.kind)
    if tile.gluon:
        inputs = (q, keys, values, table, segments)
        if dim // tile.parts > 256:
            out = wide_attention.attend(*inputs, window=window, turn=tile.keys)
        else:
            sizes = {"rows": tile.rows, "turn": tile.keys, "parts": tile.parts, "stages": tile.stages}
            out = gluon_attention.attend(*inputs, window=window, **sizes)
        return quantize_rows(out.flatten(1)) if fp8 else out.flatten(1)
    split = tile.splits > 1
    out = torch.empty_like(q, dtype=torch.float8_e4m3fn if split and fp8 else q.dtype)
    partial, peaks, sums = out, None, None
    if split:
        partial = q.new_empty(tile.splits, rows, heads, dim, dtype=torch.float32)
        peaks, sums = (q.new_empty(tile.splits, rows, heads, dtype=torch.float32) for _ in range(2))
    share = heads // groups
    row_tiles = cdiv(segments.rows * share, tile.rows)
    shape: dict[str, Any] = {"SEGMENT_ROWS": segments.rows, "HEADS": heads, "DIM": dim}
    _attend_kernel[(row_tiles * tile.parts, groups * tile.splits, count)](
        q, descriptor(keys.view(-1, groups * dim), tile.keys, dim),
        descriptor(values.view(-1, groups * dim), tile.keys, dim // tile.parts), table, segments.kind, segments.start,
        segments.length, *segments.sight, partial, peaks, sums, table.stride(0), rows * heads, tile.splits,
        keys.shape[:2].numel(), GROUPS=groups, PAGE=keys.shape[1], WINDOW=window, TILE=tile.rows, KEYS=tile.keys,
        SPLIT=split, PARTS=tile.parts, INSIDE=tile.inside, BULK=bulk_copies(q.device), num_warps=tile.warps,
        num_stages=tile.stages, **shape, **early(q),
    )  # fmt: skip
    if not split:
        return quantize_rows(out.view(rows, heads * dim)) if fp8 else out.view(rows, heads * dim)
    block, scale = (next_power_of_2(heads), q.new_empty(rows, 1, dtype=torch.float32)) if fp8 else (4, None)
    _merge_kernel[(rows, cdiv(heads, block))](
        partial, peaks, sums, segments.kind, segments.length, out, scale, rows * heads, SPLITS=tile.splits, FP8=fp8,
        BLOCK=block, num_warps=8 if fp8 else 4, **shape, **early(q),
    )  # fmt: skip
    out = out.view(rows, heads * dim)
    return out if scale is None else Rows8(out, scale)


@jit(varying=("total", "positions"))
def _attend_kernel(
    q, keys, values, page_table, kind, start, length, since, until, out, peaks, sums, page_stride, total, splits,
    positions, SEGMENT_ROWS: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
    PARTS: tl.constexpr, INSIDE: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """One tile of packed rows (a token's heads of one group side by side) over one split of its keys."""
    await_inputs()
    SHARE: tl.constexpr = HEADS // GROUPS  # query heads of a group
    COLUMNS: tl.constexpr = DIM // PARTS
    segment = tl.program_id(2)
    group, split = tl.program_id(1) // splits, tl.program_id(1) % splits
    first_row, part = tl.program_id(0) // PARTS * TILE, tl.program_id(0) % PARTS
    what, begin, count = tl.load(kind + segment), tl.load(start + segment), tl.load(length + segment)
    if what == KIND_UNUSED:
        count = 0

    packed = first_row + tl.arange(0, TILE)
    token, head = packed // SHARE, group * SHARE + packed % SHARE
    inside = token < SEGMENT_ROWS
    line = ((segment * SEGMENT_ROWS + token) * HEADS + head)[:, None]  # of q and out
    column = tl.arange(0, DIM)[None]
    out_column = part * COLUMNS + tl.arange(0, COLUMNS)
    if first_row // SHARE >= count:
        if not SPLIT:
            nothing = tl.zeros([TILE, COLUMNS], out.dtype.element_ty)
            tl.store(out + line * DIM + out_column[None], nothing, inside[:, None])
        return

    segment_row = segment * SEGMENT_ROWS
    low, high, stop = _sight(what, begin, count, token, first_row, segment_row, since, until, SHARE, WINDOW)
    base, stop = _keys_of_split(what, begin, count, split, splits, low, stop, segment_row, since, until, WINDOW, KEYS)
    queries = tl.load(q + line * DIM + column, inside[:, None], other=0.0)
    peak = tl.full([TILE], float("-inf"), tl.float32)
    mass = tl.zeros([TILE], tl.float32)
    mean = tl.zeros([TILE, COLUMNS], tl.float32)
    pages = page_table + segment * page_stride
    key_column, value_column = group * DIM, group * DIM + part * COLUMNS
    near, far = stop, stop
    if INSIDE:  # between the edges every row sees every key, and nothing has to be masked
        near = tl.minimum(tl.maximum(tl.cdiv(tl.max(low), KEYS) * KEYS, base), stop)
        far = tl.minimum(tl.maximum(tl.min(high) // KEYS * KEYS, near), stop)
    pools = (keys, values, pages, positions, key_column, value_column)
    sight = (low, high)
    WIDTH: tl.constexpr = GROUPS * DIM
    peak, mass, mean = _take(peak, mass, mean, queries, pools, sight, base, near, WIDTH, PAGE, KEYS, True, BULK)
    if INSIDE:
        peak, mass, mean = _take(peak, mass, mean, queries, pools, sight, near, far, WIDTH, PAGE, KEYS, False, BULK)
        peak, mass, mean = _take(peak, mass, mean, queries, pools, sight, far, stop, WIDTH, PAGE, KEYS, True, BULK)

    if not SPLIT:
        mean = tl.where((token < count)[:, None], mean / mass[:, None], 0.0)
        tl.store(out + line * DIM + out_column[None], mean.to(out.dtype.element_ty), inside[:, None])
    else:
        inside = inside & (token < count)
        out += split * total.to(tl.int64) * DIM
        tl.store(out + line * DIM + out_column[None], mean, inside[:, None])
        row = split * total + (segment * SEGMENT_ROWS + token) * HEADS + head
        tl.store(peaks + row, peak, inside)
        tl.store(sums + row, mass, inside)


@jit
def _sight(
    what, begin, count, token, first_row, segment_row, since, until, SHARE: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """The positions [low, high) that each row of a tile sees, and where those of its last token stop.

    The tile's rows are from `first_row` on, SHARE for each token; `segment_row` is the segment's first.
    """
    high = tl.where(what >= KIND_DENOISE, begin + count, begin + token + 1)
    low = tl.zeros_like(high)
    if WINDOW:
        low = tl.maximum(tl.where(what >= KIND_DENOISE, begin, begin + token) - (WINDOW - 1), 0)
    last_token = tl.minimum((first_row + token.shape[0] - 1) // SHARE, count - 1)
    stop = tl.where(what >= KIND_DENOISE, begin + count, begin + last_token + 1)
    if what == KIND_ENCODE_IMAGES:
        here = segment_row + token
        high = tl.maximum(high, tl.load(until + here, token < count, other=0))
        low = tl.minimum(low, tl.load(since + here, token < count, other=1 << 30))
        stop = tl.load(until + segment_row + last_token)
    return low, high, stop


@jit
def _keys_of_split(
    what, begin, count, split, splits, low, stop, segment_row, since, until, WINDOW: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """The keys [base, stop) that one split reads for a tile.

    A segment's keys are divided among its splits before tiles pick theirs, so that a row's splits never change.
    """
    base = tl.maximum(begin - (WINDOW - 1), 0) if WINDOW else 0
    end = begin + count
    if what == KIND_ENCODE_IMAGES:
        base = tl.minimum(base, tl.load(since + segment_row))
        end = tl.load(until + segment_row + count - 1)
    base = base // KEYS * KEYS
    turns = tl.cdiv(tl.cdiv(end - base, KEYS), splits)
    base += split * turns * KEYS
    stop = tl.minimum(stop, base + turns * KEYS)
    return tl.maximum(base, tl.min(low) // KEYS * KEYS), stop


@jit
def _take(
    peak, mass, mean, queries, pools, sight, begin, stop, WIDTH: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
    EDGE: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """Add keys begin..stop to the running softmax of a row tile: peak, mass and unscaled mean.

    A peak is the largest score in units of log 2, rounded. If it were stored unscaled and multiplied in every turn, the
    product and the difference would be fused into one instruction, and a row's mean would change slightly in turns
    without a key that it sees. The number of such turns depends on the tile.
    """
    DIM: tl.constexpr = queries.shape[1]
    COLUMNS: tl.constexpr = mean.shape[1]
    keys, values, pages, positions, key_column, value_column = pools
    low, high = sight
    page = tl.load(pages + begin // PAGE, begin < stop, other=0)
    for at in tl.range(begin, stop, KEYS):
        place = page * PAGE + at % PAGE
        page = tl.load(pages + (at + KEYS) // PAGE, at + KEYS < stop, other=0)  # early, for the next turn's copy
        key = load_tile(keys, place, key_column, positions, WIDTH, KEYS, DIM, BULK).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee")
        if EDGE:
            position = (at + tl.arange(0, KEYS))[None]
            scores = tl.where((position >= low[:, None]) & (position < high[:, None]), scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * LOG2E)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # a row may have seen nothing yet
        weights = tl.exp2(scores * LOG2E - shift[:, None])
        decay = tl.exp2(peak - shift)  # exactly 1 where the turn brought nothing
        mass = mass * decay + tl.sum(weights, 1)
        value = load_tile(values, place, value_column, positions, WIDTH, KEYS, COLUMNS, BULK).to(queries.dtype)
        mean = tl.dot(weights.to(value.dtype), value, mean * decay[:, None], input_precision="ieee")
        peak = new_peak
    return peak, mass, mean


@jit(varying=("total",))
def _merge_kernel(
    partial, peaks, sums, kind, length, out, scales, total, SEGMENT_ROWS: tl.constexpr, HEADS: tl.constexpr,
    DIM: tl.constexpr, SPLITS: tl.constexpr, FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The splits' means of BLOCK heads of one row, weighted by what they saw; always in the same order."""
    await_inputs()
    row, head = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = row * HEADS + head
    column = tl.arange(0, DIM)[None]
    inside = head < HEADS
    segment = row // SEGMENT_ROWS
    live = (tl.load(kind + segment) != KIND_UNUSED) & (row % SEGMENT_ROWS < tl.load(length + segment))
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        highest = tl.maximum(highest, tl.load(peaks + split * total + line, inside & live, other=0.0))
    mass = tl.zeros([BLOCK], tl.float32)
    mean = tl.zeros([BLOCK, DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        scale = tl.exp2(tl.load(peaks + split * total + line, inside & live, other=0.0) - highest)
        mass += scale * tl.load(sums + split * total + line, inside & live, other=1.0)
        place = (split * total + line).to(tl.int64)[:, None] * DIM + column
        mean += scale[:, None] * tl.load(partial + place, (inside & live)[:, None], other=0.0)
    mean = mean / mass[:, None]
    if FP8:  # all heads of the row are here
        mean = mean.to(tl.bfloat16).to(tl.float32)
        unit = e4m3_unit(tl.max(tl.max(tl.where(inside[:, None], tl.abs(mean), 0.0), 1), 0))
        tl.store(scales + row, unit)
        mean *= 1.0 / unit
    tl.store(out + line.to(tl.int64)[:, None] * DIM + column, mean.to(out.dtype.element_ty), inside[:, None])
