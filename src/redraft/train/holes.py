"""Holes in canvases whose other text is given: pieces between marks, and random spans.

A piece is the text between two marks: an argument's value between quotes, a name between a comma and a colon, a line
between two line ends. Shapes: R rows, N canvases per row, C tokens per canvas, V vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redraft.text.tokenizer import Tokenizer

Bools = NDArray[np.bool_]
Places = NDArray[np.int64]

_MARKS = set("{}[]():,;=\"'\n")
_TO_THE_END = 0.25
"""Share of a chat answer's holes that extend to its end, where nothing gives away where the rest begins."""
_EXTRA_ODDS = np.array([0.5, 0.3, 0.2])
"""The odds of one, two or three further holes in a canvas that has any."""
_LONGEST_EXTRA = 12


def mark_table(tokenizer: Tokenizer, vocab_size: int) -> Bools:
    """Which tokens are marks, bool [V]: special tokens, and those made up only of brackets, quotes and the like."""
    table = np.zeros(vocab_size, bool)
    table[[token for token in tokenizer.special_ids.values() if token < vocab_size]] = True
    for token in range(vocab_size):
        text = tokenizer.decode([token])
        table[token] |= bool(text) and set(text) <= _MARKS
    return table


def line_table(newline: int, vocab_size: int) -> Bools:
    """The line end alone as a mark, bool [V]."""
    table = np.zeros(vocab_size, bool)
    table[newline] = True
    return table


def answer_holes(
    target: NDArray[np.int32], given: Bools, marks: Bools, *, piece_share: float, longest: int,
    rng: np.random.Generator,
) -> Bools:  # fmt: skip
    """One hole in every canvas `target` [R,N,C], outside `given`, its end that is filling or given; bool [R,N,C]."""
    place = _places((~given).sum(-1), rng)
    is_piece = rng.random(place.shape) < piece_share
    hole = np.where(is_piece[..., None], pieces(marks[target], place), spans(place, target.shape[2], rng, longest))
    first = hole.argmax(-1)
    open_end = rng.random(place.shape) < _TO_THE_END
    return np.where(open_end[..., None], np.arange(target.shape[2]) >= first[..., None], hole & ~given)


def extra_holes(target: NDArray[np.int32], marks: Bools, share: float, rng: np.random.Generator) -> Bools:
    """One to three further holes in a `share` of the canvases `target` [R,N,C]: pieces and short spans, half each."""
    count = rng.choice(np.arange(1, 4), target.shape[:2], p=_EXTRA_ODDS) * (rng.random(target.shape[:2]) < share)
    out = np.zeros(target.shape, bool)
    for number in range(3):
        place = _places(np.full(target.shape[:2], target.shape[2]), rng)
        is_piece = rng.random(place.shape) < 0.5
        piece, span = pieces(marks[target], place), spans(place, target.shape[2], rng, _LONGEST_EXTRA)
        out |= np.where(is_piece[..., None], piece, span) & (count > number)[..., None]
    return out


def pieces(marks: Bools, place: Places) -> Bools:
    """The positions between the two marks around `place` [R,N], and `place` itself if it is a mark; [R,N,C]."""
    number = marks.cumsum(-1)
    own = np.take_along_axis(number, place[..., None], -1)
    return ((number == own) & ~marks) | (np.arange(marks.shape[-1]) == place[..., None])


def spans(place: Places, length: int, rng: np.random.Generator, longest: int) -> Bools:
    """Random spans starting at `place` [R,N], mostly short, at most `longest`; bool [R,N,C]."""
    size = np.exp(rng.random(place.shape) * np.log(longest)).astype(np.int64)
    at = np.arange(length)
    return (at >= place[..., None]) & (at < (place + size)[..., None])


def _places(count: Places, rng: np.random.Generator) -> Places:
    """Uniform positions below `count`; 0 where `count` is 0."""
    return (rng.random(count.shape) * count).astype(np.int64)
