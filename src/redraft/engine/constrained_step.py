"""The sampler for canvases with a constraint, run after the captured step: the counterpart of `graph_step.sample`.

Canvases of one automaton are sampled together, those with a bias on their logits apart from those without, from the
hidden states that the graph left, and several GPUs share them out. The bias and what the automaton allows are applied
to their logits (`kernels/triton/constrained.py`); the usual sampling kernels do the rest. Nothing waits for a device.
Shapes: S segments of L rows, R = S*L, D width, V vocabulary, W tokens that the automaton knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.config import ModelConfig
from redraft.diffusion.constraint import TabledConstraint
from redraft.engine.graph_buffers import StepBuffers, StepFields
from redraft.engine.graph_step import CONSTRAINED_ROWS, Sampled, SlotState, gather_choice, new_slots
from redraft.kernels.device_group import DeviceGroup
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
from redraft.kernels.triton.segments import DENOISE, Segments
from redraft.kernels.triton.self_conditioning import soft_embeddings
from redraft.kernels.triton.step import finish_step
from redraft.kernels.vocabulary import bias_row
from redraft.model.packed.vocabulary import Vocabulary
from redraft.model.packed.weights import PackedModel, Shard
from redraft.settings import Bias

Limit = tuple[TabledConstraint, Bias]
"""What decides about a canvas besides its hidden states and its settings."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Canvases:
    """Segments first .. end of a forward: canvases of one automaton and of `length` positions, with their tables on
    the device that samples them, and what is added to their logits, fp32 [V] each; `biases` is empty if nothing is."""

    first: int
    length: int
    automaton: AutomatonTables
    tables: Sequence[CanvasTables]
    biases: Sequence[Tensor]

    @property
    def end(self) -> int:
        return self.first + len(self.tables)

    @property
    def bias(self) -> Tensor | None:
        """What is added to the logits of the automaton's tokens, fp32 [N,W]."""
        tokens, rows = self.automaton.tokens, self.biases
        return torch.stack([row if tokens is None else row[tokens] for row in rows]) if rows else None


