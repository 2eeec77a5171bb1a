"""What the attention kernels share: which keys a tile of rows reads, the running softmax, and how means are stored.

A tile is 64 packed rows: a token's heads of one group side by side, `SHARE` of them.
"""

from __future__ import annotations

from redraft.kernels.gluon.language import bulk_store, gl, gluon, hopper, reinterpret
from redraft.kernels.triton.language import LOG2E
from redraft.kernels.triton.segments import KIND_DENOISE, KIND_ENCODE_IMAGES, KIND_UNUSED


@gluon
def seen_by(segment, kind, start, length, since, until, SEGMENT_ROWS: gl.constexpr):
    """A segment's kind, start and length, and pointers to its rows' sight: what says which keys a row sees."""
    what, begin, count = gl.load(kind + segment), gl.load(start + segment), gl.load(length + segment)
    if what == KIND_UNUSED:
        count = 0
    return what, begin, count, since + segment * SEGMENT_ROWS, until + segment * SEGMENT_ROWS


@gluon
def turns_of(seen, first_row, TILE: gl.constexpr, SHARE: gl.constexpr, WINDOW: gl.constexpr, KEYS: gl.constexpr):
    """The first position of TILE packed rows' first turn, and the number of their turns of KEYS keys.

    From the first key that the tile's first row sees to the last that its last row sees; padding rows take one turn,
    which is discarded.
    """
    what, begin, count, since, until = seen
    token = first_row // SHARE
    low, stop = begin, begin + count
    if what < KIND_DENOISE:
        low = begin + token
        stop = begin + gl.minimum((first_row + TILE - 1) // SHARE + 1, count)
    base = 0
    if WINDOW > 0:
        base = gl.maximum(low - (WINDOW - 1), 0)
    if what == KIND_ENCODE_IMAGES:
        base = gl.minimum(base, gl.load(since + token))
        stop = gl.load(until + gl.minimum((first_row + TILE - 1) // SHARE, count - 1))
    base = base // KEYS * KEYS
    return base, gl.where(token < count, (stop - base + KEYS - 1) // KEYS, 1)


@gluon
def edges_of(seen, first_row, SHARE: gl.constexpr, WINDOW: gl.constexpr, SCORES: gl.constexpr):
    """What each row of a tile sees is one range of positions, [low, high); from `inside` to `outside` all rows do."""
    what, begin, count, since, until = seen
    token = (first_row + gl.arange(0, 64, gl.SliceLayout(1, SCORES))) // SHARE
    high = gl.where(what >= KIND_DENOISE, begin + count, begin + token + 1)
    low = gl.zeros_like(high)
    if WINDOW > 0:
        low = gl.maximum(gl.where(what >= KIND_DENOISE, begin, begin + token) - (WINDOW - 1), 0)
    if what == KIND_ENCODE_IMAGES:
        high = gl.maximum(high, gl.load(until + token, mask=token < count, other=0))
        low = gl.minimum(low, gl.load(since + token, mask=token < count, other=1 << 30))
    return low, high, gl.max(low, 0), gl.min(high, 0)


@gluon
def masked(scores, at, edges, KEYS: gl.constexpr, SCORES: gl.constexpr):
    """Scores [64,KEYS] of the positions from `at` on, -inf where a row does not see one."""
    low, high, inside, outside = edges
    if (at < inside) | (at + KEYS > outside):
        position = (at + gl.arange(0, KEYS, gl.SliceLayout(0, SCORES)))[None]
        scores = gl.where((position >= low[:, None]) & (position < high[:, None]), scores, float("-inf"))
    return scores


@gluon
def weigh(scores, peak, mass):
    """Weights of one turn's scores, the decay of what came before, and the new peak and mass.

    A peak is the largest score in units of log 2, see `kernels.triton.attention`.
    """
    new_peak = gl.maximum(peak, gl.max(scores, 1) * LOG2E)
    shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)  # a row may have seen nothing yet
    weights = gl.exp2(scores * LOG2E - shift[:, None])
    decay = gl.exp2(peak - shift)  # exactly 1 where the turn brought nothing
    return weights, decay, new_peak, mass * decay + gl.sum(weights, 1)


@gluon
def store_means(
    mean, mass, count, queries, out, first_row, line, PART: gl.constexpr, PARTS: gl.constexpr,
    SHARE: gl.constexpr, MEAN: gl.constexpr,
):  # fmt: skip
    """Store a tile's sums divided by their masses in bulk, from [token, head, column] `line` of `out` on.

    On the way they take one of PARTS parts of the memory of the tile's queries, which are not read any more.
    """
    COLUMNS: gl.constexpr = mean.shape[1]
    token = (first_row + gl.arange(0, 64, gl.SliceLayout(1, MEAN))) // SHARE
    mean = mean / gl.convert_layout(mass, gl.SliceLayout(1, MEAN))[:, None]
    mean = gl.where((token < count)[:, None], mean, 0.0)
    FLAT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    flat = reinterpret(queries, queries.dtype, [PARTS, 64, COLUMNS], FLAT)
    flat.index(PART).store(mean.to(queries.dtype))
    hopper.fence_async_shared()
    done = reinterpret(queries, queries.dtype, [PARTS, 64 // SHARE, SHARE, COLUMNS], out.layout)
    bulk_store(out, line, done.index(PART))
    hopper.tma.store_wait(0)
