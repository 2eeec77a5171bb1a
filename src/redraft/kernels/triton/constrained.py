"""Restricts the distributions of canvases to the strings of an automaton, on the device of the logits.

    class_sums      logits of the vocabulary -> weights of the token classes of each row
    automaton_terms  the dynamic programme of `chain.py`: what to add to the logits of each class, and the best string
    best_tokens     the most likely token of the set that this string has at each row
    add_by_class    logits -> logarithms of the constrained probabilities, in place

The results then go through the sampler like unconstrained logits. Nothing else as wide as the vocabulary is made.

Shapes: B canvases of L positions, R = B*L rows, W tokens, Q states, U sets, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from redraft.kernels.triton.chain import Edges, Lists, join, log_of, log_sums, trace, ways
from redraft.kernels.triton.head import Tiles
from redraft.kernels.triton.instructions import rounded
from redraft.kernels.triton.language import LN2, LOG2E, LOWEST, cdiv, jit, tl, use_triton
from redraft.kernels.triton.softcap import capped, tempered
from redraft.kernels.vocabulary import NEVER

TILE = 256
"""Tokens whose statistics `add_by_class` takes together."""
PIECE = 2048
"""The most tokens of a class that one program sums."""
CONTEXT_WEIGHT = 0.25
"""w: a token's probability at a position is p^(1-w) * m^w, normalised, with the model's own probability p and the
marginal m over all valid strings. At 1 these are the exact marginals, which are certain too early (docs/log.md)."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AutomatonTables:
    """The tables of a token automaton.

    tokens    int64 [W]: the only tokens that it knows, if logits are just for these; None: for a whole vocabulary
    class_of  int16 or int32 [W], C for tokens that are allowed nowhere
    pieces    the tokens of each piece of a class, at most `PIECE`; a class' pieces are neighbours
    owners    int32 [C+1], the first piece of each class, then the total number of pieces
    sets      the classes of each set
    holders   the sets of each class
    uses      where the edges of each set begin, and
    leads     where they lead, int32 [E]
    edges     by the states where they arrive
    every_class  one list of all classes
    """

    tokens: Tensor | None
    class_of: Tensor
    pieces: Lists
    owners: Tensor
    sets: Lists
    holders: Lists
    uses: Lists
    leads: Tensor
    edges: Edges
    every_class: Lists

    @property
    def classes(self) -> Lists:
        """The tokens of each class."""
        return Lists(items=self.pieces.items, first=self.pieces.first[self.owners.long()])


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class CanvasTables:
    """The inputs of the programme for canvases; a single canvas has no dimension B.

    weights  fp32 [B,L,U]: 0 for the sets that are allowed at each position, "never" for the others
    held     int32 [B,L]: the column of the only token allowed at a position; -1 where there is a choice
    ends     fp32 [B,2,Q], logarithms of the states before the first and after the last position
    gate_at  int32 [B], a position, or -1, and
    gate     fp32 [B,Q], the same for the states before it
    """

    weights: Tensor
    held: Tensor
    ends: Tensor
    gate_at: Tensor
    gate: Tensor

    @classmethod
    def stacked(cls, canvases: Sequence[CanvasTables]) -> CanvasTables:
        """The tables of several canvases of one length and automaton."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.stack([getattr(one, name) for one in canvases]) for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassSums:
    """For each row and class, [R,C]: the largest tempered logit, its token, and the log of summed exponentials.

    The token is meaningless for a class without tokens.
    """

    most: Tensor
    token: Tensor
    total: Tensor

    @property
    def spoiled(self) -> Tensor:
        """0 for each row [R], or NaN if one of its logits is NaN, which the recursion over positions would lose."""
        return 0 * self.total.sum(1)


def class_sums(
    logits: Tensor, automaton: AutomatonTables, cap: float | None, temperatures: Tensor, bias: Tensor | None = None
) -> ClassSums:
    """The sums of raw logits [R,W] of S segments with `temperatures` [S]; `cap` as in `softcap.tempered`.

    `bias` fp32 [S,W] is added to the capped logits of a segment. A sum with a logit that is NaN is NaN.
    """
    if not use_triton(logits):
        return _class_sums(_biased(logits, cap, temperatures, bias), automaton.classes)
    assert bias is None or bias.stride(0) == logits.stride(0)
    rows, count, classes = len(logits), len(automaton.pieces.first) - 1, len(automaton.owners) - 1
    pieces = _new_sums(logits, count)
    _class_sums_kernel[(count, cdiv(rows, 2))](
        logits, logits.stride(0), automaton.pieces.items, automaton.pieces.first, temperatures, cap, bias, pieces.most,
        pieces.token, pieces.total, rows, count, rows // len(temperatures), AT_ONCE=2, BLOCK=automaton.pieces.block,
        num_warps=1,
    )  # fmt: skip
    if count == classes:  # one piece each
        return pieces
    found = _new_sums(logits, classes)
    _join_kernel[(classes, cdiv(rows, 32))](
        pieces.most, pieces.token, pieces.total, count, automaton.owners, found.most, found.token, found.total,
        rows, classes, AT_ONCE=32, BLOCK=32,
    )  # fmt: skip
    return found


def _new_sums(logits: Tensor, count: int) -> ClassSums:
    most, total = torch.empty(2, len(logits), count, dtype=torch.float32, device=logits.device)
    return ClassSums(most=most, token=torch.empty_like(most, dtype=torch.int32), total=total)


def _biased(logits: Tensor, cap: float | None, temperatures: Tensor, bias: Tensor | None) -> Tensor:
    """Tempered logits [R,W] with the `bias` [S,W] of their segments."""
    x = tempered(logits, cap, temperatures)
    if bias is None:
        return x
    return (x.unflatten(0, (len(bias), -1)) + (bias / temperatures[:, None])[:, None]).flatten(0, 1)


def _class_sums(x: Tensor, classes: Lists) -> ClassSums:
    """The twin, for tempered logits [R,W]."""
    most, total = log_sums(x, classes)
    items, owner = classes.items.long(), classes.owner
    number = torch.where(x[:, items] == most[:, owner], torch.arange(len(items), device=x.device), len(items))
    first = torch.full_like(most, len(items), dtype=torch.long)
    first = first.scatter_reduce_(1, owner.expand_as(number), number, "amin").clamp_(max=max(len(items) - 1, 0))
    return ClassSums(most=most, token=classes.items[first] if len(items) else first.int(), total=total)


def automaton_terms(
    most: Tensor, total: Tensor, automaton: AutomatonTables, tables: CanvasTables
) -> tuple[Tensor, Tensor]:
    """What to add to the tempered logits of each class, fp32 [B,L,C], and the sets of the most likely strings, [B,L].

    `most` and `total` [B,L,C] are the classes' `class_sums`, which are ignored at positions without a choice. After
    the addition, the logits of a position are the logarithms of its constrained probabilities, see `CONTEXT_WEIGHT`.
    """
    free, every = (tables.held < 0)[..., None], automaton.every_class
    of_classes = most.flatten(0, 1), total.flatten(0, 1)  # [R,C]
    of_sets = [
        torch.where(free, log_sums(part, automaton.sets)[way].view_as(tables.weights), 0.0)
        for way, part in enumerate(of_classes)
    ]
    best_of, sum_of = (tables.weights + part for part in of_sets)  # [B,L,U]
    around = tables.weights.flatten(0, 1)  # [R,U]
    if automaton.edges.states == 1:  # positions are independent of one another
        labels = best_of.argmax(-1)
    else:
        ahead, back, best = ways(sum_of, best_of, automaton.edges, tables.ends, tables.gate_at, tables.gate)
        labels = trace(best, best_of, automaton.edges, tables.ends[:, 1])
        left, right = ahead[:, :-1].flatten(0, 1), back.flip(1)[:, 1:].flatten(0, 1)  # [R,Q] around each position
        around = around + log_sums(left, automaton.uses, right, automaton.leads)[1]
    added = CONTEXT_WEIGHT * log_sums(around, automaton.holders)[1]  # [R,C]
    added = added - log_sums(added, every, of_classes[1], every.items)[1]
    return added.view(*free.shape[:2], -1), labels


def best_tokens(labels: Tensor, sums: ClassSums, sets: Lists) -> Tensor:
    """The best token int32 [R] of the set `labels` [R] at each row; `sets` lists the classes of each set."""
    tokens = torch.empty_like(labels, dtype=torch.int32)
    if use_triton(sums.most):
        _tokens_kernel[(len(labels),)](
            labels, sums.most, sums.token, sums.most.shape[1], sets.items, sets.first, tokens, BLOCK=256
        )
        return tokens
    for row, label in enumerate(labels.tolist()):
        members = sets.items[sets.first[label] : sets.first[label + 1]].long()
        tokens[row] = sums.token[row, members[sums.most[row, members].argmax()]]
    return tokens


def add_by_class(
    logits: Tensor, added: Tensor, class_of: Tensor, held: Tensor | None, cap: float | None, temperatures: Tensor,
    bias: Tensor | None = None,
) -> Tiles | None:  # fmt: skip
    """Temper raw logits [R,W] and add `added` [R,C] by each token's class, in place, within the range of their dtype.

    `bias` as in `class_sums`. Tokens of class C become `NEVER`, and where `held` int32 [R] is not -1, so do all tokens
    except that one. Returns the statistics of tiles for `head.sample`; None from the twin.
    """
    rows, width = logits.shape
    if use_triton(logits):
        parts = [torch.empty(rows, cdiv(width, TILE), dtype=torch.float32, device=logits.device) for _ in range(3)]
        _add_kernel[(cdiv(width, 8 * TILE), rows)](
            logits, width, added, added.shape[1], class_of, held, cap, temperatures, bias, *parts, parts[0].shape[1],
            NEVER, rows // len(temperatures), TILE=TILE, TILES=8,
        )  # fmt: skip
        return Tiles(peaks=parts[0], masses=parts[1], moments=parts[2], size=TILE)
    padded = torch.cat((added, added.new_full((len(added), 1), -torch.inf)), 1)
    found = (_biased(logits, cap, temperatures, bias) + padded.index_select(1, class_of.long())).clamp_(min=NEVER)
    if held is not None:
        certain = torch.full_like(found, NEVER).scatter_(1, held.long().clamp(min=0)[:, None], 0.0)
        found = torch.where((held < 0)[:, None], found, certain)
    logits.copy_(found)
    return None


@jit(varying=("width", "total", "rows", "groups", "span"))
def _class_sums_kernel(
    logits, width, items, first, temperatures, cap, bias, most, tokens, total, rows, groups, span,
    AT_ONCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One piece of a class in some rows, which share the list of its tokens."""
    group = tl.program_id(0)
    row = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    temperature = tl.load(temperatures + row // span, row < rows, other=1.0)
    low, high = tl.load(first + group), tl.load(first + group + 1)
    peak, weight = tl.full([AT_ONCE], LOWEST, tl.float32), tl.zeros([AT_ONCE], tl.float32)
    best = tl.zeros([AT_ONCE], tl.int32)
    for at in range(low, high, BLOCK):
        item = at + tl.arange(0, BLOCK)
        inside = (item < high)[None] & (row < rows)[:, None]
        token = tl.load(items + item, item < high, other=0)
        raw = tl.load(logits + row.to(tl.int64)[:, None] * width + token[None], inside, other=0.0).to(tl.float32)
        x = capped(raw, cap, temperature[:, None]) * LN2
        if bias is not None:
            added = bias + (row // span).to(tl.int64)[:, None] * width + token[None]
            x += tl.load(added, inside, other=0.0) / temperature[:, None]
        x = tl.where(inside, x, LOWEST)
        before = peak
        peak, weight = join(peak, weight, x, inside)
        here = tl.min(tl.where(x == peak[:, None], token[None], 0x7FFFFFFF), 1)
        best = tl.where(peak > before, here, best)
    out = row * groups + group
    tl.store(most + out, peak, row < rows)
    tl.store(tokens + out, best, row < rows)
    tl.store(total + out, log_of(peak, weight), row < rows)


@jit(varying=("pieces", "total", "rows", "groups"))
def _join_kernel(
    piece_most, piece_tokens, piece_total, pieces, first, most, tokens, total, rows, groups, AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One class in some rows, from its pieces, which are neighbours."""
    group = tl.program_id(0)
    row = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    low, high = tl.load(first + group), tl.load(first + group + 1)
    largest = tl.full([AT_ONCE], LOWEST, tl.float32)
    peak, weight = largest, tl.zeros([AT_ONCE], tl.float32)
    best = tl.zeros([AT_ONCE], tl.int32)
    for at in range(low, high, BLOCK):
        piece = at + tl.arange(0, BLOCK)
        inside = (piece < high)[None] & (row < rows)[:, None]
        here = row[:, None] * pieces + piece[None]
        top = tl.load(piece_most + here, inside, other=LOWEST)
        token = tl.load(piece_tokens + here, inside, other=0x7FFFFFFF)
        before, largest = largest, tl.maximum(largest, tl.max(top, 1))
        found = tl.min(tl.where(top == largest[:, None], token, 0x7FFFFFFF), 1)
        best = tl.where(largest > before, found, best)
        peak, weight = join(peak, weight, tl.load(piece_total + here, inside, other=LOWEST), inside)
    out = row * groups + group
    tl.store(most + out, largest, row < rows)
    tl.store(tokens + out, best, row < rows)
    tl.store(total + out, log_of(peak, weight), row < rows)


@jit(varying=("kinds",))
def _tokens_kernel(labels, most, best, kinds, set_items, set_first, tokens, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    high = tl.load(set_first + label + 1)
    peak, token = -3e38, 0
    for at in range(tl.load(set_first + label), high, BLOCK):
        item = at + tl.arange(0, BLOCK)
        kind = row * kinds + tl.load(set_items + item, item < high, other=0)
        value = tl.load(most + kind, item < high, other=-3e38)
        top = tl.max(value, 0)
        found = tl.load(best + kind, value == top, other=0x7FFFFFFF)
        token = tl.where(top > peak, tl.min(found, 0), token)
        peak = tl.maximum(peak, top)
    tl.store(tokens + row, token)


@jit(varying=("kinds", "count", "span"))
def _add_kernel(
    logits, width, added, kinds, class_of, helds, cap, temperatures, bias, peaks, masses, moments, count, never, span,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Some tiles of one row; their statistics are those of `head.Tiles`, for the numbers as stored."""
    row = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    token = tile[:, None] * TILE + tl.arange(0, TILE)[None]
    inside = token < width
    kind = tl.load(class_of + token, inside, other=0).to(tl.int32)
    gain = tl.load(added + row * kinds + kind, inside & (kind < kinds), other=0.0)
    here = logits + row * width + token
    raw = tl.load(here, inside, other=0.0).to(tl.float32)
    temperature = tl.load(temperatures + row // span)
    x = capped(raw, cap, temperature) * LN2 + gain
    if bias is not None:
        x += tl.load(bias + row // span * width + token, inside, other=0.0) / temperature
    x = tl.where(kind < kinds, tl.where(x < never, never, x), never)  # NaN stays NaN
    if helds is not None:
        held = tl.load(helds + row)
        x = tl.where(held < 0, x, tl.where(token == held, 0.0, never))
    x = rounded(x, logits.dtype.element_ty)
    tl.store(here, x.to(logits.dtype.element_ty), inside)
    x = tl.where(inside, x, never)
    peak = tl.max(x, 1)
    gap = (x - peak[:, None]) * LOG2E
    weight = tl.where(inside, tl.exp2(gap), 0.0)
    out = row * count + tile
    tl.store(peaks + out, peak, tile < count)
    tl.store(masses + out, tl.sum(weight, 1), tile < count)
    tl.store(moments + out, tl.sum(weight * gap, 1), tile < count)
