"""Attention on Hopper: one warp loads keys and values, one or two warp groups attend, each at its own pace.

A warp group owns 64 packed rows (a token's heads of one group side by side). Of two groups, one uses the tensor cores
while the other computes weights, and each copy of keys and values serves both. A single group, used when there are too
few rows for two on every SM, computes its next weights while its values are multiplied.

Every row goes through the same turns of the same width, in the same order and with the same formulas as in
`kernels.triton.attention`, so both give the same bits.
"""

from __future__ import annotations

from torch import Tensor

from redraft.kernels.gluon.language import bulk_load, descriptor, gl, gluon, hopper, reinterpret, use_gluon
from redraft.kernels.gluon.ring import await_place, new_barriers
from redraft.kernels.gluon.running_softmax import edges_of, masked, seen_by, store_means, turns_of, weigh
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.segments import Segments


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
        SEGMENT_ROWS=segments.rows, SHARE=share, DIM=dim, PAGE=keys.shape[1], WINDOW=window, KEYS=turn, PARTS=parts,
        WARP_GROUPS=rows // 64, HELD=256 if dim == 512 and rows == 64 else 128, STAGES=stages, num_warps=4, maxnreg=168,
        **early(q),
    )  # fmt: skip
    return out


@gluon
def _attend_kernel(
    q, keys, values, page_table, kind, start, length, since, until, out, page_stride, SEGMENT_ROWS: gl.constexpr,
    SHARE: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr, WINDOW: gl.constexpr, KEYS: gl.constexpr,
    PARTS: gl.constexpr, WARP_GROUPS: gl.constexpr, HELD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One tile of 64 packed rows for each of WARP_GROUPS warp groups over all its keys."""
    await_inputs()
    COLUMNS: gl.constexpr = DIM // PARTS
    TILE: gl.constexpr = 64 * WARP_GROUPS
    segment, group = gl.program_id(2), gl.program_id(1)
    first_row, part = gl.program_id(0) // PARTS * TILE, gl.program_id(0) % PARTS
    seen = seen_by(segment, kind, start, length, since, until, SEGMENT_ROWS)
    walk = turns_of(seen, first_row, TILE, SHARE, WINDOW, KEYS)

    queries = gl.allocate_shared_memory(q.dtype, [WARP_GROUPS, 64 // SHARE, SHARE, DIM], q.layout)
    key_ring = gl.allocate_shared_memory(keys.dtype, [STAGES, KEYS, DIM], keys.layout)
    value_ring = gl.allocate_shared_memory(values.dtype, [STAGES, KEYS, COLUMNS], values.layout)
    queries_ready = gl.allocate_shared_memory(gl.int64, [WARP_GROUPS, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(WARP_GROUPS):
        hopper.mbarrier.init(queries_ready.index(i), count=1)
    keys_ready, keys_free = new_barriers(STAGES, 1, WARP_GROUPS)
    values_ready, values_free = new_barriers(STAGES, 1, WARP_GROUPS)

    place = (segment, group, part, first_row)
    rows = (queries, queries_ready)
    ring = (key_ring, value_ring, keys_ready, values_ready, keys_free, values_free)
    pages = page_table + segment * page_stride
    if WARP_GROUPS == 1:
        gl.warp_specialize([
            (_attend_rows, (rows, ring, out, place, walk, seen, 0, SEGMENT_ROWS, SHARE, DIM, WINDOW, KEYS, PARTS,
                            1, HELD, STAGES)),
            (_copy, (q, keys, values, pages, rows, ring, place, walk, SEGMENT_ROWS, SHARE, DIM, PAGE, KEYS, PARTS,
                     1, STAGES)),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_attend_rows, (rows, ring, out, place, walk, seen, 0, SEGMENT_ROWS, SHARE, DIM, WINDOW, KEYS, PARTS,
                            2, HELD, STAGES)),
            (_attend_rows, (rows, ring, out, place, walk, seen, 1, SEGMENT_ROWS, SHARE, DIM, WINDOW, KEYS, PARTS,
                            2, HELD, STAGES)),
            (_copy, (q, keys, values, pages, rows, ring, place, walk, SEGMENT_ROWS, SHARE, DIM, PAGE, KEYS, PARTS,
                     2, STAGES)),
        ], [4, 1], [240, 24])  # fmt: skip


@gluon
def _copy(
    q, keys, values, pages, rows, ring, place, walk, SEGMENT_ROWS: gl.constexpr, SHARE: gl.constexpr, DIM: gl.constexpr,
    PAGE: gl.constexpr, KEYS: gl.constexpr, PARTS: gl.constexpr, WARP_GROUPS: gl.constexpr, STAGES: gl.constexpr,
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
        line = gl.load(pages + at // PAGE) * PAGE + at % PAGE
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
    COLUMNS: gl.constexpr = DIM // PARTS
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    MEAN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, MEAN, 2)
    mine = reinterpret(queries.index(WARP_GROUP), queries.dtype, [64, DIM], gl.NVMMASharedLayout(128, 16, rank=2))
    first_row += WARP_GROUP * 64

    edges = edges_of(seen, first_row, SHARE, WINDOW, SCORES)
    peak = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    mass = gl.zeros([64], gl.float32, gl.SliceLayout(1, SCORES))
    mean = gl.zeros([64, COLUMNS], gl.float32, MEAN)
    nothing = gl.zeros([64, KEYS], gl.float32, SCORES)
    hopper.mbarrier.wait(queries_ready.index(WARP_GROUP), 0)
    held = mine.slice(0, HELD, dim=1).load(gl.DotOperandLayout(0, SCORES, 2))
    await_place(keys_ready, 0, STAGES)
    scores = hopper.warpgroup_mma_wait(0, deps=[_score(held, mine, key_ring.index(0), nothing, HELD, DIM)])
    hopper.mbarrier.arrive(keys_free.index(0), count=1)
    weights, _, peak, mass = weigh(masked(scores, base, edges, KEYS, SCORES), peak, mass)
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
        scores = masked(scores, base + turn * KEYS, edges, KEYS, SCORES)
        following, fade, peak, mass = weigh(scores, peak, mass)
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

    line = [segment * SEGMENT_ROWS + first_row // SHARE, group * SHARE, part * COLUMNS]
    store_means(mean, mass, seen[2], queries.index(WARP_GROUP), out, first_row, line, 0, PARTS, SHARE, MEAN)


@gluon
def _score(held, queries, keys, nothing, HELD: gl.constexpr, DIM: gl.constexpr):
    """Begin the product of queries [64,DIM] and keys [KEYS,DIM]; `held` are the queries' first HELD columns."""
    first = keys.slice(0, HELD, dim=1).permute((1, 0))
    scores = hopper.warpgroup_mma(held, first, nothing, use_acc=False, is_async=True)
    for column in gl.static_range(HELD, DIM, HELD):
        more = keys.slice(column, HELD, dim=1).permute((1, 0))
        scores = hopper.warpgroup_mma(queries.slice(column, HELD, dim=1), more, scores, is_async=True)
    return scores
