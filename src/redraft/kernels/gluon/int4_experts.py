"""The two products over experts with INT4 weights on Hopper, for experts with more than a few rows.

A program walks over its share of tiles: 256 rows of one expert's weights times up to 80 of its rows. One partition of
its warps brings codes, scales and rows through a ring that does not pause between tiles. Two warp groups take 128
weight rows each, 64 at a time: they turn codes into e4m3 in registers, multiply, and add the last product, times its
groups' scales, while the next one is being made. A tile's codes are unpacked once for all of its rows; what is beyond
64 of them takes a narrower instruction. Sums are made and scaled as in `kernels.triton.expert_kernels`, group by group:
a row gets the same bits.
"""

# What a tile of many rows needs is bound under the same condition under which it is used.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import Any

from torch import Tensor

from redraft.kernels.gluon.language import constant, descriptor, gl, gluon, hopper, use_gluon
from redraft.kernels.gluon.ring import new_barriers
from redraft.kernels.triton.expert_kernels import codes_to_e4m3, gelu_gate, high_half, low_half
from redraft.kernels.triton.language import processors
from redraft.kernels.triton.routing import Routing

BLOCK_ROWS = 80
"""The most rows of one expert in a tile. With 96 registers run out."""

STAGES = 6
"""Steps of 128 inputs whose codes, scales and rows lie in shared memory."""


def fits(x: Tensor, width: int, inner: int, group: int) -> bool:
    """Whether the kernels take FP8 rows x of a model's width or its experts' inner width, and groups of weights."""
    return use_gluon(x) and group == 64 and width % 256 == inner % 64 == 0 and inner >= 128


def gate(x: Tensor, x_scale: Tensor | None, codes: Tensor, scale: Tensor | None, routing: Routing, out: Tensor) -> None:
    """x [T,D], codes [E,D/64,2I,32], scale int32 [E,D/128,2I] -> out [T*K,I], in the order of `routing.order`."""
    _, blocks, both, _ = codes.shape
    _gate_kernel[(processors(x.device),)](
        x, x_scale, _bytes(codes, 128), scale, out, routing.order, routing.tiles, routing.counts, D=64 * blocks,
        INNER=both // 2, TOP_K=routing.index.shape[1], LINES=BLOCK_ROWS, STAGES=STAGES, num_warps=4, maxnreg=168,
    )  # fmt: skip


def down(
    hidden: Tensor, hidden_scale: Tensor | None, codes: Tensor, scale: Tensor | None, routing: Routing, out: Tensor
) -> None:
    """hidden [T*K,I] sorted, codes [E,I/64,D,32] -> out [T,K,D] in the order of assignments, times the router's weight.

    scale int32 [E,P,D]: pairs of groups, the last one's second half is 0 if there is no group for it.
    """
    _, blocks, width, _ = codes.shape
    _down_kernel[(processors(hidden.device),)](
        _bytes(hidden, 64), _bytes(hidden, BLOCK_ROWS - 64), hidden_scale, _bytes(codes, 128), scale, routing.weight,
        out, routing.order, routing.tiles, routing.counts, D=width, INNER=64 * blocks, LINES=BLOCK_ROWS, STAGES=STAGES,
        num_warps=4, maxnreg=168,
    )  # fmt: skip


def _bytes(tensor: Tensor, rows: int) -> Any:
    """A descriptor of so many rows and 64 columns of FP8 numbers, or 32 of codes [...,32]."""
    return descriptor(tensor.view(-1, tensor.shape[-1]), [rows, min(64, tensor.shape[-1])])


@constant
def _sums(rows):
    """The layout of a warp group's sums [64,rows], weights first."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 32])


@constant
def _codes(rows):
    """The layout of weights that multiply so many rows, in registers."""
    return gl.DotOperandLayout(0, _sums(rows), 4)


@constant
def _first(lines):
    """How many of a tile's rows the first of its products takes."""
    return min(lines, 64)


