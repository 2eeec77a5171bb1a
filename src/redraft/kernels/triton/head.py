"""The vocabulary head and everything a step needs from its logits, in one product and one small pass.

The product's epilogue stores the logits as bf16 (what a bf16 linear layer returns) and reduces every tile of the
vocabulary to its largest logit and two sums over x, the soft-capped and tempered logits in units of ln 2: the mass
2^(x-m) and the moment (x-m) 2^(x-m). The second kernel merges a row's tiles into argmax, entropy and an exact sample:
it picks a tile by the inverse cumulative distribution of the tiles' masses, then a token inside that one tile.

Shapes: S segments of L rows, R = S*L rows, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.config import MAX_END_IDS
from redraft.kernels.gluon import head as gluon_head
from redraft.kernels.packed import PackedFp8, Rows8, values_and_scale
from redraft.kernels.triton import philox
from redraft.kernels.triton.descriptors import bulk_copies, descriptor, load_tile, store_tile
from redraft.kernels.triton.hardware import processors, roomy
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import LN2, LOG2E, LOWEST, cdiv, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.linear import linear
from redraft.kernels.triton.philox import Counters, uniform_of
from redraft.kernels.triton.quantize import quantize_rows
from redraft.kernels.triton.segments import KIND_DENOISE, KIND_UNUSED, Segments
from redraft.kernels.triton.softcap import bounded, capped, tempered
from redraft.kernels.vocabulary import NEVER

END_IDS = MAX_END_IDS
"""How many end-of-text ids of a request kernels take; unused ones are -1."""

FP8_TOGETHER = 512
"""Inputs whose FP8 products the matrix unit adds up; their sums are added in fp32. The unit keeps 13 to 14 bits of a
sum and cuts off the rest: over 2,816 inputs, a logit would be 1% too small if hidden state and token point the same
way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a step decides by, for every row [R]: int32 token ids, and the tempered distribution's entropy in nats."""

    argmax: Tensor
    candidate: Tensor
    entropy: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadResult(Choice):
    """The prediction for every row, [R] each. Rows outside DENOISE segments are meaningless (padding: finite numbers).

    peak                the largest tempered logit
    tiles               statistics of the vocabulary's tiles, for `self_conditioning`; None from the twin
    """

    peak: Tensor
    tiles: Tiles | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """Per row and tile of `size` tokens, fp32 [R,V/size]: the largest raw logit, the mass and the moment."""

    peaks: Tensor
    masses: Tensor
    moments: Tensor
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadTile:
    """How Triton's product is cut: rows x tokens of the vocabulary, in steps of `depth` along the width."""

    rows: int
    tokens: int
    depth: int
    warps: int
    stages: int


def predict(
    hidden: Tensor,
    embedding: Tensor | PackedFp8,
    cap: float,
    temperatures: Tensor,
    counters: Counters,
    segments: Segments,
    logits: Tensor,
    not_first: Tensor | None = None,
    *,
    tile: HeadTile | None = None,
) -> HeadResult:
    """Logits, argmax, entropy and one sample of every canvas row.

    hidden [R,D], tied embedding [V,D], temperatures fp32 [S]. `logits` [R,V] in hidden's dtype receives the raw logits
    (not capped, not tempered) of canvas rows; an embedding in FP8 makes an FP8 product. Segments that are not DENOISE
    cost nothing, and their logits are meaningless. `not_first` int32 [S,8] are tokens that a segment's first row cannot
    have, unused ones -1: their logits become `NEVER`, with which `soft_embeddings` takes them for the least likely that
    the cap allows. With `tile` the product is Triton's, in that shape.
    """
    tiles = multiply(hidden, embedding, cap, temperatures, segments, logits, tile=tile)
    return sample(logits, tiles, cap, temperatures, counters, segments, not_first)


