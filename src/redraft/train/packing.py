"""Packing: clean rows from whole or cut documents, as vectorised numpy on flat arrays.

A `Segment` table says which piece of which document goes where; everything else (tokens, positions, weights, canvases)
is index arithmetic on it. Batch i is a pure function of (seed, i), so a resumed run sees what it would have seen.

Shapes: R rows of one source, T clean tokens per row, S segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from redraft.errors import SettingError
from redraft.train.canvases import Fillers, chat_canvases, text_canvases
from redraft.train.recipe import Recipe, SourceSettings
from redraft.train.sources import ChatSource, Ints, Part, Pool, TextShard, Tokens, open_sources

Arrays = dict[str, np.ndarray]
_STREAMS: dict[Part, int] = {"train": 0, "heldout": 1}


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Pieces of documents in rows, int64 [S] each, sorted by row and offset.

    A piece shows flat tokens [start, start + length) at `offset` of `row`; its document continues until `end`. The
    first `prompt` tokens of the piece are only context, and so are the document's last `suffix` tokens, which go in the
    canvas after a hole. `number` counts the pieces of a row.
    """

    row: Ints
    offset: Ints
    start: Ints
    length: Ints
    end: Ints
    prompt: Ints
    suffix: Ints
    number: Ints

    @classmethod
    def from_pieces(cls, pieces: Iterable[tuple[int, ...]]) -> Segments:
        """From (row, offset, start, length, end, prompt, suffix) tuples, sorted."""
        table = np.array(list(pieces), np.int64).reshape(-1, 7)
        row = table[:, 0]
        number = np.arange(len(row)) - np.searchsorted(row, row)
        names = ("row", "offset", "start", "length", "end", "prompt", "suffix")
        return cls(**dict(zip(names, table.T, strict=True)), number=number)


def chat_segments(pool: Pool, tries: Ints, tokens: int, canvas: int, *, clean_answer: bool) -> Segments:
    """Fill each row with the documents to try, in order; one whose prompt does not fit is skipped.

    Without `clean_answer`, text that only a document's last canvas contains stays out of the clean stream.
    """
    starts, ends, prompts, suffixes = pool.starts, pool.ends, pool.prompts, pool.suffixes
    lengths = ends - starts
    if not clean_answer:
        lengths = prompts + (lengths - suffixes - prompts - 1) // canvas * canvas
    pieces = []
    for row, documents in enumerate(tries):
        columns = (array[documents].tolist() for array in (starts, lengths, ends, prompts, suffixes))
        offset = 0
        for start, length, end, prompt, suffix in zip(*columns, strict=True):
            if prompt > tokens - offset:
                continue
            shown = min(length, tokens - offset)
            pieces.append((row, offset, start, shown, end, prompt, suffix))
            offset += shown
            if offset == tokens:
                break
    return Segments.from_pieces(pieces)


def text_segments(source: TextShard, windows: tuple[Ints, Ints]) -> Segments:
    """The documents that each window [start, end) touches, in order."""
    first = np.searchsorted(source.offsets, windows[0], side="right") - 1
    last = np.searchsorted(source.offsets, windows[1], side="left")
    pieces = []
    for row, (start, end, low, high) in enumerate(zip(*(a.tolist() for a in (*windows, first, last)), strict=True)):
        edges = source.offsets[low : high + 1].tolist()
        for begin, stop in itertools.pairwise(edges):
            shown = min(stop, end) - max(begin, start)
            if shown > 0:
                piece_start = max(begin, start)
                pieces.append((row, piece_start - start, piece_start, shown, stop, 0, 0))
    return Segments.from_pieces(pieces)


def clean_rows(tokens: Tokens, segments: Segments, rows: int, length: int, prompt_weight: float) -> Arrays:
    """tokens, document, position and encoder_weight [R,T] of a segment table.

    `prompt_weight` is the weight of what a document only gives: its prompt, and its text after a hole.
    """
    inside = np.arange(segments.length.sum()) - np.repeat(np.cumsum(segments.length) - segments.length, segments.length)
    place = np.repeat(segments.row * length + segments.offset, segments.length) + inside
    source = np.repeat(segments.start, segments.length) + inside
    last = np.repeat(segments.length, segments.length) - 1
    prompt = np.repeat(segments.prompt, segments.length)
    given = (inside + 1 < prompt) | (source + 1 >= np.repeat(segments.end - segments.suffix, segments.length))
    out: Arrays = {
        "tokens": np.zeros(rows * length, np.int32),
        "document": np.full(rows * length, -1, np.int32),
        "position": np.tile(np.arange(length, dtype=np.int32), rows),
        "encoder_weight": np.zeros(rows * length, np.float32),
    }
    out["tokens"][place] = tokens[source]
    out["document"][place] = np.repeat(segments.number, segments.length)
    out["position"][place] = inside
    out["encoder_weight"][place] = np.where(inside < last, np.where(given, prompt_weight, 1.0), 0.0)
    return {name: array.reshape(rows, length) for name, array in out.items()}


