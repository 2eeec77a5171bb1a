"""Choosing the canvases of packed rows, and where in them noise may occur.

Chat documents are cut into consecutive canvases after their prompt; in some of them everything but a hole may be given.
Plain text may be drafted from any position, or have a hole: whole lines, the end of a line, or a random span, with the
text after it given, as in `fill`; the given text may have further holes. A hole may have spare room: it is then longer
than its text, and padding fills the rest.

Shapes: R rows, N canvases per row, C tokens per canvas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redraft.train.holes import answer_holes, extra_holes
from redraft.train.recipe import SourceSettings
from redraft.train.segments import Arrays, Segments
from redraft.train.sources import Ints, TextShard, Tokens

Bools = NDArray[np.bool_]
Shape = tuple[int, int, int]
_LINES, _LINE_ODDS = np.arange(1, 5), np.array([0.55, 0.2, 0.15, 0.1])
_LONGEST_SPAN = 48
_MOST_SPARE = 40


def chat_canvases(
    tokens: Tokens, segments: Segments, shape: Shape, settings: SourceSettings, rng: np.random.Generator,
    fillers: Fillers, marks: Bools | None = None,
) -> Arrays:  # fmt: skip
    """N canvases per row from all that its documents, at least one, offer; where they offer fewer, some are repeated.

    With `marks` [V], a share of them are answers in which everything but a hole is given.
    """
    segment, start = _offers(segments, shape[2])
    chosen = _deal(segments.row[segment], shape, rng)  # [R,N]
    owner, start = segment[chosen], start[chosen]
    end = _hole_end(segments, owner, start, shape[2])
    is_hole = np.zeros(shape[:2], bool)
    if marks is not None and settings.infill:
        is_hole = rng.random(shape[:2]) < settings.infill
    # If only a smaller hole is not given, spare room would be given text.
    layout = Layout.draw(end, (segments.suffix[owner] > 0) & ~is_hole, shape[2], settings, rng)
    target, filled = _cut(tokens, segments, owner, start, layout, fillers)
    region = np.arange(shape[2]) < layout.end[..., None]
    if marks is not None and settings.infill:
        given = filled | ~region  # also the text after a hole that the document itself has
        hole = answer_holes(target, given, marks, piece_share=settings.line_holes, rng=rng, longest=_LONGEST_SPAN)
        hole |= extra_holes(target, marks, settings.extra_holes, rng) & ~filled
        region &= hole | ~is_hole[..., None]
    return {
        "canvas_target": target,
        "canvas_document": segments.number[owner].astype(np.int32),
        "canvas_start": start.astype(np.int32),
    } | _noise(region, is_hole, filled, settings)


def text_canvases(
    source: TextShard, segments: Segments, clean: Arrays, shape: Shape, settings: SourceSettings,
    rng: np.random.Generator, fillers: Fillers,
) -> Arrays:  # fmt: skip
    """N canvases per row of plain text, each either a draft of all its tokens or a hole in given text."""
    spots = Spots.draw(segments, clean, shape, rng)
    canvas = TextCanvases.draw(source, spots, shape[2], settings, rng)
    layout = Layout.draw(canvas.high, canvas.is_hole, shape[2], settings, rng)
    start, usable = canvas.start - segments.start[spots.owner], spots.owner >= 0
    target, filled = _cut(source.tokens, segments, spots.owner, start, layout, fillers)
    at = np.arange(shape[2])
    region = (at >= canvas.low[..., None]) & (at < layout.end[..., None])
    if settings.extra_holes:
        region |= extra_holes(target, source.marks, settings.extra_holes, rng) & canvas.is_hole[..., None] & ~filled
    region &= usable[..., None]
    return {
        "canvas_target": target,
        "canvas_document": np.where(usable, segments.number[spots.owner], -2).astype(np.int32),
        "canvas_start": np.where(usable, start, 0).astype(np.int32),
    } | _noise(region, canvas.is_hole, filled, settings)


def _hole_end(segments: Segments, owner: Ints, start: Ints, canvas: int) -> Ints:
    """Where given text after a hole begins in canvases [R,N] from `start` on; the canvas length if there is none."""
    left = segments.end[owner] - segments.suffix[owner] - segments.start[owner] - start
    return np.where(segments.suffix[owner] == 0, canvas, np.minimum(left, canvas))


@dataclass(frozen=True, kw_only=True)
class Fillers:
    """The filling tokens: `eos` after the end of a canvas' text, `pad` in the spare room of a hole."""

    eos: int
    pad: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which token of its text is at each position of canvases: `at` [R,N,C], counted from the canvas' start.

    Where `spare` [R,N,C] is set there is none: the hole, which extends to `end` [R,N], is longer than its text.
    """

    at: Ints
    spare: Bools
    end: Ints

    @classmethod
    def draw(
        cls, high: Ints, may_spare: Bools, canvas: int, settings: SourceSettings, rng: np.random.Generator
    ) -> Layout:
        """Canvases whose holes' texts end at `high` [R,N], with spare room in a share of those that allow it."""
        room = np.minimum(canvas - high, _MOST_SPARE)
        count = np.zeros_like(high)
        if settings.spare_holes:
            wanted = may_spare & (rng.random(high.shape) < settings.spare_holes)
            count = np.where(wanted, np.minimum(1 + (rng.random(high.shape) * room).astype(np.int64), room), 0)
        behind = np.arange(canvas) - high[..., None]
        return cls(
            at=np.arange(canvas) - np.clip(behind, 0, count[..., None]),
            spare=(behind >= 0) & (behind < count[..., None]),
            end=high + count,
        )


