"""Attention on Hopper: one warp loads keys and values, one or two warp groups attend, each at its own pace.

A warp group owns 64 packed rows (a token's heads of one group side by side). Of two groups, one uses the tensor cores
while the other computes weights, and each copy of keys and values serves both. A single group, used when there are too
few rows for two on every SM, computes its next weights while its values are multiplied.

Every row goes through the same turns of the same width, in the same order and with the same formulas as in
`kernels.triton.attention`, so both give the same bits.
"""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.gluon.language import bulk_load, bulk_store, descriptor, gl, gluon, hopper, reinterpret, use_gluon
from redraft.kernels.gluon.ring import await_place, new_barriers
from redraft.kernels.triton.language import await_inputs, early
from redraft.kernels.triton.segments import KIND_DENOISE, KIND_ENCODE_IMAGES, KIND_UNUSED, Segments


def fits(q: Tensor, keys: Tensor, segments: Segments) -> bool:
    """Whether the kernel takes q [R,N,H] over pages of keys [pages,256,G,H] on this device."""
    share = q.shape[1] // keys.shape[2]
    return (
        use_gluon(q)
        and q.element_size() == keys.element_size() == 2
        and q.shape[2] in (256, 512)
        and 64 % share == 0
        and segments.rows * share % 64 == 0
    )