class Packer:
    """Makes the batches of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        """Opens the sources. Raises `SettingError` for wrong ones, and where there is nothing to evaluate on."""
        self.recipe, self.data = recipe, recipe.data
        self.sources = open_sources(recipe.data, recipe.model.vocab_size, recipe.model.canvas_length)
        shares = np.array([source.share for source in recipe.data.sources])
        self._edges = np.concatenate([[0.0], np.cumsum(shares) / shares.sum()])
        self._edges[-1] = 1.0
        if recipe.run.evaluate_every:
            self._check_heldout()

    def batch(self, index: int, part: Part = "train") -> Arrays:
        """Arrays of batch `index`, named as fields of `Batch`; a pure function of the seed and its arguments."""
        if part == "heldout":
            self._check_heldout()
        rng = np.random.default_rng((self.recipe.run.seed, _STREAMS[part], index))
        parts = []
        for number, (first, rows) in enumerate(self.rows_of(index)):
            if rows:
                parts.append(self._source_rows(number, first, rows, rng, part) | self._common(number, rows))
        order = rng.permutation(self.data.rows)
        return {name: np.concatenate([p[name] for p in parts])[order] for name in parts[0]}

    def _check_heldout(self) -> None:
        """Raises `SettingError` for a source that uses all its documents for training."""
        for settings, source in zip(self.data.sources, self.sources, strict=True):
            if not source.holds_out:
                raise SettingError(
                    f"source {settings.name}: no document is held out for evaluation; raise heldout above 0 and give "
                    "at least two documents, or set run.evaluate_every to 0."
                )

    def _common(self, number: int, rows: int) -> Arrays:
        """The arrays that are the same in all rows of source `number`."""
        out: Arrays = {"source": np.full(rows, number, np.int64)}
        if self.data.rolls_out:
            out["rollout"] = np.full(rows, self.data.sources[number].rollout, np.float32)
        return out

    def rows_of(self, index: int) -> list[tuple[int, int]]:
        """For each source (about how many rows came in earlier batches, how many come in batch `index`)."""
        before = self._edges * (self.data.rows * index)
        # One shared random-looking phase per batch distributes the fractions of rows fairly.
        phase = (0.5 + index * 0.754_877_666_246_692_7) % 1.0
        edges = np.floor(self._edges * self.data.rows + phase).astype(int)
        return list(zip(np.diff(before).astype(int).tolist(), np.diff(edges).tolist(), strict=True))

    def _source_rows(self, number: int, first: int, rows: int, rng: np.random.Generator, part: Part) -> Arrays:
        settings, source = self.data.sources[number], self.sources[number]
        if isinstance(source, TextShard):
            return self._text_rows(settings, source, first, rows, rng, part)
        return self._chat_rows(settings, source, rows, rng, part)

    def _chat_rows(
        self, settings: SourceSettings, source: ChatSource, rows: int, rng: np.random.Generator, part: Part
    ) -> Arrays:
        pool, tries = source.draw(rng, rows, part)
        length, canvas = self.data.tokens, self.recipe.model.canvas_length
        segments = chat_segments(pool, tries, length, canvas, clean_answer=settings.clean_answer)
        clean = clean_rows(pool.tokens, segments, rows, length, settings.prompt_weight)
        shape = (rows, self.data.canvases, canvas)
        return clean | chat_canvases(pool.tokens, segments, shape, settings, rng, self._fillers, source.marks)

    def _text_rows(
        self, settings: SourceSettings, source: TextShard, first: int, rows: int, rng: np.random.Generator, part: Part
    ) -> Arrays:
        length = self.data.tokens
        windows = source.windows(rng, first, rows, length, part)
        segments = text_segments(source, windows)
        clean = clean_rows(source.tokens, segments, rows, length, 1.0)
        # A window that begins inside a document still begins with <bos>, as a cut prompt does.
        clean["tokens"][:, 0] = self.recipe.model.bos_token_id
        shape = (rows, self.data.canvases, self.recipe.model.canvas_length)
        return clean | text_canvases(source, segments, clean, shape, settings, rng, self._fillers)

    @property
    def _fillers(self) -> Fillers:
        return Fillers(eos=self.recipe.model.eos_token_id[0], pad=self.recipe.model.pad_token_id)
