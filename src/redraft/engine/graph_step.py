"""One whole denoising step on the device: from token ids to the next canvases, without involving the host.

This is everything a CUDA graph holds. Settings and lengths are data, state is kept per slot. Shapes: C slots, S
segments of L rows, R = S*L, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.engine.graph_buffers import StepFields
from redraft.kernels.streams import beside
from redraft.kernels.switches import call
from redraft.kernels.triton.head import Prediction, predict
from redraft.kernels.triton.self_conditioning import soft_embeddings
from redraft.kernels.triton.step import SlotCanvases, enter_tokens, finish_step
from redraft.model.packed.forward import Inputs, forward
from redraft.model.packed.pages import Pages
from redraft.model.packed.weights import PackedModel

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
    return SlotState(canvases=SlotCanvases(tokens=numbers(rows), argmax=numbers(rows), stable=numbers()), soft=soft)


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


def run_step(
    model: PackedModel,
    fields: StepFields,
    state: SlotState,
    pages: tuple[Pages, ...],
    images: Tensor | None,
    deliver: Deliver,
) -> Tensor:
    """Run the forward and every DENOISE segment's sampler; returns hidden states [R,D]. `images` as in `Inputs`.

    SAMPLED_OUTSIDE canvases, which have a constraint, only get hidden states.
    """
    config, segments, slot = model.config, fields.segments, fields.views["slot"]
    given = fields.views["tokens"].flatten()
    token_ids = call(
        "enter_tokens", enter_tokens, given, state.canvases, slot, fields.counters, segments, config.vocab_size
    )
    soft = state.soft.index_select(0, fields.views["soft_from"]).flatten(0, 1)  # [R,D]
    inputs = Inputs(token_ids=token_ids, soft=soft, segments=segments, tables=fields.tables, images=images)
    hidden = forward(model, inputs, pages)
    sample(model, fields, state, hidden, deliver)
    return hidden


def sample(model: PackedModel, fields: StepFields, state: SlotState, hidden: Tensor, deliver: Deliver) -> None:
    """From hidden states [R,D] to the next state of every DENOISE segment's canvas, HEAD_ROWS rows at a time.

    The report is delivered while the soft embeddings of the last rows are still being computed: only the next step
    needs them, and the host prepares it meanwhile. Decisions do not run in parallel with them, because soft embeddings
    would leave no room on the device.
    """
    size = min(fields.count, max(1, HEAD_ROWS // fields.rows))
    logits = torch.empty(size * fields.rows, model.config.vocab_size, dtype=model.dtype, device=model.device)
    blocks: list[Tensor] = []
    for first in range(0, fields.count, size):
        part, rows = fields.part(first, first + size), hidden[first * fields.rows :]
        seen, block = _decide(model, part, state, rows, logits)
        blocks.append(block)
        keep_soft = partial(_keep_soft, model, part, state, logits, seen)
        if first + size < fields.count:
            keep_soft()
        else:
            report = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
            beside(model.device, partial(deliver, report), keep_soft)


def _decide(
    model: PackedModel, fields: StepFields, state: SlotState, hidden: Tensor, logits: Tensor
) -> tuple[Prediction, Tensor]:
    """Head, statistics and the step's decision for some segments: their prediction and report; fills the logits."""
    segments, counters, count = fields.segments, fields.counters, fields.count * fields.rows
    temperatures, cap = fields.views["temperature"], model.config.final_logit_softcapping
    rows = hidden[:count], model.vocabulary.head, cap, temperatures, counters, segments, logits[:count]
    seen = call("predict", predict, *rows)
    slot, size = fields.views["slot"], model.config.vocab_size
    report = call("finish_step", finish_step, seen, fields.rules, state.canvases, slot, counters, segments, size)
    return seen, report.block


def _keep_soft(model: PackedModel, fields: StepFields, state: SlotState, logits: Tensor, seen: Prediction) -> None:
    """Make the soft embeddings of some segments and keep them for their next step."""
    table = model.vocabulary.head, model.embedding_scale, model.config.final_logit_softcapping
    temperatures, want = fields.views["temperature"], fields.views["want_soft"]
    rows = logits[: fields.count * fields.rows], seen, *table, temperatures, want, fields.segments
    soft = call("soft_embeddings", soft_embeddings, *rows, turned=model.vocabulary.turned)
    state.soft.index_copy_(0, fields.views["soft_to"], soft.unflatten(0, (fields.count, fields.rows)))
