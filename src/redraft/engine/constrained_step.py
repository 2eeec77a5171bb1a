"""The sampler for canvases with a constraint, run after the captured step: the counterpart of `graph_step.sample`.

Canvases of one automaton are sampled together, from the hidden states that the graph left. What it allows
is applied to their logits (`kernels/triton/constrained.py`); the usual sampling kernels do the rest. Nothing waits for
the device. Shapes: S segments of L rows, R = S*L, D width, W tokens that the automaton knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.diffusion.constraint import TabledConstraint
from redraft.engine.graph_buffers import StepBuffers, StepFields
from redraft.engine.graph_step import CONSTRAINED_ROWS, SlotState, new_slots
from redraft.kernels.streams import on_device
from redraft.kernels.switches import call
from redraft.kernels.triton import head
from redraft.kernels.triton.constrained import (
    AutomatonTables,
    CanvasTables,
    add_by_class,
    automaton_terms,
    best_tokens,
    class_sums,
)
from redraft.kernels.triton.rehearsal import rehearse
from redraft.kernels.triton.segments import DENOISE
from redraft.kernels.triton.self_conditioning import soft_embeddings
from redraft.kernels.triton.step import finish_step
from redraft.model.packed.vocabulary import Vocabulary
from redraft.model.packed.weights import PackedModel


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Canvases:
    """Segments first .. first + len(tables) of a forward: canvases of one automaton and of `length` positions."""

    first: int
    length: int
    automaton: AutomatonTables
    tables: Sequence[CanvasTables]

    def parts(self, rows: int) -> list[Canvases]:
        """These canvases, of `rows` rows each, split into groups that are sampled at a time."""
        size = max(1, CONSTRAINED_ROWS // rows)
        return [
            replace(self, first=self.first + at, tables=self.tables[at : at + size])
            for at in range(0, len(self.tables), size)
        ]


def sample_constrained(
    model: PackedModel, fields: StepFields, state: SlotState, hidden: Tensor, canvases: Canvases
) -> tuple[Tensor, Callable[[], None]]:
    """Take the step of some canvases from the forward's hidden states [S*L,D]; all their logits must fit in memory.

    Returns the report int32 [len(tables),2+4L], see `kernels.triton.step.Report`, and a function that keeps the soft
    embeddings for the next step.
    """
    first, count, rows = canvases.first, len(canvases.tables), fields.rows
    own, automaton = fields.part(first, first + count), canvases.automaton
    segments = replace(own.segments, kind=torch.full_like(own.views["kind"], DENOISE))
    vocabulary, config = model.vocabulary, model.config
    if automaton.tokens is not None:
        vocabulary = Vocabulary(head=vocabulary.rows(automaton.tokens, model.dtype))
    temperatures, cap = own.views["temperature"], config.final_logit_softcapping
    logits = torch.empty(count * rows, len(automaton.class_of), dtype=model.dtype, device=model.device)
    hidden = hidden[first * rows :][: count * rows]
    call("predict", head.multiply, hidden, vocabulary.head, cap, temperatures, segments, logits)
    tables = CanvasTables.stacked(canvases.tables)
    tiles, argmax, spoiled, held = _obey(logits, automaton, tables, canvases.length, cap, temperatures)
    cool = torch.ones_like(temperatures)
    seen = call("predict", head.sample, logits, tiles, None, cool, own.counters, segments)
    best, candidate = argmax, seen.candidate
    if automaton.tokens is not None:
        best, candidate = (automaton.tokens[column.long()].int() for column in (best, candidate))
    told = replace(seen, argmax=best, candidate=candidate, entropy=seen.entropy + spoiled)
    slot = own.views["slot"]
    report = call(
        "finish_step", finish_step, told, own.rules, state.canvases, slot, own.counters, segments, config.vocab_size,
        held=held,
    )  # fmt: skip

    def keep_soft() -> None:
        table = vocabulary.head, model.embedding_scale, None, cool, own.views["want_soft"], segments
        soft = call("soft_embeddings", soft_embeddings, logits, seen, *table, turned=vocabulary.turned)
        state.soft.index_copy_(0, slot.long(), soft.unflatten(0, (count, rows)))

    return report.block, keep_soft


def _obey(
    logits: Tensor, automaton: AutomatonTables, tables: CanvasTables, length: int, cap: float, temperatures: Tensor
) -> tuple[head.Tiles | None, Tensor, Tensor, Tensor]:
    """Replace raw logits [R,W] with the logarithms of the constrained probabilities.

    Returns their tiles, the best strings' columns int32 [R], what to add to the entropies [R] (0, or NaN where a logit
    is NaN), and int32 [S,L], which is `CanvasTables.held` for all rows.
    """
    sums = class_sums(logits, automaton, cap, temperatures)  # [R,C]
    count, rows = len(temperatures), len(logits) // len(temperatures)

    def canvases(of_rows: Tensor) -> Tensor:
        return of_rows.unflatten(0, (count, rows))[:, :length]

    def all_rows(of_canvases: Tensor) -> Tensor:
        return F.pad(of_canvases, (0, 0) * (of_canvases.dim() - 2) + (0, rows - length)).flatten(0, 1)

    added, labels = automaton_terms(canvases(sums.most), canvases(sums.total), automaton, tables)
    labels, held = all_rows(labels), all_rows(tables.held)
    best = best_tokens(labels, sums, automaton.sets)
    tiles = add_by_class(logits, all_rows(added), automaton.class_of, held, cap, temperatures)
    argmax = torch.where(held < 0, best, held)
    return tiles, argmax, torch.where(held < 0, sums.spoiled, 0.0), held.view(count, rows)


@torch.inference_mode()
def rehearse_canvas(model: PackedModel, canvas: TabledConstraint, length: int, rows: int) -> None:
    """Make the tables of a canvas' automaton and compile its kernels, so that no forward waits for either.

    The canvas has `length` positions out of `rows`. Any thread may call this.
    """
    with on_device(model.device):
        automaton, tables = canvas.tables(model.device, model.config.vocab_size)
        canvases = Canvases(first=0, length=length, automaton=automaton, tables=[tables])
        rehearse(partial(_step_of_zeros, model, rows, canvases))


def _step_of_zeros(model: PackedModel, rows: int, canvases: Canvases) -> None:
    """Take a step of canvases from hidden states of zeros, keeping nothing."""
    hidden = torch.zeros(rows, model.config.hidden_size, dtype=model.dtype, device=model.device)
    fields = StepBuffers(1, rows, 1, model.device).fields
    _, keep_soft = sample_constrained(model, fields, new_slots(model, 0, rows), hidden, canvases)
    keep_soft()