@constant
def _wide():
    """The layout of results [rows,64] as they are stored, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])


@constant
def _line():
    """The layout of one number per row, until the sums are there."""
    return gl.BlockedLayout([1], [32], [4], [0])


@gluon
def _new_ring(codes, LINES: gl.constexpr, STAGES: gl.constexpr, ARRIVALS: gl.constexpr):
    """Places for codes, a tile's first rows, the rest of them, and scales; two blocks of 64 inputs a stage.

    Barriers: full after ARRIVALS, free after both groups.
    """
    FIRST: gl.constexpr = _first(LINES)
    ROWS: gl.constexpr = gl.NVMMASharedLayout(64, 8, rank=2)
    weights = gl.allocate_shared_memory(gl.uint8, [2 * STAGES, 256, 32], codes.layout)
    rows = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, FIRST, 64], ROWS)
    rest = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, LINES - FIRST, 64], ROWS)
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, 256], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready, free = new_barriers(STAGES, ARRIVALS)
    return weights, rows, rest, scales, ready, free


@gluon
def _unpacked(codes, ROWS: gl.constexpr):
    """Codes [64,32] in shared memory as weights e4m3 [64,64] in registers, in units of 2^-9."""
    low, high = codes_to_e4m3(codes.load(_codes(ROWS)), True)
    both = gl.reshape(gl.permute(gl.join(low, high), (0, 2, 1)), [64, 64])
    return gl.convert_layout(both, _codes(ROWS), assert_trivial=True)


@gluon
def _product(left, right, ROWS: gl.constexpr):
    """Weights [64,64] times rows [ROWS,64] in shared memory, on its way."""
    left = gl.convert_layout(left, _codes(ROWS), assert_trivial=True)
    zeros = gl.zeros([64, ROWS], gl.float32, _sums(ROWS))
    return hopper.warpgroup_mma(left, right.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon
def _added(one, other, part, scales, JOB: gl.constexpr, ROWS: gl.constexpr):
    """`one` or `other`, by turns, plus part times its groups' scales: low or high halves of one of `scales` [64]."""
    words = gl.convert_layout(scales[JOB % 2], gl.SliceLayout(1, _sums(ROWS)), assert_trivial=True)
    scale = high_half(words) if JOB // 2 else low_half(words)
    if JOB % 2:
        other += part * scale[:, None]
    else:
        one += part * scale[:, None]
    return one, other


