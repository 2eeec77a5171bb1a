"""The dynamic programme in logarithms, on the device of the logits: what it is on any device, and how it runs on a GPU.

The operations are in `kernels/triton/chain.py`, each with its eager twin. No number is too small here, so this also
serves on a processor where the plain sums of `chain.py` run out of range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from redraft.constraints.chain import Array, Ends, Groups
from redraft.constraints.tokens import TokenAutomaton
from redraft.diffusion.sampler import Distribution
from redraft.kernels.triton.chain import (
    NEVER,
    Edges,
    Lists,
    add_by_class,
    best_tokens,
    log_sums,
    trace,
    ways,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceCanvas:
    """What one canvas asks of the programme, on the device.

    weights  fp32 [L,U]: 0 for the sets that can stand at each position, "never" for the others
    rows     int64 [F], the free positions
    ends     fp32 [2,Q], logarithms of the states before the first and behind the last position
    gate     a position and the same for the states before it
    """

    weights: Tensor
    rows: Tensor
    ends: Tensor
    gate: tuple[int, Tensor] | None

    @classmethod
    def of(cls, possible: Array, rows: Tensor, ends: Ends) -> DeviceCanvas:
        """From bool [L,U] and the numbers of the free positions, which are on the device."""

        def logs(allowed: Array) -> Tensor:
            return torch.from_numpy(np.where(allowed, np.float32(0), np.float32(NEVER))).to(rows.device)

        start = np.arange(len(ends.final)) == ends.start
        gate = None if ends.gate is None else (ends.gate[0], logs(ends.gate[1]))
        both = logs(np.stack([start, ends.final]))
        return cls(weights=logs(possible), rows=rows, ends=both, gate=gate)


class DeviceChain:
    """The tables of an automaton over W tokens, whose classes are `class_of` [W], on a device."""

    def __init__(self, automaton: TokenAutomaton, class_of: Array, device: torch.device) -> None:
        def put(values: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(device)

        def lists(groups: Groups, items: Array, count: int) -> Lists:
            sizes = np.zeros(count, dtype=np.int64)
            sizes[groups.owner] = np.diff(np.append(groups.first, len(groups.order)))
            return Lists(items=put(items[groups.order]), first=put(np.concatenate([[0], np.cumsum(sizes)])))

        live = np.flatnonzero(class_of < automaton.classes)
        owner = np.repeat(np.arange(automaton.sets), np.diff(automaton.set_first))
        by_label = Groups.by(automaton.label)
        self.class_of = put(class_of)
        self.classes = lists(Groups.by(class_of[live]), live, automaton.classes)  # their tokens
        self.sets = Lists(items=put(automaton.set_class), first=put(automaton.set_first))  # their classes
        self.holders = lists(Groups.by(automaton.set_class), owner, automaton.classes)  # the sets of each class
        self.uses = lists(by_label, automaton.source, automaton.sets)  # where a set's edges begin,
        self.leads = put(automaton.target[by_label.order])  # and where they lead
        source, target, label = map(torch.from_numpy, (automaton.source, automaton.target, automaton.label))
        self.edges = Edges.of(source.long(), target.long(), label.long(), automaton.states, device)

    def restrict(self, logits: Tensor, canvas: DeviceCanvas) -> Distribution:
        """The constrained marginals of tempered logits [F,W], which are overwritten, and the best string's tokens.

        A row's entropy is NaN if a possible token's logit is.
        """
        by_class, sums = log_sums(logits, self.classes)  # [F,C]
        spoiled = 0 * sums.sum(1)  # 0, or NaN, which the recursion would lose
        most, total = (canvas.weights.clone() for _ in range(2))  # [L,U]
        most[canvas.rows] += log_sums(by_class, self.sets)[0]
        total[canvas.rows] += log_sums(sums, self.sets)[1]
        ahead, back, best = ways(total, most, self.edges, canvas.ends, canvas.gate)
        labels = trace(best, most, self.edges, canvas.ends[1])[canvas.rows]
        tokens = best_tokens(logits, labels, by_class, self.sets, self.classes)
        around = log_sums(ahead[:-1], self.uses, back.flip(0)[1:].contiguous(), self.leads)[1]  # [L,U]
        around -= (around + total).logsumexp(1, keepdim=True)  # of all ways through the canvas
        added = log_sums(around[canvas.rows], self.holders)[1]
        seen = Distribution.of(add_by_class(logits, added, self.class_of))
        return replace(seen, argmax=tokens, entropy=seen.entropy + spoiled)
