"""An automaton and its canvases as tables on a device, for the dynamic programme in logarithms.

The operations are in `kernels/triton/chain.py` and `constrained.py`, each with its eager twin. A GPU's steps use the
tables (`engine/constrained_step.py`); `restrict` does the same for logits that come from elsewhere. No number is too
small here, so this also serves on a CPU where the plain sums of `chain.py` run out of range.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from redraft import kernels
from redraft.constraints.chain import Array, Ends, Groups
from redraft.constraints.tokens import TokenAutomaton
from redraft.diffusion.sampler import Distribution
from redraft.kernels.switches import call
from redraft.kernels.triton.chain import Edges, Lists
from redraft.kernels.triton.constrained import (
    PIECE,
    AutomatonTables,
    CanvasTables,
    add_by_class,
    automaton_terms,
    best_tokens,
    class_sums,
)
from redraft.kernels.vocabulary import NEVER


def automaton_tables(
    device: torch.device, automaton: TokenAutomaton, class_of: Array, tokens: Tensor | None = None
) -> AutomatonTables:
    """The tables of an automaton over W tokens (`tokens` if given) whose classes are `class_of` [W]."""

    def put(values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(device)

    def numbered(sizes: Array, items: Array) -> Lists:
        return Lists(items=put(items), first=put(_starts(sizes)))

    def lists(groups: Groups, items: Array, count: int) -> Lists:
        return numbered(_sizes(groups, count), items[groups.order])

    live = np.flatnonzero(class_of < automaton.classes)
    kinds = Groups.by(class_of[live])
    pieces, cuts = _cut(_sizes(kinds, automaton.classes), PIECE)
    owner = np.repeat(np.arange(automaton.sets), np.diff(automaton.set_first))
    by_label = Groups.by(automaton.label)
    source, target, label = map(torch.from_numpy, (automaton.source, automaton.target, automaton.label))
    return AutomatonTables(
        tokens=tokens,
        class_of=put(class_of).to(torch.int16 if automaton.classes < 1 << 15 else torch.int32),
        pieces=numbered(pieces, live[kinds.order]),
        owners=put(_starts(cuts)),
        sets=Lists(items=put(automaton.set_class), first=put(automaton.set_first)),
        holders=lists(Groups.by(automaton.set_class), owner, automaton.classes),
        uses=lists(by_label, automaton.source, automaton.sets),
        leads=put(automaton.target[by_label.order]),
        edges=Edges.of(source.long(), target.long(), label.long(), automaton.states, device),
        every_class=Lists(items=put(np.arange(automaton.classes)), first=put(np.array([0, automaton.classes]))),
    )


def _starts(sizes: Array) -> Array:
    """Where lists of these sizes [N] begin when stored in sequence, and where the last one ends, [N+1]."""
    return np.concatenate([[0], np.cumsum(sizes)])


def _sizes(groups: Groups, count: int) -> Array:
    """The number of items in each of `count` groups."""
    sizes = np.zeros(count, dtype=np.int64)
    sizes[groups.owner] = np.diff(np.append(groups.first, len(groups.order)))
    return sizes


def _cut(sizes: Array, most: int) -> tuple[Array, Array]:
    """Lists of these sizes [N] cut into pieces of at most `most`: the sizes of the pieces, and the pieces per list."""
    cuts = np.maximum(-(-sizes // most), 1)
    last = np.cumsum(cuts) - 1
    pieces = np.full(cuts.sum(), most)
    pieces[last] = sizes - (cuts - 1) * most
    return pieces, cuts


def canvas_tables(device: torch.device, possible: Array, held: Array, ends: Ends) -> CanvasTables:
    """The tables of one canvas, from the possible sets at each position, bool [L,U], and the columns `held` [L]."""

    def put(values: Array) -> Tensor:
        return torch.from_numpy(values).to(device)

    def logs(allowed: Array) -> Tensor:
        return put(np.where(allowed, np.float32(0), np.float32(NEVER)))

    start = np.arange(len(ends.final)) == ends.start
    place, gate = (-1, ends.final) if ends.gate is None else ends.gate
    return CanvasTables(
        weights=logs(possible),
        held=put(held.astype(np.int32)),
        ends=logs(np.stack([start, ends.final])),
        gate_at=put(np.array(place, dtype=np.int32)),
        gate=logs(gate),
    )


def restrict(logits: Tensor, rows: Tensor, automaton: AutomatonTables, tables: CanvasTables) -> Distribution:
    """The constrained distribution of tempered logits fp32 [F,W] at the positions `rows` [F]; overwrites the logits.

    The argmax at each position is its part of the best string. A row's entropy is NaN if a possible token's logit is.
    """
    temperatures = torch.ones(1, device=logits.device)
    sums = call("class_sums", class_sums, logits, automaton, None, temperatures)  # [F,C]
    most, total = (
        part.new_zeros(1, len(tables.held), part.shape[1]).index_copy_(1, rows, part[None])
        for part in (sums.most, sums.total)
    )
    terms = call("automaton_terms", automaton_terms, most, total, automaton, CanvasTables.stacked([tables]))
    added, labels = (part[0, rows] for part in terms)
    tokens = call("best_tokens", best_tokens, labels, sums, automaton.sets).long()
    call("add_by_class", add_by_class, logits, added, automaton.class_of, None, None, temperatures)
    probabilities, _, entropy = kernels.distribution(logits)
    return Distribution(probabilities, tokens, entropy + sums.spoiled)
