"""One whole denoising step on the device: from token ids to the next canvases, without involving the host.

This is everything that CUDA graphs hold. Settings and lengths are data, state is kept per slot. Shapes: C slots, S
segments of L rows, R = S*L, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.engine.graph_buffers import StepFields
from redraft.kernels.device_group import DeviceGroup
from redraft.kernels.streams import in_parallel
from redraft.kernels.switches import call
from redraft.kernels.triton.head import Choice, HeadResult, predict
from redraft.kernels.triton.self_conditioning import soft_embeddings
from redraft.kernels.triton.step import SlotCanvases, enter_tokens, finish_step
from redraft.model.packed.forward import Begun, Inputs, begin_forward, finish_forward
from redraft.model.packed.pages import Pages
from redraft.model.packed.weights import PackedModel, Shard

HEAD_ROWS = 2048
"""Rows whose logits exist at the same time: 1 GiB for a vocabulary of 262,144 in bf16."""
CONSTRAINED_ROWS = 2048
"""The same for canvases with a constraint, in addition; see `constrained_step.py`."""

Deliver = Callable[[Tensor], None]
"""Takes the report [S,2+4L] of a step, see `kernels.triton.step.Report`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotState:
    """What canvases keep between their steps; soft [C+2,L,D] are the soft embeddings of the last step.

    After the real slots come one for discarded results and, for soft embeddings only, one of zeros.
    """

    canvases: SlotCanvases
    soft: Tensor


def new_slots(model: PackedModel, slots: int, rows: int) -> SlotState:
    """The initial state of `slots` slots."""

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(slots + 1, *shape, dtype=torch.int32, device=model.device)

    soft = torch.zeros(slots + 2, rows, model.config.hidden_size, dtype=model.dtype, device=model.device)
    canvases = SlotCanvases(tokens=numbers(rows), argmax=numbers(rows), stable=numbers(), converged=numbers())
    return SlotState(canvases=canvases, soft=soft)


