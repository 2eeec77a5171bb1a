"""Which tile comes when, in kernels whose programs walk over them."""

from __future__ import annotations

from redraft.kernels.gluon.language import gl, gluon


@gluon
def gate_tiles(walk, INNER: gl.constexpr):
    """How many tiles there are of 128 columns, or 64, and all rows of one of `live` entries of a routing's list."""
    _tiles, live = walk
    return live * ((INNER + 127) // 128)


@gluon
def gate_place(walk, index, INNER: gl.constexpr):
    """Expert, first row, end and first column of the tile with an index.

    Tiles of 64 columns come last, so that every program gets as many of them as any other.
    """
    tiles, live = walk
    FULL: gl.constexpr = INNER // 128
    whole = index < live * FULL
    entry = tiles + gl.where(whole, index // max(FULL, 1), index - live * FULL) * 3
    first = gl.where(whole, index % max(FULL, 1), FULL) * 128
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), first


@gluon
def down_place(walk, index, D: gl.constexpr, INNER: gl.constexpr):
    """Expert, first row, end, first of 256 columns and number of steps of 128 inputs of the tile with an index."""
    entry = walk[0] + index // (D // 256) * 3
    expert = gl.load(entry)
    steps = gl.where(expert < 0, 0, (INNER + 127) // 128)
    return expert, gl.load(entry + 1), gl.load(entry + 2), index % (D // 256) * 256, steps
