"""The dynamic programme of constraints: sums over lists, and the recursion over the positions of canvases.

Sums over lists of items (edges of a set, classes of a set, sets of a class) are one kernel; the recursion is one
program for each canvas and direction, which goes through the positions in order with a barrier after each. Everything
is in fp32 logarithms, so that no logits are too far apart. Sums have a fixed order: the same input gives the same bits.
The part that deals with the vocabulary is in `constrained.py`.

Shapes: B canvases, R rows, L positions, Q states, E edges, U sets, C classes, N items, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels.triton.language import LOWEST, cdiv, jit, next_power_of_2, tl, use_triton
from redraft.kernels.vocabulary import NEVER


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """G lists of items: those of list g are items[first[g] : first[g+1]], int32 [N] and [G+1]."""

    items: Tensor
    first: Tensor

    @property
    def owner(self) -> Tensor:
        """The list of each item, int64 [N]."""
        return torch.repeat_interleave(self.first.diff().long())

    @property
    def block(self) -> int:
        """How many items of a list a program takes at a time: twice the average length, within bounds."""
        return min(max(next_power_of_2(2 * len(self.items) // (len(self.first) - 1)), 8), 256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainTile:
    """How the recursion over positions is cut up; `rows` and `states` are powers of two.

    edges   edges per row: a state has as many rows as its edges need
    rows    rows that a program sums at a time
    states  states whose rows it adds up at a time
    pieces  rows of each state that it reads at a time
    warps   of the program
    """

    edges: int
    rows: int
    states: int
    pieces: int
    warps: int

    @classmethod
    def of(cls, counts: Tensor) -> ChainTile:
        """The default tile, from the number of edges that arrive at each state, int64 [2,Q].

        A program's time is mostly latency, so it takes everything at once, up to 8192 edges or rows. Rows are as long
        as states have edges on average: longer ones would be mostly empty, shorter ones would have to be added up.
        """
        mean = int(counts.float().mean())
        edges = min(max(next_power_of_2(mean + 1) // 2, 4), 32)
        needed = -(-counts // edges)
        rows = min(next_power_of_2(max(int(needed.sum(1).max()), 1)), _ITEMS // edges)
        pieces = min(next_power_of_2(max(int(needed.max()), 1)), 16)
        states = min(next_power_of_2(counts.shape[1]), 1024)
        warps = min(max(rows * edges // 256, states // 32, 1), 16)
        return cls(edges=edges, rows=rows, states=states, pieces=pieces, warps=warps)


_NUMBERS = 1024
"""Numbers that a program takes from lists at a time: a list's items in several rows."""

_ITEMS = 8192
"""The most edges that a program holds at a time: 16 for each thread of 16 warps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """Edges grouped by where they arrive, in both directions: [0] forwards, [1] backwards; all int32.

    They are in R rows of `tile.edges` = K each, which are stored side by side, one per thread. All edges of a row
    arrive at one state; its unused places have the set -1.

    first    [2,Q+1]  the rows of state q are first[q] .. first[q+1]
    begins   [2,K,R]  the state where each edge begins
    label    [2,K,R]  its set
    order    [2,Q]    states by rising number of rows, so that those taken together have about the same number
    """

    first: Tensor
    begins: Tensor
    label: Tensor
    order: Tensor
    tile: ChainTile

    @classmethod
    def of(
        cls, source: Tensor, target: Tensor, label: Tensor, states: int, device: torch.device,
        tile: ChainTile | None = None,
    ) -> Edges:  # fmt: skip
        """From int64 [E] on the host; `tile` overrides the default."""
        counts = torch.stack([arrive.bincount(minlength=states) for arrive in (target, source)])  # [2,Q]
        tile = tile or ChainTile.of(counts)
        needed = -(-counts // tile.edges)
        first = F.pad(needed.cumsum(1), (1, 0))  # [2,Q+1]
        rows = cdiv(max(int(first.max()), 1), tile.rows) * tile.rows
        begins = torch.zeros(2, tile.edges, rows, dtype=torch.int32)
        labels = torch.full_like(begins, -1)
        for way, (begin, arrive) in enumerate(((source, target), (target, source))):
            order = arrive.argsort(stable=True)
            at = arrive[order]
            rank = torch.arange(len(at)) - F.pad(counts[way].cumsum(0), (1, 0))[at]
            place = rank % tile.edges, first[way, at] + rank // tile.edges
            begins[way].index_put_(place, begin[order].int())
            labels[way].index_put_(place, label[order].int())
        by_rows = needed.argsort(dim=1, stable=True)
        first, begins, labels, by_rows = (table.int().to(device) for table in (first, begins, labels, by_rows))
        return cls(first=first, begins=begins, label=labels, order=by_rows, tile=tile)

    @property
    def states(self) -> int:
        return self.order.shape[1]

    def way(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where the edges of a direction begin, their sets, and where they arrive, int64 [E] each."""
        owner = torch.repeat_interleave(self.first[number].diff().long())
        begins, label = (table[number].T[: len(owner)] for table in (self.begins, self.label))
        used = label >= 0  # [rows,K]
        begins, label = begins[used].long(), label[used].long()
        return begins, label, owner[:, None].expand_as(used)[used]