def multiply(
    hidden: Tensor, embedding: Tensor | PackedFp8, cap: float, temperatures: Tensor, segments: Segments, logits: Tensor,
    *, tile: HeadTile | None = None,
) -> Tiles | None:  # fmt: skip
    """The logits of `predict`, and their tiles; none from the twin."""
    rows = quantize_rows(hidden) if isinstance(embedding, PackedFp8) else hidden
    if use_triton(hidden):
        return _multiply(rows, embedding, cap, temperatures, segments, logits, tile)
    linear(rows, embedding, logits, logits.dtype)
    return None


def sample(
    logits: Tensor, tiles: Tiles | None, cap: float | None, temperatures: Tensor, counters: Counters,
    segments: Segments, not_first: Tensor | None = None,
) -> HeadResult:  # fmt: skip
    """The result of `predict` for raw logits [R,V] with known statistics. Without a cap they are only tempered."""
    if use_triton(logits):
        assert tiles is not None
        return _finish(logits, tiles, cap, temperatures, counters, segments, not_first)
    x = tempered(logits, cap, temperatures)
    if not_first is not None:
        segment, which = (not_first >= 0).nonzero(as_tuple=True)
        impossible = segment * segments.rows, not_first[segment, which].long()
        logits[impossible], x[impossible] = NEVER, NEVER
    peak, argmax = x.max(-1)
    weights = (x - peak[:, None]).exp()  # [R,V]
    total = weights.sum(-1)
    entropy = (total.log() - torch.linalg.vecdot(weights, x - peak[:, None]) / total).clamp(min=0)
    candidate = _invert(weights, philox.uniform(counters, segments.rows).flatten(), argmax)
    return HeadResult(argmax=argmax.int(), candidate=candidate.int(), entropy=entropy, peak=peak)


def _invert(weights: Tensor, uniform: Tensor, fallback: Tensor) -> Tensor:
    """Index per row where the cumulative weights [R,V] pass a share `uniform` fp64 [R] of their sum."""
    edges = weights.double().cumsum(-1)
    token = torch.searchsorted(edges, uniform[:, None] * edges[:, -1:], right=True)[:, 0].clamp(max=edges.shape[1] - 1)
    return torch.where(weights.gather(1, token[:, None])[:, 0] > 0, token, fallback)


