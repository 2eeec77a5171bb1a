"""Which piece of which document goes where in packed rows, and the clean tokens that follow from it.

Tokens, positions and weights, and canvases (`canvases.py`), are index arithmetic on a table of segments, as vectorised
numpy on flat arrays.

Shapes: R rows of one source, T clean tokens per row, S segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from redraft.train.sources import Ints, Pool, TextShard, Tokens

Arrays = dict[str, np.ndarray]
"""Arrays of a batch, or of rows of it, named as fields of `Batch`."""


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