def _noise(region: Bools, is_hole: Bools, filled: Bools, settings: SourceSettings) -> Arrays:
    """What a canvas has of noise: its region and loss weights, [R,N,C], and how likely it is nothing else, [R,N].

    `region` and `filled` are [R,N,C], `is_hole` [R,N].
    """
    fill = np.where(_after_first(filled), settings.fill_weight, 1.0)
    weight = region * np.where(is_hole, settings.hole_weight, 1.0)[..., None] * fill
    return {
        "noise_region": region,
        "canvas_weight": weight.astype(np.float32),
        "full_noise": np.where(is_hole, settings.hole_full_noise, settings.full_noise).astype(np.float32),
    }


@dataclass(frozen=True, kw_only=True)
class Spots:
    """Where in plain text canvases are drafted or have their hole: random flat positions `here`, [R,N] as all fields.

    `owner` is the segment there, and tokens [first, end) of its document may be noise; it is -1 if there are none, and
    then the other fields mean nothing.
    """

    owner: Ints
    here: Ints
    first: Ints
    end: Ints

    @classmethod
    def draw(cls, segments: Segments, clean: Arrays, shape: Shape, rng: np.random.Generator) -> Spots:
        """Uniform over the clean tokens of each row; the first token of a segment stays, as context."""
        used = (clean["document"] >= 0).sum(1)[:, None]  # rows of text are filled from the left without gaps
        place = (rng.random(shape[:2]) * np.maximum(used, 1)).astype(np.int64)
        taken = np.take_along_axis(clean["document"], place, 1) >= 0
        owner = _owners(segments, place, taken)
        first, end = segments.start[owner] + 1, segments.end[owner]
        here = segments.start[owner] + np.take_along_axis(clean["position"], place, 1).astype(np.int64)
        return cls(
            owner=np.where(taken & (first < end), owner, -1), here=np.clip(here, first, end - 1), first=first, end=end
        )