@gluon
def _step(
    ring, number, sums, BLOCKS: gl.constexpr, HALF: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
    ORDINARY: gl.constexpr,
):  # fmt: skip
    """Add the products of one place of the ring, over BLOCKS * 64 inputs, to the sums of a warp group.

    A job is 64 weight rows and 64 inputs. Its product with a tile's first rows, and that with the rest, are scaled
    while others are on their way. What ORDINARY copies brought is made visible to matrix instructions first.
    """
    weights, rows, rest, words, ready, free = ring
    one, other, one_rest, other_rest = sums
    FIRST: gl.constexpr = _first(LINES)
    REST: gl.constexpr = LINES - FIRST
    LAST: gl.constexpr = 2 * BLOCKS - 1
    SIDE: gl.constexpr = gl.SliceLayout(1, _sums(FIRST))
    stage = number % STAGES
    hopper.mbarrier.wait(ready.index(stage), number // STAGES & 1)
    if ORDINARY:
        hopper.fence_async_shared()
    here = words.index(stage)
    scales = (here.slice(HALF * 64, 64).load(SIDE), here.slice(128 + HALF * 64, 64).load(SIDE))
    place = stage * 2
    left = _unpacked(weights.index(place).slice(HALF * 64, 64), FIRST)
    part = _product(left, rows.index(place), FIRST)
    if REST:
        spare = _product(left, rest.index(place), REST)
    for job in gl.static_range(1, 2 * BLOCKS):
        place = stage * 2 + job // 2
        left = _unpacked(weights.index(place).slice(job % 2 * 128 + HALF * 64, 64), FIRST)
        if REST:
            part = hopper.warpgroup_mma_wait(1, deps=[part])
            one, other = _added(one, other, part, scales, job - 1, FIRST)
            part = _product(left, rows.index(place), FIRST)
            spare = hopper.warpgroup_mma_wait(1, deps=[spare])
            one_rest, other_rest = _added(one_rest, other_rest, spare, scales, job - 1, REST)
            spare = _product(left, rest.index(place), REST)
        else:
            following = _product(left, rows.index(place), FIRST)
            part = hopper.warpgroup_mma_wait(1, deps=[part])
            one, other = _added(one, other, part, scales, job - 1, FIRST)
            part = following
    if REST:
        part = hopper.warpgroup_mma_wait(1, deps=[part])
        one, other = _added(one, other, part, scales, LAST, FIRST)
        spare = hopper.warpgroup_mma_wait(0, deps=[spare])
        one_rest, other_rest = _added(one_rest, other_rest, spare, scales, LAST, REST)
    else:
        part = hopper.warpgroup_mma_wait(0, deps=[part])
        one, other = _added(one, other, part, scales, LAST, FIRST)
    hopper.mbarrier.arrive(free.index(stage), count=1)
    return one, other, one_rest, other_rest


@gluon
def _multiply(
    ring, at, steps, INPUTS: gl.constexpr, HALF: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
    ORDINARY: gl.constexpr,
):  # fmt: skip
    """The sums of one warp group over `steps` places of the ring from number `at` on.

    Two blocks of 64 weight rows times a tile's first rows [64,FIRST], then both times the rest; LINES rows in all. If
    INPUTS is odd blocks of 64, the last step has one block.
    """
    FIRST: gl.constexpr = _first(LINES)
    REST: gl.constexpr = LINES - FIRST if LINES > FIRST else 16  # nobody looks at these
    PAIRS: gl.constexpr = INPUTS // 128
    one = gl.zeros([64, FIRST], gl.float32, _sums(FIRST))
    other = gl.zeros([64, FIRST], gl.float32, _sums(FIRST))
    one_rest = gl.zeros([64, REST], gl.float32, _sums(REST))
    other_rest = gl.zeros([64, REST], gl.float32, _sums(REST))
    # Not over range(at, ...): of a number that is used in the bounds of inner loops only, Triton 3.6 drops the changes.
    for step in range(gl.minimum(steps, PAIRS)):
        sums = (one, other, one_rest, other_rest)
        one, other, one_rest, other_rest = _step(ring, at + step, sums, 2, HALF, LINES, STAGES, ORDINARY)
    if INPUTS % 128:  # noqa: SIM102  (known before the rest is compiled)
        if steps > PAIRS:
            sums = (one, other, one_rest, other_rest)
            one, other, one_rest, other_rest = _step(ring, at + PAIRS, sums, 1, HALF, LINES, STAGES, ORDINARY)
    return one, other, one_rest, other_rest


@gluon
def _pass_over(ring, at, steps, STAGES: gl.constexpr):
    """Give places of the ring back without a look."""
    _weights, _rows, _rest, _scales, ready, free = ring
    for step in range(steps):
        stage = (at + step) % STAGES
        hopper.mbarrier.wait(ready.index(stage), (at + step) // STAGES & 1)
        hopper.mbarrier.arrive(free.index(stage), count=1)


@gluon
def _gate_kernel(
    x, x_scale, codes, scale, out, order, tiles, counts, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """hidden = gelu(gate x) * up x. A tile's weights are 128 columns' gates and ups; the last may have 64 only."""
    ring = _new_ring(codes, LINES, STAGES, 129)  # 128 threads that copy rows, and the bulk copies
    walk = (tiles, gl.load(counts))
    given = (order, x_scale, out)
    gl.warp_specialize([
        (_gate_columns, (ring, walk, given, 0, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_columns, (ring, walk, given, 1, D, INNER, TOP_K, LINES, STAGES)),
        (_gate_copy, (ring, walk, x, codes, scale, order, D, INNER, TOP_K, LINES, STAGES)),
    ], [4, 4], [224, 56])  # fmt: skip


@gluon
def _gate_place(walk, index, INNER: gl.constexpr):
    """Expert, first row, end and first column of the tile to which `index` belongs; those of 64 columns come last."""
    tiles, live = walk
    FULL: gl.constexpr = INNER // 128
    whole = index < live * FULL
    entry = tiles + gl.where(whole, index // FULL, index - live * FULL) * 3
    first = gl.where(whole, index % FULL, FULL) * 128
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), first


@gluon
def _lines(x, order, start, end, D: gl.constexpr, TOP_K: gl.constexpr, COUNT: gl.constexpr):
    """Where COUNT tokens' first 64 inputs lie, from row `start` on, and which are before `end`."""
    GATHER: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    line = start + gl.arange(0, COUNT, gl.SliceLayout(1, GATHER))
    token = gl.load(order + line, mask=line < end, other=0) // TOP_K
    depth = gl.arange(0, 64, gl.SliceLayout(0, GATHER))[None]
    return x + token[:, None].to(gl.int64) * D + depth, (line < end)[:, None]


@gluon
def _gate_copy(
    ring, walk, x, codes, scale, order, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Gather the tile's tokens and scales, and copy the codes in bulk, also beyond the last column."""
    weights, rows, rest, scales, ready, free = ring
    FIRST: gl.constexpr = _first(LINES)
    word = gl.arange(0, 256, gl.BlockedLayout([2], [32], [4], [0]))  # 128 gates, 128 ups
    total = walk[1] * ((INNER + 127) // 128)
    number = 0
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        expert, start, end, first = _gate_place(walk, index, INNER)
        source, live = _lines(x, order, start, end, D, TOP_K, FIRST)
        further, alive = _lines(x, order, start + FIRST, end, D, TOP_K, LINES - FIRST)
        column = first + word % 128
        pairs = scale + expert.to(gl.int64) * (D // 128 * 2 * INNER) + word // 128 * INNER + column
        gates = expert * (D // 64 * 2 * INNER) + first
        for step in range(D // 128):
            stage = number % STAGES
            full = ready.index(stage)
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            hopper.mbarrier.expect(full, 2 * 256 * 32)
            for block in gl.static_range(2):
                row, place = gates + (2 * step + block) * (2 * INNER), weights.index(stage * 2 + block)
                hopper.tma.async_copy_global_to_shared(codes, [row, 0], full, place.slice(0, 128))
                hopper.tma.async_copy_global_to_shared(codes, [row + INNER, 0], full, place.slice(128, 128))
            words = pairs + step * (2 * INNER)
            hopper.async_copy.async_copy_global_to_shared(scales.index(stage), words, mask=column < INNER)
            for block in gl.static_range(2):
                k, place = step * 128 + block * 64, stage * 2 + block
                hopper.async_copy.async_copy_global_to_shared(rows.index(place), source + k, mask=live)
                hopper.async_copy.async_copy_global_to_shared(rest.index(place), further + k, mask=alive)
            hopper.async_copy.mbarrier_arrive(full, increment_count=False)
            number += 1


@gluon
def _gate_columns(
    ring, walk, given, HALF: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, TOP_K: gl.constexpr,
    LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's 64 columns of every tile."""
    FIRST: gl.constexpr = _first(LINES)
    number = 0
    for index in range(gl.program_id(0), walk[1] * ((INNER + 127) // 128), gl.num_programs(0)):
        _expert, start, end, first = _gate_place(walk, index, INNER)
        if first + HALF * 64 >= INNER:
            _pass_over(ring, number, D // 128, STAGES)
        elif end - start <= FIRST:
            _gate_tile(ring, number, given, start, end, first + HALF * 64, HALF, FIRST, D, INNER, TOP_K, STAGES)
        else:
            _gate_tile(ring, number, given, start, end, first + HALF * 64, HALF, LINES, D, INNER, TOP_K, STAGES)
        number += D // 128


@gluon
def _gate_tile(
    ring, number, given, start, end, first, HALF: gl.constexpr, LINES: gl.constexpr, D: gl.constexpr,
    INNER: gl.constexpr, TOP_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """At most LINES rows of a tile; their scales are on their way during the product."""
    order, x_scale, out = given
    FIRST: gl.constexpr = _first(LINES)
    REST: gl.constexpr = LINES - FIRST
    scale = _token_scale(order, x_scale, start, end, TOP_K, FIRST)
    if REST:
        rest_scale = _token_scale(order, x_scale, start + FIRST, end, TOP_K, REST)
    gates, ups, gates_rest, ups_rest = _multiply(ring, number, D // 128, D, HALF, LINES, STAGES, True)
    _store_hidden(out, gates, ups, scale, start, end, first, INNER, FIRST)
    if REST:
        _store_hidden(out, gates_rest, ups_rest, rest_scale, start + FIRST, end, first, INNER, REST)


@gluon
def _token_scale(order, x_scale, start, end, TOP_K: gl.constexpr, COUNT: gl.constexpr):
    """The scales of COUNT tokens from row `start` on."""
    line = start + gl.arange(0, COUNT, _line())
    token = gl.load(order + line, mask=line < end, other=0) // TOP_K
    return gl.load(x_scale + token, mask=line < end, other=0.0)


@gluon
def _store_hidden(out, gates, ups, scale, start, end, first, INNER: gl.constexpr, COUNT: gl.constexpr):
    """64 columns from `first` of COUNT hidden rows from `start`, by their products [64,COUNT] and scales."""
    WIDE: gl.constexpr = _wide()
    scale = gl.convert_layout(scale, gl.SliceLayout(0, _sums(COUNT)))[None]
    hidden = gelu_gate(gates * scale, ups * scale).to(out.dtype.element_ty)
    hidden = gl.convert_layout(gl.permute(hidden, (1, 0)), WIDE)
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    line = start + gl.arange(0, COUNT, gl.SliceLayout(1, WIDE))
    gl.store(out + line[:, None].to(gl.int64) * INNER + column[None], hidden, mask=(line < end)[:, None])


@gluon
def _down_kernel(
    hidden, hidden_rest, hidden_scale, codes, scale, worth, out, order, tiles, counts, D: gl.constexpr,
    INNER: gl.constexpr, LINES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """out = worth * (down hidden), each row to its assignment's place; tiles of dead rows take no step and store 0."""
    ring = _new_ring(codes, LINES, STAGES, 33)  # 32 threads that copy scales, and the bulk copies
    walk = (tiles, gl.load(counts + 1) * (D // 256))
    given = (order, hidden_scale, worth, out)
    gl.warp_specialize([
        (_down_columns, (ring, walk, given, 0, D, INNER, LINES, STAGES)),
        (_down_columns, (ring, walk, given, 1, D, INNER, LINES, STAGES)),
        (_down_copy, (ring, walk, hidden, hidden_rest, codes, scale, D, INNER, LINES, STAGES)),
    ], [4, 1], [240, 24])  # fmt: skip


@gluon
def _down_place(walk, index, D: gl.constexpr, INNER: gl.constexpr):
    """Expert, first row, end, first column and number of steps of the tile to which `index` belongs."""
    entry = walk[0] + index // (D // 256) * 3
    expert = gl.load(entry)
    steps = gl.where(expert < 0, 0, (INNER + 127) // 128)
    return expert, gl.load(entry + 1), gl.load(entry + 2), index % (D // 256) * 256, steps


@gluon
def _down_copy(
    ring, walk, hidden, hidden_rest, codes, scale, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Copy hidden rows, which lie sorted, and codes in bulk, and scales beside them."""
    weights, rows, rest, scales, ready, free = ring
    FIRST: gl.constexpr = _first(LINES)
    word = gl.arange(0, 256, gl.BlockedLayout([4], [32], [1], [0]))
    number = 0
    for index in range(gl.program_id(0), walk[1], gl.num_programs(0)):
        expert, start, end, first, steps = _down_place(walk, index, D, INNER)
        tall = end - start > FIRST
        pairs = scale + expert.to(gl.int64) * ((INNER + 127) // 128 * D) + first + word
        row = expert * (INNER // 64 * D) + first
        for step in range(steps):
            stage, both = number % STAGES, step < INNER // 128
            full = ready.index(stage)
            hopper.mbarrier.wait(free.index(stage), number // STAGES & 1 ^ 1)
            _expect(full, tall, both, 256 * 32 + FIRST * 64, (LINES - FIRST) * 64)
            hopper.async_copy.async_copy_global_to_shared(scales.index(stage), pairs + step * D)
            for block in gl.static_range(2):
                there = both if block == 1 else step >= 0
                line, k, place = row + (2 * step + block) * D, step * 128 + block * 64, stage * 2 + block
                one, other = weights.index(place).slice(0, 128), weights.index(place).slice(128, 128)
                hopper.tma.async_copy_global_to_shared(codes, [line, 0], full, one, pred=there)
                hopper.tma.async_copy_global_to_shared(codes, [line + 128, 0], full, other, pred=there)
                hopper.tma.async_copy_global_to_shared(hidden, [start, k], full, rows.index(place), pred=there)
                hopper.tma.async_copy_global_to_shared(
                    hidden_rest, [start + FIRST, k], full, rest.index(place), pred=there & tall
                )
            hopper.async_copy.mbarrier_arrive(full, increment_count=False)
            number += 1


@gluon
def _expect(full, tall, both, BYTES: gl.constexpr, MORE: gl.constexpr):
    """Announce the bytes of a block, MORE of them for a tall tile, twice for both blocks."""
    hopper.mbarrier.expect(full, 2 * (BYTES + MORE), pred=tall & both)
    hopper.mbarrier.expect(full, BYTES + MORE, pred=tall & (both == 0))
    hopper.mbarrier.expect(full, 2 * BYTES, pred=(tall == 0) & both)
    hopper.mbarrier.expect(full, BYTES, pred=(tall == 0) & (both == 0))


@gluon
def _down_columns(
    ring, walk, given, HALF: gl.constexpr, D: gl.constexpr, INNER: gl.constexpr, LINES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One warp group's columns of every tile: 64, and 64 that are 128 further."""
    FIRST: gl.constexpr = _first(LINES)
    number = 0
    for index in range(gl.program_id(0), walk[1], gl.num_programs(0)):
        _expert, start, end, first, steps = _down_place(walk, index, D, INNER)
        first += HALF * 64
        if end - start <= FIRST:
            _down_tile(ring, number, steps, given, start, end, first, HALF, FIRST, D, INNER, STAGES)
        else:
            _down_tile(ring, number, steps, given, start, end, first, HALF, LINES, D, INNER, STAGES)
        number += steps


@gluon
def _down_tile(
    ring, number, steps, given, start, end, first, HALF: gl.constexpr, LINES: gl.constexpr, D: gl.constexpr,
    INNER: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """At most LINES rows of a tile; their scales and places are on their way during the product."""
    FIRST: gl.constexpr = _first(LINES)
    REST: gl.constexpr = LINES - FIRST
    facts = _row_facts(given, start, end, steps, FIRST)
    if REST:
        rest_facts = _row_facts(given, start + FIRST, end, steps, REST)
    one, other, one_rest, other_rest = _multiply(ring, number, steps, INNER, HALF, LINES, STAGES, False)
    _store_rows(given[3], one, facts, start, end, first, D, FIRST)
    _store_rows(given[3], other, facts, start, end, first + 128, D, FIRST)
    if REST:
        _store_rows(given[3], one_rest, rest_facts, start + FIRST, end, first, D, REST)
        _store_rows(given[3], other_rest, rest_facts, start + FIRST, end, first + 128, D, REST)


@gluon
def _row_facts(given, start, end, steps, COUNT: gl.constexpr):
    """Where COUNT rows from `start` on go, what they are worth, and their scales."""
    order, hidden_scale, worth, _out = given
    line = start + gl.arange(0, COUNT, _line())
    place = gl.load(order + line, mask=line < end, other=0)
    factor = gl.load(worth + place, mask=line < end, other=0.0)
    return place, factor, gl.load(hidden_scale + line, mask=(line < end) & (steps > 0), other=0.0)


@gluon
def _store_rows(out, sums, facts, start, end, first, D: gl.constexpr, COUNT: gl.constexpr):
    """64 columns from `first` of COUNT rows, each to its place, by their products [64,COUNT]."""
    WIDE: gl.constexpr = _wide()
    SIDE: gl.constexpr = gl.SliceLayout(0, _sums(COUNT))
    place, factor, scale = facts
    sums = sums * gl.convert_layout(scale, SIDE)[None]
    result = (sums * gl.convert_layout(factor, SIDE)[None]).to(out.dtype.element_ty)
    result = gl.convert_layout(gl.permute(result, (1, 0)), WIDE)
    place = gl.convert_layout(place, gl.SliceLayout(1, WIDE))
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    line = start + gl.arange(0, COUNT, gl.SliceLayout(1, WIDE))
    gl.store(out + place[:, None].to(gl.int64) * D + column[None], result, mask=(line < end)[:, None])