def tuned(hidden: Tensor) -> HeadTile:
    """The shape measured fastest on one H200, one that fits elsewhere, and one for fp32, which has no fast product."""
    if hidden.element_size() == 4:
        return HeadTile(rows=16, tokens=64, depth=32, warps=4, stages=2)
    if not roomy(hidden.device):
        return HeadTile(rows=64, tokens=128, depth=128 // hidden.element_size(), warps=4, stages=2)
    if hidden.element_size() == 1:
        return HeadTile(rows=128, tokens=128, depth=128, warps=8, stages=4)
    return HeadTile(rows=128, tokens=256, depth=64, warps=8, stages=3)


def _multiply(
    hidden: Tensor | Rows8, embedding: Tensor | PackedFp8, cap: float, temperatures: Tensor, segments: Segments,
    logits: Tensor, tile: HeadTile | None,
) -> Tiles:  # fmt: skip
    (x, row_scale), (table, token_scale) = values_and_scale(hidden), values_and_scale(embedding)
    (rows, width), vocab = x.shape, len(table)
    assert segments.rows % 16 == 0, "live rows are looked for at every 16th"
    in_gluon = gluon_head.tile_for(x, vocab) if tile is None else None
    tile = tile or tuned(x)
    size = tile.tokens if in_gluon is None else in_gluon.tokens
    together = min(width, FP8_TOGETHER) if x.element_size() == 1 else width
    parts = [torch.empty(rows, cdiv(vocab, size), dtype=torch.float32, device=x.device) for _ in range(3)]
    tiles = Tiles(peaks=parts[0], masses=parts[1], moments=parts[2], size=size)
    if in_gluon is not None:
        scales = row_scale, token_scale
        gluon_head.multiply(x, table, scales, cap, temperatures, segments, logits, parts, in_gluon, together)
        return tiles
    row_tiles, token_tiles = cdiv(rows, tile.rows), cdiv(vocab, tile.tokens)
    _head_kernel[(min(row_tiles * token_tiles, processors(x.device)),)](
        descriptor(x, tile.rows, tile.depth), descriptor(table, tile.tokens, tile.depth),
        descriptor(logits, tile.rows, tile.tokens), row_scale, token_scale, *parts, temperatures, segments.kind,
        segments.length, rows, width, vocab, cap, SEGMENT_ROWS=segments.rows, TILE=tile.rows, TOKENS=tile.tokens,
        DEPTH=tile.depth, TOGETHER=together // tile.depth if together < width else 0,
        MAP=max(16, next_power_of_2(row_tiles)), EVEN=vocab % tile.tokens == 0, BULK=bulk_copies(x.device),
        num_warps=tile.warps, num_stages=tile.stages, **early(x),
    )  # fmt: skip
    return tiles


def _finish(
    logits: Tensor, tiles: Tiles, cap: float | None, temperatures: Tensor, counters: Counters, segments: Segments,
    not_first: Tensor | None,
) -> HeadResult:  # fmt: skip
    rows, vocab = logits.shape
    argmax, candidate = (torch.empty(rows, dtype=torch.int32, device=logits.device) for _ in range(2))
    entropy, peak = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    count = tiles.peaks.shape[1]
    _finish_kernel[(rows,)](
        logits, tiles.peaks, tiles.masses, tiles.moments, temperatures, segments.kind, segments.length, counters.seed,
        counters.canvas, counters.step, not_first, argmax, candidate, entropy, peak, vocab, cap,
        SEGMENT_ROWS=segments.rows, TOKENS=tiles.size, COUNT=count, BLOCK=next_power_of_2(count), END_IDS=END_IDS,
        num_warps=4, **early(logits),
    )  # fmt: skip
    return HeadResult(argmax=argmax, candidate=candidate, entropy=entropy, peak=peak, tiles=tiles)


@jit(varying=("rows",))
def _head_kernel(
    hidden, embedding, logits, row_scale, token_scale, peaks, masses, moments, temperatures, kind, length, rows, width,
    vocab, cap, SEGMENT_ROWS: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
    TOGETHER: tl.constexpr, MAP: tl.constexpr, EVEN: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """Tiles of logits and their statistics; each program walks over its share, so that copies never pause.

    Row tiles of the same tokens are neighbours and so share the cache. The matrix unit adds up TOGETHER steps, 0 for
    all; their sums are added in fp32.
    """
    await_inputs()
    # Row tiles without a canvas row are left out. Live rows come first in their segment and start at multiples of 16.
    tile = tl.arange(0, MAP)
    sample = tile[:, None] * TILE + tl.arange(0, TILE // 16)[None] * 16
    live = sample < rows
    live &= tl.load(kind + sample // SEGMENT_ROWS, live, other=KIND_UNUSED) == KIND_DENOISE
    live &= sample % SEGMENT_ROWS < tl.load(length + sample // SEGMENT_ROWS, live, other=0)
    wanted = tl.max(live.to(tl.int32), 1)
    rank, row_tiles = tl.cumsum(wanted, 0) - 1, tl.sum(wanted, 0)
    token_tiles = tl.cdiv(vocab, TOKENS)

    for index in tl.range(tl.program_id(0), row_tiles * token_tiles, tl.num_programs(0), flatten=True):
        matches = (rank == index % row_tiles) & (wanted != 0)
        first_row, token_tile = tl.sum(tl.where(matches, tile, 0), 0) * TILE, index // row_tiles
        place = (first_row, token_tile * TOKENS, rows, vocab, width)
        if TOGETHER == 0:
            total = _product(hidden, embedding, place, 0, width, TILE, TOKENS, DEPTH, BULK)
        else:
            total = tl.zeros([TILE, TOKENS], tl.float32)
            for begin in tl.range(0, width, TOGETHER * DEPTH):
                end = tl.minimum(begin + TOGETHER * DEPTH, width)
                total += _product(hidden, embedding, place, begin, end, TILE, TOKENS, DEPTH, BULK)

        token = token_tile * TOKENS + tl.arange(0, TOKENS)[None]
        row = first_row + tl.arange(0, TILE)
        if token_scale is not None:
            total *= tl.load(token_scale + token, token < vocab, other=0.0)
            total *= tl.load(row_scale + row, row < rows, other=0.0)[:, None]
        stored = total.to(logits.dtype if BULK else logits.dtype.element_ty)
        store_tile(logits, stored, first_row, token_tile * TOKENS, rows, vocab, TILE, TOKENS, BULK)
        logit = stored.to(tl.float32)
        if not EVEN:
            logit = tl.where(token < vocab, logit, float("-inf"))
        temperature = tl.load(temperatures + row // SEGMENT_ROWS, row < rows, other=1.0)
        peak = tl.max(logit, 1)
        unit = cap * LOG2E / temperature
        x = bounded(logit, cap, (unit - capped(peak, cap, temperature))[:, None], (-2.0 * unit)[:, None])
        weight = tl.exp2(x)
        if not EVEN:
            weight = tl.where(token < vocab, weight, 0.0)
        here = row * token_tiles + token_tile
        tl.store(peaks + here, peak, row < rows)
        tl.store(masses + here, tl.sum(weight, 1), row < rows)
        tl.store(moments + here, tl.sum(weight * x, 1), row < rows)


@jit
def _product(
    hidden, embedding, place, begin, end, TILE: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
    BULK: tl.constexpr,
):  # fmt: skip
    """A tile's sums over inputs from `begin` up to `end`."""
    first_row, first_token, rows, vocab, width = place
    total = tl.zeros([TILE, TOKENS], tl.float32)
    for at in tl.range(begin, end, DEPTH):
        x = load_tile(hidden, first_row, at, rows, width, TILE, DEPTH, BULK)
        e = load_tile(embedding, first_token, at, vocab, width, TOKENS, DEPTH, BULK)
        total = tl.dot(x, tl.trans(e), total, input_precision="ieee")
    return total


@jit(varying=("seed", "canvas", "step", "not_first"))
def _finish_kernel(
    logits, peaks, masses, moments, temperatures, kind, length, seed, canvas, step, not_first, argmax, candidate,
    entropy, largest, vocab, cap, SEGMENT_ROWS: tl.constexpr, TOKENS: tl.constexpr, COUNT: tl.constexpr,
    BLOCK: tl.constexpr, END_IDS: tl.constexpr,
):  # fmt: skip
    """Merge the tiles of one row, then read two of them: the argmax's and the sample's."""
    await_inputs()
    row = tl.program_id(0)
    segment = row // SEGMENT_ROWS
    if (tl.load(kind + segment) != KIND_DENOISE) | (row % SEGMENT_ROWS >= tl.load(length + segment)):
        tl.store(argmax + row, 0)
        tl.store(candidate + row, 0)
        tl.store(entropy + row, 0.0)
        tl.store(largest + row, 0.0)
        return
    temperature = tl.load(temperatures + segment)
    tile = tl.arange(0, BLOCK)
    here, inside = row.to(tl.int64) * COUNT + tile, tile < COUNT
    raw_peaks = tl.load(peaks + here, inside, other=float("-inf"))
    mass = tl.load(masses + here, inside, other=0.0)
    moment = tl.load(moments + here, inside, other=0.0)
    never = None
    if not_first is not None:
        end, is_first = tl.arange(0, END_IDS), row % SEGMENT_ROWS == 0
        never = tl.load(not_first + segment * END_IDS + end, is_first, other=-1)
        for number in tl.range(END_IDS * is_first.to(tl.int32)):
            one = tl.sum(tl.where(end == number, never, 0), 0)
            if one >= 0:
                its = one // TOKENS
                tl.store(logits + row.to(tl.int64) * vocab + one, LOWEST)
                left = _statistics(logits, row, vocab, its * TOKENS + tl.arange(0, TOKENS), never, cap, temperature)
                raw_peaks = _replaced(raw_peaks, peaks, row * COUNT, tile, its, left[0])
                mass = _replaced(mass, masses, row * COUNT, tile, its, left[1])
                moment = _replaced(moment, moments, row * COUNT, tile, its, left[2])
    raw_peak = tl.max(raw_peaks, 0)
    peak = capped(raw_peak, cap, temperature)
    shift = tl.where(inside, capped(raw_peaks, cap, temperature) - peak, 0.0)
    scale = tl.where(inside, tl.exp2(shift), 0.0)
    weight = mass * scale
    total = tl.sum(weight, 0)
    moment = tl.sum(scale * (moment + shift * mass), 0)

    best = tl.min(tl.where(raw_peaks == raw_peak, tile, BLOCK), 0)
    token = best * TOKENS + tl.arange(0, TOKENS)
    logit, _ = _tile(logits, row, vocab, token, never)
    winner = tl.min(tl.where(logit == raw_peak, token, vocab - 1), 0)

    edges = tl.cumsum(weight.to(tl.float64), 0)
    target = uniform_of(tl.load(seed + segment), row % SEGMENT_ROWS, tl.load(step + segment), tl.load(canvas + segment))
    target *= tl.sum(tl.where(tile == BLOCK - 1, edges, 0.0), 0)
    which = tl.minimum(tl.sum((edges <= target).to(tl.int32), 0), COUNT - 1)
    target -= tl.sum(tl.where(tile == which - 1, edges, 0.0), 0)
    token = which * TOKENS + tl.arange(0, TOKENS)
    drawn, found = _drawn(logits, row, vocab, token, never, target, peak, cap, temperature, which * TOKENS)

    tl.store(argmax + row, winner)
    tl.store(candidate + row, tl.where(found, drawn, winner))
    nats = (tl.log2(total) - moment / total) * LN2
    tl.store(entropy + row, tl.where(nats < 0, 0.0, nats))  # NaN is kept, so that it gets noticed
    tl.store(largest + row, peak * LN2)


@jit
def _tile(logits, row, vocab, token, never):
    """One row's raw logits of some tokens, fp32, and which of these it can have; -inf for others."""
    possible = token < vocab
    if never is not None:
        possible &= tl.max((token[:, None] == never[None]).to(tl.int32), 1) == 0
    logit = tl.load(logits + row.to(tl.int64) * vocab + token, possible, other=float("-inf")).to(tl.float32)
    return logit, possible


@jit
def _drawn(logits, row, vocab, token, never, target, peak, cap, temperature, first):
    """Of a tile's tokens, from `first` on, the one at which their cumulated weights exceed `target`.

    Its weight may be 0, as sums are rounded: the second result is false then.
    """
    logit, possible = _tile(logits, row, vocab, token, never)
    weight = tl.where(possible, tl.exp2(capped(logit, cap, temperature) - peak), 0.0)
    passed = tl.cumsum(weight.to(tl.float64), 0) <= target
    drawn = first + tl.sum(passed.to(tl.int32), 0)
    return drawn, tl.sum(tl.where((token == drawn) & (weight > 0), 1, 0), 0) > 0


@jit
def _statistics(logits, row, vocab, token, never, cap, temperature):
    """The largest raw logit, mass and moment of some tokens, as `_head_kernel` stores them."""
    logit, possible = _tile(logits, row, vocab, token, never)
    peak = tl.max(logit, 0)
    x = tl.where(possible, capped(logit, cap, temperature) - capped(peak, cap, temperature), 0.0)
    weight = tl.where(possible, tl.exp2(x), 0.0)
    return peak, tl.sum(weight, 0), tl.sum(weight * x, 0)


@jit
def _replaced(values, stored, first, tile, which, value):
    """A row's values of all tiles, with that of one tile replaced, also where they are stored."""
    tl.store(stored + first + which, value)
    return tl.where(tile == which, value, values)