def attend(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, segments: Segments, *, window: int, rows: int, turn: int,
    parts: int, stages: int,
) -> Tensor:  # fmt: skip
    """q [R,N,H] over pages of keys and values [pages,256,G,H] -> [R,N,H]; see `kernels.triton.attention.attend`.

    A program takes 64 or 128 packed `rows`, and `turn` keys per turn; `parts` programs share the columns of the values,
    and each computes the scores again. Keys and values of `stages` turns are held in shared memory. A warp group keeps
    as many columns of its queries as it has registers for, because shared memory is read at its limit.
    """
    dim, groups, share = q.shape[2], keys.shape[2], q.shape[1] // keys.shape[2]
    out = q.new_empty(q.shape)
    _attend_kernel[(segments.rows * share // rows * parts, groups, len(segments.kind))](
        descriptor(q, [64 // share, share, dim]), descriptor(keys.view(-1, groups * dim), [turn, dim]),
        descriptor(values.view(-1, groups * dim), [turn, dim // parts]), table, segments.kind, segments.start,
        segments.length, *segments.sight, descriptor(out, [64 // share, share, dim // parts]), table.stride(0),
        SEGMENT_ROWS=segments.rows, SHARE=share, DIM=dim, WINDOW=window, KEYS=turn, PARTS=parts, WARP_GROUPS=rows // 64,
        HELD=256 if dim == 512 and rows == 64 else 128, STAGES=stages, num_warps=4, maxnreg=168, **early(q),
    )  # fmt: skip
    return out


@gluon
def _attend_kernel(
    q, keys, values, page_table, kind, start, length, since, until, out, page_stride, SEGMENT_ROWS: gl.constexpr,
    SHARE: gl.constexpr, DIM: gl.constexpr, WINDOW: gl.constexpr, KEYS: gl.constexpr, PARTS: gl.constexpr,
    WARP_GROUPS: gl.constexpr, HELD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One tile of 64 packed rows for each of WARP_GROUPS warp groups over all its keys."""
    await_inputs()
    COLUMNS: gl.constexpr = DIM // PARTS
    TILE: gl.constexpr = 64 * WARP_GROUPS
    segment, group = gl.program_id(2), gl.program_id(1)
    first_row, part = gl.program_id(0) // PARTS * TILE, gl.program_id(0) % PARTS
    what, begin, count = gl.load(kind + segment), gl.load(start + segment), gl.load(length + segment)
    if what == KIND_UNUSED:
        count = 0
    # From the first key that the tile's first row sees to the last that its last row sees; padding rows take one turn,
    # which is discarded.
    token = first_row // SHARE
    low, stop = begin, begin + count
    if what < KIND_DENOISE:
        low = begin + token
        stop = begin + gl.minimum((first_row + TILE - 1) // SHARE + 1, count)
    base = 0
    if WINDOW > 0:
        base = gl.maximum(low - (WINDOW - 1), 0)
    if what == KIND_ENCODE_IMAGES:
        base = gl.minimum(base, gl.load(since + segment * SEGMENT_ROWS + token))
        stop = gl.load(until + segment * SEGMENT_ROWS + gl.minimum((first_row + TILE - 1) // SHARE, count - 1))
    base = base // KEYS * KEYS
    turns = gl.where(token < count, (stop - base + KEYS - 1) // KEYS, 1)

    queries = gl.allocate_shared_memory(q.dtype, [WARP_GROUPS, 64 // SHARE, SHARE, DIM], q.layout)
    key_ring = gl.allocate_shared_memory(keys.dtype, [STAGES, KEYS, DIM], keys.layout)
    value_ring = gl.allocate_shared_memory(values.dtype, [STAGES, KEYS, COLUMNS], values.layout)
    queries_ready = gl.allocate_shared_memory(gl.int64, [WARP_GROUPS, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(WARP_GROUPS):
        hopper.mbarrier.init(queries_ready.index(i), count=1)
    keys_ready, keys_free = new_barriers(STAGES, 1, WARP_GROUPS)
    values_ready, values_free = new_barriers(STAGES, 1, WARP_GROUPS)

    place = (segment, group, part, first_row)
    walk = (base, turns)
    seen = (what, begin, count, since + segment * SEGMENT_ROWS, until + segment * SEGMENT_ROWS)
    rows = (queries, queries_ready)
    ring = (key_ring, value_ring, keys_ready, values_ready, keys_free, values_free)
    pages = page_table + segment * page_stride
    if WARP_GROUPS == 1:
        gl.warp_specialize([
            (_attend_rows, (rows, ring, out, place, walk, seen, 0, SEGMENT_ROWS, SHARE, DIM, WINDOW, KEYS, PARTS,
                            1, HELD, STAGES)),
            (_copy, (q, keys, values, pages, rows, ring, place, walk, SEGMENT_ROWS, SHARE, DIM, KEYS, PARTS, 1,
                     STAGES)),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_attend_rows, (rows, ring, out, place, walk, seen, 0, SEGMENT_ROWS, SHARE, DIM, WINDOW, KEYS, PARTS,
                            2, HELD, STAGES)),
            (_attend_rows, (rows, ring, out, place, walk, seen, 1, SEGMENT_ROWS, SHARE, DIM, WINDOW, KEYS, PARTS,
                            2, HELD, STAGES)),
            (_copy, (q, keys, values, pages, rows, ring, place, walk, SEGMENT_ROWS, SHARE, DIM, KEYS, PARTS, 2,
                     STAGES)),
        ], [4, 1], [240, 24])  # fmt: skip


@gluon
def _copy(
    q, keys, values, pages, rows, ring, place, walk, SEGMENT_ROWS: gl.constexpr, SHARE: gl.constexpr, DIM: gl.constexpr,
    KEYS: gl.constexpr, PARTS: gl.constexpr, WARP_GROUPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the tile's queries, then keys and values turn by turn as their places in the ring become free."""
    queries, queries_ready = rows
    key_ring, value_ring, keys_ready, values_ready, keys_free, values_free = ring
    segment, group, part, first_row = place
    base, turns = walk
    COLUMNS: gl.constexpr = DIM // PARTS
    for i in gl.static_range(WARP_GROUPS):
        token = segment * SEGMENT_ROWS + (first_row + i * 64) // SHARE
        hopper.mbarrier.expect(queries_ready.index(i), 64 * DIM * 2)
        bulk_load(q, [token, group * SHARE, 0], queries_ready.index(i), queries.index(i))
    for turn in range(turns):
        at = base + turn * KEYS
        line = gl.load(pages + at // 256) * 256 + at % 256
        stage, phase = turn % STAGES, turn // STAGES & 1
        hopper.mbarrier.wait(keys_free.index(stage), phase ^ 1)
        hopper.mbarrier.expect(keys_ready.index(stage), KEYS * DIM * 2)
        bulk_load(keys, [line, group * DIM], keys_ready.index(stage), key_ring.index(stage))
        hopper.mbarrier.wait(values_free.index(stage), phase ^ 1)
        hopper.mbarrier.expect(values_ready.index(stage), KEYS * COLUMNS * 2)
        column = group * DIM + part * COLUMNS
        bulk_load(values, [line, column], values_ready.index(stage), value_ring.index(stage))


@gluon
def _attend_rows(
    rows, ring, out, place, walk, seen, WARP_GROUP: gl.constexpr, SEGMENT_ROWS: gl.constexpr, SHARE: gl.constexpr,
    DIM: gl.constexpr, WINDOW: gl.constexpr, KEYS: gl.constexpr, PARTS: gl.constexpr, WARP_GROUPS: gl.constexpr,
    HELD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's 64 rows: a running softmax over all turns, one turn's weights made during another's product.

    `warpgroup_mma_wait` for values does not stay where it is in the code: the assembler moves it up to the last branch,
    and waiting for a copy is such a branch. So a single group waits for values after the weights of their turn. Two
    groups take turns at the tensor cores, where that would be slower.
    """
    queries, queries_ready = rows
    key_ring, value_ring, keys_ready, values_ready, keys_free, values_free = ring
    segment, group, part, first_row = place
    base, turns = walk
    what, begin, count, since, until = seen
    COLUMNS: gl.constexpr = DIM // PARTS
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    MEAN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, MEAN, 2)
    mine = reinterpret(queries.index(WARP_GROUP), queries.dtype, [64, DIM], gl.NVMMASharedLayout(128, 16, rank=2))
    first_row += WARP_GROUP * 64

    # What each row sees is one range of positions, [low, high); between the edges no row has to be masked.
    token = (first_row + gl.arange(0, 64, gl.SliceLayout(1, SCORES))) // SHARE
    high = gl.where(what >= KIND_DENOISE, begin + count, begin + token + 1)
    low = gl.zeros_like(high)
    if WINDOW > 0:
        low = gl.maximum(gl.where(what >= KIND_DENOISE, begin, begin + token) - (WINDOW - 1), 0)
    if what == KIND_ENCODE_IMAGES:
        high = gl.maximum(high, gl.load(until + token, mask=token < count, other=0))
        low = gl.minimum(low, gl.load(since + token, mask=token < count, other=1 << 30))
    edges = (low, high, gl.max(low, 0), gl.min(high, 0))

    peak = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    mass = gl.zeros([64], gl.float32, gl.SliceLayout(1, SCORES))
    mean = gl.zeros([64, COLUMNS], gl.float32, MEAN)
    nothing = gl.zeros([64, KEYS], gl.float32, SCORES)
    hopper.mbarrier.wait(queries_ready.index(WARP_GROUP), 0)
    held = mine.slice(0, HELD, dim=1).load(gl.DotOperandLayout(0, SCORES, 2))
    await_place(keys_ready, 0, STAGES)
    scores = hopper.warpgroup_mma_wait(0, deps=[_score(held, mine, key_ring.index(0), nothing, HELD, DIM)])
    hopper.mbarrier.arrive(keys_free.index(0), count=1)
    weights, _, peak, mass = _weigh(scores, peak, mass, base, edges, KEYS, SCORES)
    weights = gl.convert_layout(weights.to(queries.dtype), WEIGHTS)
    if WARP_GROUPS == 1:
        await_place(values_ready, 0, STAGES)
    for turn in range(1, turns):
        stage, before = turn % STAGES, (turn - 1) % STAGES
        await_place(keys_ready, turn, STAGES)
        scores = _score(held, mine, key_ring.index(stage), nothing, HELD, DIM)
        if WARP_GROUPS > 1:
            await_place(values_ready, turn - 1, STAGES)
        mean = hopper.warpgroup_mma(weights, value_ring.index(before), mean, is_async=True)
        scores = hopper.warpgroup_mma_wait(1, deps=[scores])
        hopper.mbarrier.arrive(keys_free.index(stage), count=1)
        following, fade, peak, mass = _weigh(scores, peak, mass, base + turn * KEYS, edges, KEYS, SCORES)
        following = gl.convert_layout(following.to(queries.dtype), WEIGHTS)
        fade = gl.convert_layout(fade, gl.SliceLayout(1, MEAN))
        if WARP_GROUPS == 1:
            await_place(values_ready, turn, STAGES)
        mean, weights, fade, mass = hopper.warpgroup_mma_wait(0, deps=[mean, following, fade, mass])
        hopper.mbarrier.arrive(values_free.index(before), count=1)
        mean = mean * fade[:, None]
    if WARP_GROUPS > 1:
        await_place(values_ready, turns - 1, STAGES)
    last = value_ring.index((turns - 1) % STAGES)
    mean = hopper.warpgroup_mma_wait(0, deps=[hopper.warpgroup_mma(weights, last, mean, is_async=True)])

    token = (first_row + gl.arange(0, 64, gl.SliceLayout(1, MEAN))) // SHARE
    mean = mean / gl.convert_layout(mass, gl.SliceLayout(1, MEAN))[:, None]
    mean = gl.where((token < count)[:, None], mean, 0.0)
    # In bulk, through the memory of the queries, which are not read any more.
    FLAT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    flat = reinterpret(queries.index(WARP_GROUP), queries.dtype, [PARTS, 64, COLUMNS], FLAT)
    flat.index(0).store(mean.to(queries.dtype))
    hopper.fence_async_shared()
    done = reinterpret(queries.index(WARP_GROUP), queries.dtype, [PARTS, 64 // SHARE, SHARE, COLUMNS], out.layout)
    row = segment * SEGMENT_ROWS + first_row // SHARE
    bulk_store(out, [row, group * SHARE, part * COLUMNS], done.index(0))
    hopper.tma.store_wait(0)


@gluon
def _score(held, queries, keys, nothing, HELD: gl.constexpr, DIM: gl.constexpr):
    """Begin the product of queries [64,DIM] and keys [KEYS,DIM]; `held` are the queries' first HELD columns."""
    first = keys.slice(0, HELD, dim=1).permute((1, 0))
    scores = hopper.warpgroup_mma(held, first, nothing, use_acc=False, is_async=True)
    for column in gl.static_range(HELD, DIM, HELD):
        more = keys.slice(column, HELD, dim=1).permute((1, 0))
        scores = hopper.warpgroup_mma(queries.slice(column, HELD, dim=1), more, scores, is_async=True)
    return scores


@gluon
def _weigh(scores, peak, mass, at, edges, KEYS: gl.constexpr, SCORES: gl.constexpr):
    """Weights of one turn's scores, the decay of what came before, and the new peak and mass.

    A peak is the largest score in units of log 2, see `kernels.triton.attention`.
    """
    LOG2E: gl.constexpr = 1.4426950408889634
    low, high, inside, outside = edges
    if (at < inside) | (at + KEYS > outside):
        position = (at + gl.arange(0, KEYS, gl.SliceLayout(0, SCORES)))[None]
        scores = gl.where((position >= low[:, None]) & (position < high[:, None]), scores, float("-inf"))
    new_peak = gl.maximum(peak, gl.max(scores, 1) * LOG2E)
    shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)  # a row may have seen nothing yet
    weights = gl.exp2(scores * LOG2E - shift[:, None])
    decay = gl.exp2(peak - shift)  # exactly 1 where the turn brought nothing
    return weights, decay, new_peak, mass * decay + gl.sum(weights, 1)