def working_bytes(config: ModelConfig, segments: int, item: int, *, fp8_vocabulary: bool = False) -> int:
    """Roughly the bytes that a step of this many canvases takes besides weights and pages, at `item` bytes a number.

    These are the logits of one part of the rows and the sums over the vocabulary, both also for canvases with
    constraints, then a layer's expert rows, attention's partial sums and a dozen row buffers, which all graphs share.
    `fp8_vocabulary` adds weights in FP8.
    """
    rows, width = segments * config.canvas_length, config.hidden_size
    head = sum(min(rows, max(most, config.canvas_length)) for most in (HEAD_ROWS, CONSTRAINED_ROWS))
    heads = config.num_attention_heads * max(config.head_dim, config.global_head_dim)
    experts = config.top_k_experts * (width + 2 * config.moe_intermediate_size)
    vocabulary = head * (config.vocab_size * (item + fp8_vocabulary) + 8 * width * 4)
    return vocabulary + rows * ((experts + 12 * width) * item + 2 * heads * 4) + (256 << 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step in two parts: `begin`, which includes some of the layers, then `finish`. `images` as in `Inputs`."""

    model: PackedModel
    fields: StepFields
    state: SlotState
    pages: tuple[Pages, ...]
    images: Tensor | None
    first_layers: int = 0

    def begin(self) -> Begun:
        """The beginning of the forward. It changes only new canvases' tokens, and the segments' pages of its layers."""
        fields, state, segments = self.fields, self.state, self.fields.segments
        given, slot, vocab = fields.views["tokens"].flatten(), fields.views["slot"], self.model.config.vocab_size
        token_ids = call("enter_tokens", enter_tokens, given, state.canvases, slot, fields.counters, segments, vocab)
        soft = state.soft.index_select(0, fields.views["soft_from"]).flatten(0, 1)  # [R,D]
        inputs = Inputs(token_ids=token_ids, soft=soft, segments=segments, tables=fields.tables, images=self.images)
        return begin_forward(self.model, inputs, self.pages, layers=self.first_layers)

    def finish(self, begun: Begun, deliver: Deliver) -> tuple[Tensor, ...]:
        """The rest of the forward, and every DENOISE segment's sampler; returns hidden states [R,D] on every device.

        SAMPLED_OUTSIDE canvases, which have a constraint, only get hidden states.
        """
        hidden = finish_forward(begun)
        sample(self.model, self.fields, self.state, hidden, deliver)
        return hidden


def sample(
    model: PackedModel, fields: StepFields, state: SlotState, hidden: Sequence[Tensor], deliver: Deliver
) -> None:
    """From hidden states [R,D] on every device to the next state of every DENOISE segment's canvas.

    Each device takes some of the segments; the first one decides for all of them. The report is delivered while the
    soft embeddings of the last rows are still being computed: only the next step needs them, and the host prepares it
    meanwhile. Decisions do not run in parallel with them, because soft embeddings would leave no room on the device.
    """
    config, shards = model.config, model.shards[: fields.count]
    ends = [fields.count * number // len(shards) for number in range(len(shards) + 1)]
    with DeviceGroup(shard.device for shard in shards) as group:
        parts = [own.part(*ends[at : at + 2]) for at, own in enumerate(fields.broadcast(group))]
        rows = [h[first * fields.rows :] for h, first in zip(hidden[: len(shards)], ends[:-1], strict=True)]
        sampled = group.map(partial(_sample, config), shards, parts, rows)
        given = fields.rules, state.canvases, fields.views["slot"], fields.counters, fields.segments, config.vocab_size
        report = call("finish_step", finish_step, gather_choice(group, sampled), *given)
        _, soft = in_parallel(
            model.device, partial(deliver, report.block), lambda: group.map(Sampled.soft_embeddings, sampled)
        )
        made = group.gather([one for part in soft for one in part]).unflatten(0, (fields.count, fields.rows))
    state.soft.index_copy_(0, fields.views["soft_to"], made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One device's part of a step, some of its segments at a time: predictions, and soft embeddings [R,D] of all but
    the last of them, which `last` makes."""

    predictions: list[HeadResult]
    soft: list[Tensor]
    last: Callable[[], Tensor]

    def soft_embeddings(self) -> list[Tensor]:
        """The soft embeddings of all rows."""
        return [*self.soft, self.last()]


def gather_choice(group: DeviceGroup, sampled: Sequence[Sampled]) -> Choice:
    """Argmax, candidate and entropy of all rows, gathered on the first device."""
    predictions = [one for part in sampled for one in part.predictions]
    return Choice(
        argmax=group.gather([one.argmax for one in predictions]),
        candidate=group.gather([one.candidate for one in predictions]),
        entropy=group.gather([one.entropy for one in predictions]),
    )


def _sample(config: ModelConfig, shard: Shard, fields: StepFields, hidden: Tensor) -> Sampled:
    """Head, statistics and soft embeddings of a device's segments, HEAD_ROWS rows at a time."""
    size = min(fields.count, max(1, HEAD_ROWS // fields.rows))
    logits = torch.empty(size * fields.rows, config.vocab_size, dtype=shard.dtype, device=shard.device)
    sampled = list[tuple[HeadResult, Callable[[], Tensor]]]()
    soft = list[Tensor]()
    for first in range(0, fields.count, size):
        if sampled:
            soft.append(sampled[-1][1]())  # before other logits take the place of these
        part = fields.part(first, first + size)
        count = part.count * part.rows
        sampled.append(_sample_at_once(config, shard, part, hidden[first * fields.rows :][:count], logits[:count]))
    return Sampled(predictions=[prediction for prediction, _ in sampled], soft=soft, last=sampled[-1][1])


def _sample_at_once(
    config: ModelConfig, shard: Shard, fields: StepFields, hidden: Tensor, logits: Tensor
) -> tuple[HeadResult, Callable[[], Tensor]]:
    """The prediction for some segments, and what makes their soft embeddings from the logits [R,V] that this fills."""
    temperatures, segments, cap = fields.views["temperature"], fields.segments, config.final_logit_softcapping
    vocabulary, scale = shard.vocabulary, shard.embedding_scale
    given = hidden, vocabulary.head, cap, temperatures, fields.counters, segments, logits, fields.views["not_first"]
    prediction = call("predict", predict, *given)
    table = vocabulary.head, scale, cap, temperatures, fields.views["want_soft"], segments
    soft = partial(
        call, "soft_embeddings", soft_embeddings, logits, prediction, *table, transposed=vocabulary.transposed
    )
    return prediction, soft