def log_sums(
    values: Tensor, lists: Lists, others: Tensor | None = None, pairs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The maximum and the log of summed exponentials of each list, fp32 [R,G] each.

    Items are columns of `values` [R,*]; with `others` [R,*], its column `pairs` int32 [N] is added to each item.
    A sum with an item that is NaN is NaN.
    """
    rows, groups = len(values), len(lists.first) - 1
    if use_triton(values):
        most = values.new_empty(2, rows, groups)
        wide = values if others is None else others
        at_once = max(_NUMBERS // lists.block, 1)
        _log_sums_kernel[(groups, cdiv(rows, at_once))](
            values, values.stride(0), lists.items, wide, wide.stride(0), pairs, lists.first, most[0], most[1], rows,
            groups, AT_ONCE=at_once, BLOCK=lists.block,
        )  # fmt: skip
        return most[0], most[1]
    owner, found = lists.owner, values[:, lists.items.long()]  # [R,N]
    if others is not None and pairs is not None:
        found = found + others[:, pairs.long()]
    return _of_lists(found, owner, groups)


def _of_lists(found: Tensor, owner: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Maxima and logarithms of sums [R,G] of items [R,N] by their list."""
    where = owner.expand_as(found)
    most = found.new_full((len(found), groups), NEVER).scatter_reduce_(1, where, found, "amax")
    sums = torch.zeros_like(most).index_add_(1, owner, (found - most[:, owner]).exp_())
    return most, torch.where(most <= NEVER / 2, NEVER, most + sums.log())


def ways(total: Tensor, most: Tensor, edges: Edges, ends: Tensor, gate_at: Tensor, gate: Tensor) -> Tensor:
    """The ways to each state: sums forwards, sums backwards (from the end), and the best forwards, fp32 [3,B,L+1,Q].

    `total` and `most` [B,L,U] weight the sets in sums and in the maximum, `ends` [B,2,Q] the states before the first
    and after the last position, and `gate` [B,Q] those before position `gate_at` int32 [B], or -1 for none. The results
    lack a constant at every position.
    """
    (canvases, length, sets), states = total.shape, edges.states
    if use_triton(total):
        tile, rows = edges.tile, edges.begins.shape[2]
        found = total.new_empty(3, canvases, length + 1, states)
        sums = total.new_empty(3, canvases, 2, rows)
        _ways_kernel[(3, canvases)](
            total, most, sets, edges.first, edges.begins, edges.label, edges.order, ends, gate_at, gate,
            found, sums, length, states, rows, ROWS=tile.rows, EDGES=tile.edges, STATES=tile.states,
            PIECES=tile.pieces, HELD=rows == tile.rows and states <= tile.states, num_warps=tile.warps,
        )  # fmt: skip
        return found
    found = []
    for number, weights in enumerate((total, total.flip(1), most)):
        way, best = number % 2, number == 2
        places = [length - at if way else at for at in gate_at.tolist()]
        starts = zip(weights, ends[:, way], places, gate, strict=True)
        found += [
            _one_way(rows, edges, way, start, (at, shut), best=best) for rows, start, at, shut in starts
        ]  # fmt: skip
    return torch.stack(found).unflatten(0, (3, canvases))


def _one_way(weights: Tensor, edges: Edges, way: int, start: Tensor, gate: tuple[int, Tensor], *, best: bool) -> Tensor:
    """One direction's recursion over weights [L,U] -> [L+1,Q]."""
    begins, label, arrives = edges.way(way)
    found = [start]
    for position, row in enumerate(weights):
        values = (found[-1] - found[-1].max())[begins] + row[label]
        peak, total = (part[0] for part in _of_lists(values[None], arrives, edges.states))
        here = peak if best else total
        found.append((here + gate[1] if position + 1 == gate[0] else here).clamp(min=NEVER))
    return torch.stack(found)


def trace(best: Tensor, most: Tensor, edges: Edges, final: Tensor) -> Tensor:
    """The sets int64 [B,L] of the most likely ways, given best scores [B,L+1,Q] and the states' final weights [B,Q]."""
    canvases, length, sets = most.shape
    last = (best[:, -1] + final).argmax(1)
    if use_triton(best):
        labels = torch.empty(canvases, length, dtype=torch.long, device=most.device)
        _trace_kernel[(canvases,)](
            best, most, sets, edges.first, edges.begins, edges.label, last, labels, length, edges.states,
            edges.begins.shape[2], WIDTH=edges.tile.edges, EDGES=64, num_warps=1,
        )  # fmt: skip
        return labels
    return torch.stack([_trace(*one, edges) for one in zip(best, most, last, strict=True)])


def _trace(best: Tensor, most: Tensor, state: Tensor, edges: Edges) -> Tensor:
    """The sets [L] of the most likely way to a last state."""
    begins, label, arrives = edges.way(0)
    labels = torch.empty(len(most), dtype=torch.long, device=most.device)
    for position in range(len(most) - 1, -1, -1):
        values = best[position][begins] + most[position][label]
        edge = torch.where(arrives == state, values, 2 * NEVER).argmax()
        labels[position], state = label[edge], begins[edge]
    return labels


@jit
def join(peak, weight, x, inside):
    """Include more numbers x [R,N], where `inside`, in a maximum and a sum of exponentials relative to it, [R] each."""
    top = tl.maximum(peak, tl.max(tl.where(inside, x, LOWEST), 1))
    weight = weight * tl.exp(peak - top) + tl.sum(tl.where(inside, tl.exp(x - top[:, None]), 0.0), 1)
    return top, weight


@jit
def log_of(peak, weight):
    """The logarithm of a joined sum; "never" if it is empty, NaN if one of its items was NaN.

    A maximum ignores NaN, so only `weight` shows it.
    """
    never = (peak <= LOWEST / 2) & (weight == weight)
    return tl.where(never, LOWEST, peak + tl.log(tl.where(weight < 1.0, 1.0, weight)))


@jit(varying=("row_values", "row_others", "total", "rows", "groups"))
def _log_sums_kernel(
    values, row_values, items, others, row_others, pairs, first, most, total, rows, groups, AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One list in some rows."""
    group = tl.program_id(0)
    row = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    low, high = tl.load(first + group), tl.load(first + group + 1)
    values += row.to(tl.int64)[:, None] * row_values
    others += row.to(tl.int64)[:, None] * row_others
    peak, weight = tl.full([AT_ONCE], LOWEST, tl.float32), tl.zeros([AT_ONCE], tl.float32)
    for at in range(low, high, BLOCK):
        item = at + tl.arange(0, BLOCK)
        inside = (item < high)[None] & (row < rows)[:, None]
        x = tl.load(values + tl.load(items + item, item < high, other=0)[None], inside, other=LOWEST)
        if pairs is not None:
            x += tl.load(others + tl.load(pairs + item, item < high, other=0)[None], inside, other=0.0)
        peak, weight = join(peak, weight, x, inside)
    out = row * groups + group
    tl.store(most + out, peak, row < rows)
    tl.store(total + out, log_of(peak, weight), row < rows)


@jit
def _columns(table, stride, COUNT: tl.constexpr):
    """COUNT columns of a table."""
    found = ()
    for column in tl.static_range(COUNT):
        found += (tl.load(table + column * stride),)
    return found


@jit(varying=("sets", "positions", "states", "rows"))
def _ways_kernel(
    totals, mosts, sets, first, begins, label, order, ends, gate_at, gate, found, sums, positions, states, rows,
    ROWS: tl.constexpr, EDGES: tl.constexpr, STATES: tl.constexpr, PIECES: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """At each position, sum first every row, then every state's rows.

    With HELD all rows and states are taken at once, and their tables stay in registers.
    """
    number = tl.program_id(0)  # 0 sums forwards, 1 sums backwards, 2 the best forwards
    canvas = tl.program_id(1).to(tl.int64)
    way = number % 2
    place_of = number * tl.num_programs(1) + canvas
    totals += canvas * positions * sets
    mosts += canvas * positions * sets
    ends += canvas * 2 * states
    gate += canvas * states
    first += way * (states + 1)
    begins += way * rows * EDGES
    label += way * rows * EDGES
    order += way * states
    found += place_of * (positions + 1) * states
    sums += place_of * 2 * rows
    shut = tl.load(gate_at + canvas)
    shut = tl.where(way == 0, shut, positions - shut)
    row, place = tl.arange(0, ROWS), tl.arange(0, STATES)
    held_begins, held_kinds = _columns(begins + row, rows, EDGES), _columns(label + row, rows, EDGES)
    state = tl.load(order + place, place < states, other=0)
    start = tl.load(first + state)
    count = tl.where(place < states, tl.load(first + state + 1) - start, 0)
    longest = tl.max(count, 0)
    level = LOWEST
    for low in range(0, states, STATES):
        value = tl.load(ends + way * states + low + place, low + place < states, other=LOWEST)
        tl.store(found + low + place, value, low + place < states)
        level = tl.maximum(level, tl.max(value, 0))
    tl.debug_barrier()
    for position in range(0, positions):
        at = tl.where(way == 0, position, positions - 1 - position)
        gains = tl.where(number == 2, mosts, totals) + at * sets
        before = found + position * states
        for low in range(0, rows, ROWS):
            begin, kind = held_begins, held_kinds
            if not HELD:
                begin, kind = _columns(begins + low + row, rows, EDGES), _columns(label + low + row, rows, EDGES)
            peak, weight = _sum_of_edges(before, begin, level, gains, kind, ROWS, EDGES)
            tl.store(sums + low + row, peak)
            tl.store(sums + rows + low + row, weight)
        tl.debug_barrier()
        most = LOWEST
        for low in range(0, states, STATES):
            inside = low + place < states
            if not HELD:
                state = tl.load(order + low + place, inside, other=0)
                start = tl.load(first + state)
                count = tl.where(inside, tl.load(first + state + 1) - start, 0)
                longest = tl.max(count, 0)
            peak, weight = _sum_of_rows(sums, rows, start, count, longest, STATES, PIECES)
            value = tl.where(
                peak > LOWEST / 2, peak + tl.where(number == 2, 0.0, tl.log(tl.maximum(weight, 1.0))), LOWEST
            )
            if position + 1 == shut:
                value += tl.load(gate + state, inside, other=0.0)
            value = tl.where(inside, tl.maximum(value, LOWEST), LOWEST)
            tl.store(before + states + state, value, inside)
            most = tl.maximum(most, tl.max(value, 0))
        level = most
        tl.debug_barrier()


@jit
def _sum_of_edges(before, begin, level, gains, kind, ROWS: tl.constexpr, EDGES: tl.constexpr):
    """The maximum of each row's edges, and the sum of their exponentials relative to it: [ROWS] each."""
    values, peak = (), tl.full([ROWS], -3e30, tl.float32)
    for edge in tl.static_range(EDGES):
        gain = tl.load(gains + kind[edge], kind[edge] >= 0, other=LOWEST)
        values += (tl.load(before + begin[edge]) - level + gain,)
        peak = tl.maximum(peak, values[edge])
    weight = tl.zeros([ROWS], tl.float32)
    for edge in tl.static_range(EDGES):
        weight += tl.exp(values[edge] - peak)
    return peak, weight


@jit
def _sum_of_rows(sums, rows, start, count, longest, STATES: tl.constexpr, PIECES: tl.constexpr):
    """The same of each state's `count` rows, at most `longest`, from `start` on: [STATES] each."""
    peak = tl.full([STATES], LOWEST, tl.float32)
    weight = tl.zeros([STATES], tl.float32)
    for ahead in range(0, longest, PIECES):
        theirs, top = (), peak
        for piece in tl.static_range(PIECES):
            here = sums + start + ahead + piece
            theirs += (tl.load(here, ahead + piece < count, other=LOWEST),)
            top = tl.maximum(top, theirs[piece])
        weight *= tl.exp(peak - top)
        for piece in tl.static_range(PIECES):
            here = sums + rows + start + ahead + piece
            weight += tl.load(here, ahead + piece < count, other=0.0) * tl.exp(theirs[piece] - top)
        peak = top
    return peak, weight


@jit(varying=("sets", "positions", "states", "rows"))
def _trace_kernel(
    best, most, sets, first, begins, label, last, labels, positions, states, rows, WIDTH: tl.constexpr,
    EDGES: tl.constexpr,
):  # fmt: skip
    canvas = tl.program_id(0).to(tl.int64)
    best += canvas * (positions + 1) * states
    most += canvas * positions * sets
    labels += canvas * positions
    state = tl.load(last + canvas).to(tl.int32)
    for back in range(0, positions):
        position = positions - 1 - back
        low, high = tl.load(first + state) * WIDTH, tl.load(first + state + 1) * WIDTH
        peak, chosen = -2e30, low
        for at in range(low, high, EDGES):
            edge = at + tl.arange(0, EDGES)
            entry = edge % WIDTH * rows + edge // WIDTH
            kind = tl.load(label + entry, edge < high, other=-1)
            begin = tl.load(begins + entry, edge < high, other=0)
            value = tl.load(best + position * states + begin) + tl.load(most + position * sets + kind, kind >= 0)
            value = tl.where(kind >= 0, value, -3e30)
            top = tl.max(value, 0)
            chosen = tl.where(top > peak, at + tl.argmax(value, 0), chosen)
            peak = tl.maximum(peak, top)
        entry = chosen % WIDTH * rows + chosen // WIDTH
        tl.store(labels + position, tl.load(label + entry).to(tl.int64))
        state = tl.load(begins + entry)