@dataclass(frozen=True, kw_only=True)
class TextCanvases:
    """Canvases of plain text, [R,N] each: flat `start`, noise region [low, high) inside, and whether it is a hole."""

    start: Ints
    low: Ints
    high: Ints
    is_hole: NDArray[np.bool_]

    @classmethod
    def draw(
        cls, source: TextShard, spots: Spots, canvas: int, settings: SourceSettings, rng: np.random.Generator
    ) -> TextCanvases:
        """One canvas of length `canvas` at each spot."""
        here, first = spots.here, spots.first
        is_hole = rng.random(here.shape) < settings.infill
        lines = rng.random(here.shape) < settings.line_holes
        line_low, line_high = _line_holes(source, spots, rng)
        span = np.exp(rng.random(here.shape) * np.log(_LONGEST_SPAN)).astype(np.int64)
        fits = lines & (line_high > line_low) & (line_high - line_low <= canvas * 3 // 4) & (line_low >= first)
        low = np.where(fits, line_low, here)
        high = np.where(fits, line_high, np.minimum(here + np.minimum(span, canvas // 2), spots.end))
        # Most holes begin the canvas, as in `fill`; some have given text of the canvas on both sides.
        room = np.where(rng.random(here.shape) < 0.6, 0, canvas - (high - low))
        lead = (rng.random(here.shape) * (room + 1)).astype(np.int64)
        start = np.where(is_hole, np.maximum(low - lead, first), here)
        return cls(
            start=start,
            low=np.where(is_hole, low - start, 0),
            high=np.where(is_hole, high - start, canvas),
            is_hole=is_hole,
        )


def _line_holes(source: TextShard, spots: Spots, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Flat [low, high), [R,N]: one to four lines from the spot's; half keep the last line end, some begin mid-line."""
    newlines, here = source.newlines, spots.here
    if len(newlines) == 0:
        return here, here
    line = np.searchsorted(newlines, here)  # the line end at or after `here`
    low = np.maximum(np.where(line > 0, newlines[line - 1] + 1, 0), spots.first)
    count = rng.choice(_LINES, here.shape, p=_LINE_ODDS)
    last = np.minimum(line + count - 1, len(newlines) - 1)
    high = np.minimum(newlines[last] + (rng.random(here.shape) < 0.5), spots.end)
    low = np.where(rng.random(here.shape) < 0.25, here, low)
    return low, high


def _owners(segments: Segments, place: Ints, usable: NDArray[np.bool_]) -> Ints:
    """The segment [R,N] at each place; 0 where there is none."""
    width = 1 << 20
    keys = segments.row * width + segments.offset
    wanted = np.arange(len(place))[:, None] * width + place
    return np.where(usable, np.maximum(np.searchsorted(keys, wanted, side="right") - 1, 0), 0)


def _offers(segments: Segments, canvas: int) -> tuple[Ints, Ints]:
    """All canvases that can be trained: their segment and their start within the document.

    Canvas k starts k * C after the prompt; everything before it must be in the clean stream.
    """
    answer = segments.end - segments.suffix - segments.start - segments.prompt
    visible = segments.length - segments.prompt
    count = np.minimum((answer + canvas - 1) // canvas, visible // canvas + 1)
    segment = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(count) - count, count)
    return segment, segments.prompt[segment] + number * canvas


def _deal(row: Ints, shape: Shape, rng: np.random.Generator) -> Ints:
    """For every row N of its offers (given by their rows, sorted) in random order, repeating them if too few."""
    order = np.lexsort((rng.random(len(row)), row))
    first = np.searchsorted(row, np.arange(shape[0]))
    count = np.bincount(row, minlength=shape[0])
    return order[first[:, None] + np.arange(shape[1]) % count[:, None]]


def _cut(
    tokens: Tokens, segments: Segments, owner: Ints, start: Ints, layout: Layout, fillers: Fillers
) -> tuple[NDArray[np.int32], Bools]:
    """Tokens [R,N,C] from position `start` [R,N] of segment `owner`, and where they are only filling."""
    flat = (segments.start[owner] + start)[..., None] + layout.at
    ended = (flat >= segments.end[owner][..., None]) | (owner < 0)[..., None]
    target = np.where(ended, fillers.eos, tokens[np.where(ended, 0, flat)])
    return np.where(layout.spare, fillers.pad, target).astype(np.int32), ended | layout.spare


def _after_first(filled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Filled positions [...,C] whose left neighbour is filled too."""
    out = np.zeros_like(filled)
    out[..., 1:] = filled[..., 1:] & filled[..., :-1]
    return out