def in_rounds(
    model: PackedModel, groups: Sequence[tuple[int, Sequence[Limit]]], first: int, rows: int
) -> list[list[Canvases]]:
    """What is sampled at a time: parts of about the same size, at most one on each device.

    The canvases of each group, of so many positions, have one automaton, and all or none of them have a bias. They are
    the segments from `first` on, of `rows` rows each. A device gets the tables that it does not have yet, for which
    the host waits.
    """
    shards, count = model.shards, sum(len(limits) for _, limits in groups)
    size = max(1, min(-(-count // len(shards)), CONSTRAINED_ROWS // rows))
    parts = [(length, limits[at : at + size]) for length, limits in groups for at in range(0, len(limits), size)]
    rounds = list[list[Canvases]]()
    for number, (length, limits) in enumerate(parts):
        place = number % len(shards)
        if place == 0:
            rounds.append([])
        device, vocab = shards[place].device, model.config.vocab_size
        tables = [limit.tables(device, vocab) for limit, _ in limits]
        own = [of_canvas for _, of_canvas in tables]
        biases = [bias_row(bias, vocab, device) for _, bias in limits if bias]
        rounds[-1].append(Canvases(first=first, length=length, automaton=tables[0][0], tables=own, biases=biases))
        first += len(limits)
    return rounds


def sample_constrained(
    model: PackedModel,
    fields: StepFields,
    state: SlotState,
    hidden: Sequence[Tensor],
    parts: Sequence[Canvases],
    deliver: Callable[[Tensor, int], None],
) -> None:
    """Take the step of one round's canvases from the forward's hidden states [S*L,D] on every device.

    All logits of a part must fit in its device's memory. `deliver` takes the report int32 [N,2+4L] of the N segments
    and the first one's number; soft embeddings for the next step are made after that.
    """
    first, end, rows = parts[0].first, parts[-1].end, fields.rows
    own, shards = fields.part(first, end), model.shards[: len(parts)]
    with DeviceGroup(shard.device for shard in shards) as group:
        given = [
            everything.part(part.first - first, part.end - first)
            for everything, part in zip(own.broadcast(group), parts, strict=True)
        ]
        states = [of_all[part.first * rows : part.end * rows] for of_all, part in zip(hidden, parts, strict=False)]
        sampled, held = zip(*group.map(partial(_sample, model.config), shards, given, states, parts), strict=True)
        slot, segments = own.views["slot"], _canvases(own)
        report = call(
            "finish_step", finish_step, gather_choice(group, sampled), own.rules, state.canvases, slot, own.counters,
            segments, model.config.vocab_size, held=group.gather(held),
        )  # fmt: skip
        deliver(report.block, first)
        soft = group.gather([made for each in group.map(Sampled.soft_embeddings, sampled) for made in each])
    state.soft.index_copy_(0, slot.long(), soft.unflatten(0, (end - first, rows)))


def _sample(
    config: ModelConfig, shard: Shard, fields: StepFields, hidden: Tensor, canvases: Canvases
) -> tuple[Sampled, Tensor]:
    """One device's canvases from their hidden states [R,D]: predictions, and int32 [N,L], see `CanvasTables.held`."""
    automaton, segments, vocabulary = canvases.automaton, _canvases(fields), shard.vocabulary
    if automaton.tokens is not None:
        vocabulary = Vocabulary(head=vocabulary.rows(automaton.tokens, shard.dtype))
    temperatures, cap = fields.views["temperature"], config.final_logit_softcapping
    logits = torch.empty(len(hidden), len(automaton.class_of), dtype=shard.dtype, device=shard.device)
    call("predict", head.multiply, hidden, vocabulary.head, cap, temperatures, segments, logits)
    tables = CanvasTables.stacked(canvases.tables)
    tiles, argmax, spoiled, held = _obey(logits, canvases, tables, cap, temperatures)
    cool = torch.ones_like(temperatures)
    prediction = call("predict", head.sample, logits, tiles, None, cool, fields.counters, segments)
    best, candidate = argmax, prediction.candidate
    if automaton.tokens is not None:
        best, candidate = (automaton.tokens[column.long()].int() for column in (best, candidate))
    obeying = replace(prediction, argmax=best, candidate=candidate, entropy=prediction.entropy + spoiled)
    table = vocabulary.head, shard.embedding_scale, None, cool, fields.views["want_soft"], segments
    soft = partial(
        call, "soft_embeddings", soft_embeddings, logits, prediction, *table, transposed=vocabulary.transposed
    )
    return Sampled(predictions=[obeying], soft=[], last=soft), held


def _canvases(fields: StepFields) -> Segments:
    """Segments that the captured step did not sample, as canvases."""
    return replace(fields.segments, kind=torch.full_like(fields.views["kind"], DENOISE))


def _obey(
    logits: Tensor, given: Canvases, tables: CanvasTables, cap: float, temperatures: Tensor
) -> tuple[head.Tiles | None, Tensor, Tensor, Tensor]:
    """Replace raw logits [R,W] with the logarithms of the constrained probabilities.

    Returns their tiles, the best strings' columns int32 [R], what to add to the entropies [R] (0, or NaN where a logit
    is NaN), and int32 [S,L], which is `CanvasTables.held` for all rows.
    """
    automaton, length, bias = given.automaton, given.length, given.bias
    sums = call("class_sums", class_sums, logits, automaton, cap, temperatures, bias)  # [R,C]
    count, rows = len(temperatures), len(logits) // len(temperatures)

    def canvases(of_rows: Tensor) -> Tensor:
        return of_rows.unflatten(0, (count, rows))[:, :length]

    def all_rows(of_canvases: Tensor) -> Tensor:
        return F.pad(of_canvases, (0, 0) * (of_canvases.dim() - 2) + (0, rows - length)).flatten(0, 1)

    most, total = canvases(sums.most), canvases(sums.total)
    added, labels = call("automaton_terms", automaton_terms, most, total, automaton, tables)
    labels, held = all_rows(labels), all_rows(tables.held)
    best = call("best_tokens", best_tokens, labels, sums, automaton.sets)
    by_class = all_rows(added), automaton.class_of
    tiles = call("add_by_class", add_by_class, logits, *by_class, held, cap, temperatures, bias)
    argmax = torch.where(held < 0, best, held)
    return tiles, argmax, torch.where(held < 0, sums.spoiled, 0.0), held.view(count, rows)


@torch.inference_mode()
def rehearse_canvas(model: PackedModel, limit: Limit, length: int, rows: int) -> None:
    """Make the tables of a canvas' automaton and compile its kernels, so that no forward waits for either.

    The canvas has `length` positions out of `rows`. Any thread may call this.
    """
    with on_device(model.device):
        (everywhere,) = in_rounds(model, [(length, [limit] * len(model.shards))], 0, rows)
        rehearse(partial(_step_of_zeros, model, rows, everywhere))


def _step_of_zeros(model: PackedModel, rows: int, parts: Sequence[Canvases]) -> None:
    """Take a step of canvases from hidden states of zeros, keeping nothing."""
    shape = parts[-1].end * rows, model.config.hidden_size
    hidden = [torch.zeros(shape, dtype=shard.dtype, device=shard.device) for shard in model.shards]
    fields = StepBuffers(parts[-1].end, rows, 1, model.device, slots=0).fields
    sample_constrained(model, fields, new_slots(model, 0, rows), hidden, parts, lambda block, first: None)
