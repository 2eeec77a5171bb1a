"""The order of tiles, in kernels whose programs walk over them.

A walk is a routing's list and how far to go: for gates counted in list entries, those of live rows; for down
projections counted in tiles, those of all entries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redraft.kernels.gluon.language import gl, gluon


class Tile(NamedTuple):
    """Rows from `start` up to `end`, all of one expert (-1 if they are dead), and columns of its weights from `first`.

    How many columns, and which, is the product's affair.
    """

    expert: Any
    start: Any
    end: Any
    first: Any


@gluon
def gate_walk(tiles, counts):
    """A routing's list and how many of its entries are of live rows."""
    return tiles, gl.load(counts)


@gluon
def gate_tile_count(walk, INNER: gl.constexpr):
    """How many tiles there are, each of 128 (or 64) columns and all rows of a live entry."""
    _tiles, live = walk
    return live * ((INNER + 127) // 128)


@gluon
def gate_tile(walk, index, INNER: gl.constexpr):
    """The tile with an index.

    Tiles of 64 columns come last, so that they are spread evenly over the programs.
    """
    tiles, live = walk
    FULL: gl.constexpr = INNER // 128
    whole = index < live * FULL
    entry = tiles + gl.where(whole, index // max(FULL, 1), index - live * FULL) * 3
    first = gl.where(whole, index % max(FULL, 1), FULL) * 128
    return Tile(gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), first)


@gluon
def down_walk(tiles, counts, D: gl.constexpr):
    """A routing's list and how many tiles there are, each of 256 columns and all rows of any entry."""
    return tiles, gl.load(counts + 1) * (D // 256)


@gluon
def down_tile_count(walk):
    """How many tiles there are."""
    _tiles, total = walk
    return total


@gluon
def down_tile(walk, index, D: gl.constexpr, INNER: gl.constexpr, DEPTH: gl.constexpr = 128):
    """The tile with an index, of 256 columns, and its number of steps of DEPTH inputs.

    Dead rows take no step; the last step reads zeros beyond INNER.
    """
    tiles, _total = walk
    entry = tiles + index // (D // 256) * 3
    expert = gl.load(entry)
    steps = gl.where(expert < 0, 0, (INNER + DEPTH - 1) // DEPTH)
    return Tile(expert, gl.load(entry + 1), gl.load(entry + 2), index % (D // 256) * 256), steps
