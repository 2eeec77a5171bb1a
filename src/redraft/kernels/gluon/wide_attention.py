"""Attention on Hopper over heads of 512 for many rows: one warp group weighs keys for two that add up values.

A warp group has registers for the means of 64 rows and 256 columns. So in `kernels.gluon.attention` two programs take
half of the columns each, and both compute all scores. Here one program has all columns: one warp group computes scores,
once, and passes weights on through shared memory; two others multiply half of the values each by them. That is a third
fewer products. But a program takes 64 rows, all columns of them, so there must be enough rows for every SM.

Every row goes through the same turns in the same order and with the same formulas as in `kernels.triton.attention`, so
it gets the same bits. Scores of two turns are made at once, and weighed one turn after the other.
"""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.gluon.language import bulk_load, descriptor, gl, gluon, hopper, reinterpret
from redraft.kernels.gluon.ring import await_place, new_barriers
from redraft.kernels.gluon.running_softmax import edges_of, masked, seen_by, store_means, turns_of, weigh
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.segments import Segments

KEY_PLACES = 5
"""Places in shared memory for keys: each for 128 columns of a pair of turns."""

VALUE_PLACES = 2
"""Places for values: each for all columns of one turn."""


def attend(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, segments: Segments, *, window: int, turn: int
) -> Tensor:
    """q [R,N,512] over pages of keys and values [pages,256,G,512] -> [R,N,512], see `kernels.triton.attention.attend`.

    A program takes 64 packed rows, and weighs `turn` keys at a time. See `kernels.gluon.attention.fits`.
    """
    dim, groups, share = q.shape[2], keys.shape[2], q.shape[1] // keys.shape[2]
    out = q.new_empty(q.shape)
    _wide_attend_kernel[(segments.rows * share // 64, groups, len(segments.kind))](
        descriptor(q, [64 // share, share, dim]), descriptor(keys.view(-1, groups * dim), [2 * turn, 128]),
        descriptor(values.view(-1, groups * dim), [turn, dim]), table, segments.kind, segments.start, segments.length,
        *segments.sight, descriptor(out, [64 // share, share, 256]), table.stride(0), SEGMENT_ROWS=segments.rows,
        SHARE=share, DIM=dim, PAGE=keys.shape[1], WINDOW=window, KEYS=turn, KEY_PLACES=KEY_PLACES,
        VALUE_PLACES=VALUE_PLACES, num_warps=4, maxnreg=128, **early(q),
    )  # fmt: skip
    return out


@gluon
def _wide_attend_kernel(
    q, keys, values, page_table, kind, start, length, since, until, out, page_stride, SEGMENT_ROWS: gl.constexpr,
    SHARE: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr, WINDOW: gl.constexpr, KEYS: gl.constexpr,
    KEY_PLACES: gl.constexpr, VALUE_PLACES: gl.constexpr,
):  # fmt: skip
    """One tile of 64 packed rows over all its keys, two turns at a time."""
    await_inputs()
    segment, group, first_row = gl.program_id(2), gl.program_id(1), gl.program_id(0) * 64
    seen = seen_by(segment, kind, start, length, since, until, SEGMENT_ROWS)
    walk = turns_of(seen, first_row, 64, SHARE, WINDOW, 2 * KEYS)

    queries = gl.allocate_shared_memory(q.dtype, [64 // SHARE, SHARE, DIM], q.layout)
    queries_ready = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
    hopper.mbarrier.init(queries_ready, count=1)
    key_ring = gl.allocate_shared_memory(keys.dtype, [KEY_PLACES, 2 * KEYS, 128], keys.layout)
    value_ring = gl.allocate_shared_memory(values.dtype, [VALUE_PLACES, KEYS, DIM], values.layout)
    # Weights of two pairs of turns, their fades and, last, the rows' masses.
    weights = gl.allocate_shared_memory(q.dtype, [4, 64, KEYS], gl.NVMMASharedLayout(2 * KEYS, 16, rank=2))
    fades = gl.allocate_shared_memory(gl.float32, [5, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    keys_ready, keys_free = new_barriers(KEY_PLACES, 1, 1)
    values_ready, values_free = new_barriers(VALUE_PLACES, 1, 2)
    made, taken = new_barriers(3, 1, 2)  # the third for the masses, which nobody gives back

    token = segment * SEGMENT_ROWS + first_row // SHARE
    rows = (queries, queries_ready, first_row)
    key_copies = (key_ring, keys_ready, keys_free)
    value_copies = (value_ring, values_ready, values_free)
    passed = (weights, fades, made, taken)
    line = (token, group * SHARE)
    pages = page_table + segment * page_stride
    gl.warp_specialize([
        (_weigh_keys, (rows, key_copies, passed, walk, seen, SHARE, DIM, WINDOW, KEYS, KEY_PLACES)),
        (_add_values, (rows, value_copies, passed, out, line, walk, seen, 0, SHARE, VALUE_PLACES)),
        (_add_values, (rows, value_copies, passed, out, line, walk, seen, 1, SHARE, VALUE_PLACES)),
        (_copy_keys, (q, keys, pages, rows, key_copies, line, walk, group * DIM, DIM, PAGE, KEYS, KEY_PLACES)),
        (_copy_values, (values, pages, value_copies, walk, group * DIM, DIM, PAGE, KEYS, VALUE_PLACES)),
    ], [4, 4, 1, 1], [160, 160, 24, 24])  # fmt: skip


@gluon
def _copy_keys(
    q, keys, pages, rows, key_copies, line, walk, column, DIM: gl.constexpr, PAGE: gl.constexpr, KEYS: gl.constexpr,
    PLACES: gl.constexpr,
):  # fmt: skip
    """Load the tile's queries, then keys of pairs of turns, 128 columns at a time, as places become free."""
    queries, queries_ready, _first_row = rows
    ring, ready, free = key_copies
    base, pairs = walk
    hopper.mbarrier.expect(queries_ready, 64 * DIM * 2)
    bulk_load(q, [line[0], line[1], 0], queries_ready, queries)
    number = 0
    for pair in range(pairs):
        at = base + pair * 2 * KEYS
        key = gl.load(pages + at // PAGE) * PAGE + at % PAGE
        for first in gl.static_range(0, DIM, 128):
            place = number % PLACES
            hopper.mbarrier.wait(free.index(place), number // PLACES & 1 ^ 1)
            hopper.mbarrier.expect(ready.index(place), 2 * KEYS * 128 * 2)
            bulk_load(keys, [key, column + first], ready.index(place), ring.index(place))
            number += 1


@gluon
def _copy_values(
    values, pages, value_copies, walk, column, DIM: gl.constexpr, PAGE: gl.constexpr, KEYS: gl.constexpr,
    PLACES: gl.constexpr,
):  # fmt: skip
    """Load the values of every turn as places become free."""
    ring, ready, free = value_copies
    base, pairs = walk
    for turn in range(2 * pairs):
        at = base + turn * KEYS
        key = gl.load(pages + at // PAGE) * PAGE + at % PAGE
        place = turn % PLACES
        hopper.mbarrier.wait(free.index(place), turn // PLACES & 1 ^ 1)
        hopper.mbarrier.expect(ready.index(place), KEYS * DIM * 2)
        bulk_load(values, [key, column], ready.index(place), ring.index(place))


@gluon
def _weigh_keys(
    rows, key_copies, passed, walk, seen, SHARE: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr,
    KEYS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Scores of pairs of turns and, one turn after the other, their weights; at the end the rows' masses."""
    queries, queries_ready, first_row = rows
    all_weights, fades, made, taken = passed
    base, pairs = walk
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    BOTH: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * KEYS, 16])
    edges = edges_of(seen, first_row, SHARE, WINDOW, BOTH)
    peak = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    mass = gl.zeros([64], gl.float32, gl.SliceLayout(1, SCORES))
    hopper.mbarrier.wait(queries_ready, 0)
    flat = reinterpret(queries, queries.dtype, [64, DIM], gl.NVMMASharedLayout(128, 16, rank=2))
    held = flat.slice(0, 128, dim=1).load(gl.DotOperandLayout(0, BOTH, 2))
    for pair in range(pairs):
        scores = masked(_score(held, flat, key_copies, pair, DIM, KEYS, PLACES), base + pair * 2 * KEYS, edges,
                        2 * KEYS, BOTH)  # fmt: skip
        first, second = gl.split(gl.permute(gl.reshape(scores, [64, 2, KEYS]), (0, 2, 1)))
        weights, fade, peak, mass = weigh(gl.convert_layout(first, SCORES), peak, mass)
        more_weights, more_fade, peak, mass = weigh(gl.convert_layout(second, SCORES), peak, mass)
        place = pair % 2
        hopper.mbarrier.wait(taken.index(place), pair // 2 & 1 ^ 1)
        all_weights.index(2 * place).store(weights.to(queries.dtype))
        all_weights.index(2 * place + 1).store(more_weights.to(queries.dtype))
        fades.index(2 * place).store(fade)
        fades.index(2 * place + 1).store(more_fade)
        hopper.fence_async_shared()
        hopper.mbarrier.arrive(made.index(place), count=1)
    fades.index(4).store(mass)
    hopper.mbarrier.arrive(made.index(2), count=1)


@gluon
def _score(held, queries, key_copies, pair, DIM: gl.constexpr, KEYS: gl.constexpr, PLACES: gl.constexpr):
    """Products of queries [64,DIM] and the keys of a pair of turns; `held` are the queries' first 128 columns."""
    ring, ready, free = key_copies
    number = pair * (DIM // 128)
    BOTH: gl.constexpr = held.type.layout.parent
    scores = gl.zeros([64, 2 * KEYS], gl.float32, BOTH)
    await_place(ready, number, PLACES)
    scores = hopper.warpgroup_mma(held, ring.index(number % PLACES).permute((1, 0)), scores, use_acc=False,
                                  is_async=True)  # fmt: skip
    for first in gl.static_range(128, DIM, 128):
        number += 1
        await_place(ready, number, PLACES)
        columns = ring.index(number % PLACES).permute((1, 0))
        scores = hopper.warpgroup_mma(queries.slice(first, 128, dim=1), columns, scores, is_async=True)
        scores = hopper.warpgroup_mma_wait(1, deps=[scores])
        hopper.mbarrier.arrive(free.index((number - 1) % PLACES), count=1)
    scores = hopper.warpgroup_mma_wait(0, deps=[scores])
    hopper.mbarrier.arrive(free.index(number % PLACES), count=1)
    return scores


@gluon
def _add_values(
    rows, value_copies, passed, out, line, walk, seen, HALF: gl.constexpr, SHARE: gl.constexpr, PLACES: gl.constexpr
):
    """One half of the means' columns: every turn's values times its weights, which are read from shared memory.

    As matrix instructions of 256 columns need more registers than the kernel's threads begin with, they have 128.
    """
    queries, _queries_ready, first_row = rows
    ring, ready, free = value_copies
    weights, fades, made, taken = passed
    _base, pairs = walk
    MEAN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    mean = gl.zeros([64, 256], gl.float32, MEAN)
    for turn in range(2 * pairs):
        pair, place = turn // 2, turn % PLACES
        if turn % 2 == 0:
            await_place(made, pair, 2)
        fade = fades.index(turn % 4).load(gl.SliceLayout(1, MEAN))
        mean = mean * fade[:, None]
        await_place(ready, turn, PLACES)
        values = ring.index(place).slice(HALF * 256, 256, dim=1)
        mean = hopper.warpgroup_mma(weights.index(turn % 4), values, mean, is_async=True)
        mean = hopper.warpgroup_mma_wait(0, deps=[mean])
        hopper.mbarrier.arrive(free.index(place), count=1)
        hopper.mbarrier.arrive(taken.index(pair % 2), count=1, pred=turn % 2 == 1)
    hopper.mbarrier.wait(made.index(2), 0)
    mass = fades.index(4).load(gl.SliceLayout(1, MEAN))
    place = [line[0], line[1], HALF * 256]
    store_means(mean, mass, seen[2], queries, out, first_row, place, HALF, 2, SHARE, MEAN)
