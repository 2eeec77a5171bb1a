"""The forward pass of a packed model: a pure function over rows of segments and pages of keys and values.

Nothing here reads a value back from the device, so the whole pass can be captured in a CUDA graph. Shapes: R rows = S
segments of L, D width, N query heads, H head dim, P pages of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from redraft.config import LayerType
from redraft.kernels.device_group import DeviceGroup
from redraft.kernels.packed import Rows
from redraft.kernels.streams import in_parallel
from redraft.kernels.switches import call
from redraft.kernels.triton.norms import enter
from redraft.kernels.triton.residuals import FeedForwardRows
from redraft.kernels.triton.segments import Segments
from redraft.model.packed.layers import (
    add_attention,
    add_experts,
    after_attention,
    conditioning,
    end_layer,
    enter_layer,
    feed_forward,
    feed_forward_norms,
    next_norm,
    takes_fp8,
)
from redraft.model.packed.pages import Pages
from redraft.model.packed.shard_context import ShardContext, residual_rows
from redraft.model.packed.weights import PackedModel, Shard


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What enters a forward.

    token_ids  int [R]
    soft       [R,D] soft embeddings of the previous step; zeros in rows that have none
    segments   the segments that the rows belong to
    tables     int32 [S,P] per layer kind: which page holds which 256 positions of a segment's request
    images     [I,D] embeddings for token ids below 0, see `norms.enter`; None for a model without vision
    """

    token_ids: Tensor
    soft: Tensor
    segments: Segments
    tables: dict[LayerType, Tensor]
    images: Tensor | None = None


def new_images(model: PackedModel, tokens: int) -> Tensor:
    """Room for image embeddings of this many tokens, see `Inputs`."""
    return torch.zeros(tokens, model.config.hidden_size, dtype=model.dtype, device=model.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A forward between two layers, on each device.

    contexts  what every layer reads
    x, h      the next layer's input [R,D], of which a device may have its own rows only, and the norm of it
    layer     the next layer's number
    """

    contexts: Sequence[ShardContext]
    x: Sequence[Tensor]
    h: Sequence[Rows]
    layer: int


def forward(
    model: PackedModel, inputs: Inputs, pages: tuple[Pages, ...], *, all_rows: bool = False
) -> tuple[Tensor, ...]:
    """Hidden states of every row after the final norm, [R,D], the same on every device.

    The rows' keys and values are written into their pages.

    In the last layer, rows that are only encoded stop at their keys and values, and their hidden states are
    meaningless, unless `all_rows` is set.
    """
    return finish_forward(begin_forward(model, inputs, pages, layers=0), all_rows=all_rows)


def begin_forward(model: PackedModel, inputs: Inputs, pages: tuple[Pages, ...], *, layers: int) -> Begun:
    """The first part of `forward`: embeddings, self-conditioning and some layers, but never the last one."""
    with DeviceGroup(model.devices) as group:
        own = residual_rows(len(inputs.token_ids), len(model.shards))
        context, added = in_parallel(
            model.device,
            partial(ShardContext.of, model.shards[0], pages[0], inputs.segments, inputs.tables, own=own[0]),
            partial(conditioning, model, inputs.soft),
        )
        first, eps = model.layers[0], model.config.rms_norm_eps
        x, h = call(
            "enter", enter, inputs.token_ids, model.vocabulary.head, model.embedding_scale, added, inputs.segments,
            first.entering, eps, fp8=takes_fp8(first.qkv), images=inputs.images,
        )  # fmt: skip
        contexts, xs, hs = [context], [x], [h]
        if len(model.shards) > 1:
            contexts, xs, hs = _broadcast_inputs(group, model, inputs, pages, own, context, x, h)
        begun = Begun(contexts=contexts, x=xs, h=hs, layer=0)
        for _ in range(min(layers, len(model.layers) - 1)):
            begun = _layer(group, begun)
    return begun


def finish_forward(begun: Begun, *, all_rows: bool = False) -> tuple[Tensor, ...]:
    """The rest of `forward`."""
    last = len(begun.contexts[0].shard.layers) - 1
    with DeviceGroup(context.shard.device for context in begun.contexts) as group:
        while begun.layer <= last:
            begun = _layer(group, begun, canvases_only=begun.layer == last and not all_rows)
    hidden = tuple(h for h in begun.h if isinstance(h, Tensor))
    assert len(hidden) == len(begun.h)
    return hidden


def _layer(group: DeviceGroup, begun: Begun, *, canvases_only: bool = False) -> Begun:
    """One layer on all devices; with `canvases_only`, only rows of canvases take its feed-forward.

    The shards' partial sums are gathered: of the attention's output, and of both feed-forward outputs. Of the layer's
    input, as of its output, every device has all rows or its own, see `residual_rows`.
    """
    contexts, number = begun.contexts, begun.layer
    shards = [context.shard for context in contexts]
    lengths = [context.takes_experts(canvases_only=canvases_only) for context in contexts]
    (outs,) = group.all_gather(group.map(lambda context, h: context.attention(number, h), contexts, begun.h))
    xs, given = _after_attention(group, contexts, number, begun.x, outs)
    fed = group.map(partial(feed_forward, number), shards, given, lengths)
    dense, sparse = group.all_gather(*zip(*fed, strict=True))
    xs, hs = _end_layer(group, contexts, number, xs, dense, sparse)
    return Begun(contexts=contexts, x=xs, h=hs, layer=number + 1)


def _after_attention(
    group: DeviceGroup,
    contexts: Sequence[ShardContext],
    number: int,
    xs: Sequence[Tensor],
    outs: Sequence[Sequence[Tensor]],
) -> tuple[Sequence[Tensor], Sequence[FeedForwardRows]]:
    """A layer's input with its attention added, and what its feed-forward reads [R,D], on each device."""
    shards = [context.shard for context in contexts]
    if _hold_all(contexts):
        xs, given = zip(*group.map(partial(after_attention, number), shards, xs, outs), strict=True)
        return xs, given
    firsts = [context.own.start for context in contexts]
    xs = group.map(partial(add_attention, number), shards, xs, outs, firsts)
    (rows,) = group.all_gather(xs)
    return xs, group.map(partial(feed_forward_norms, number), shards, rows)


def _end_layer(
    group: DeviceGroup, contexts: Sequence[ShardContext], number: int, xs: Sequence[Tensor],
    dense: Sequence[Sequence[Tensor]], sparse: Sequence[Sequence[Tensor]],
) -> tuple[Sequence[Tensor], Sequence[Rows]]:  # fmt: skip
    """A layer's output, and the norm of it [R,D], on each device."""
    shards, segments = [context.shard for context in contexts], [context.segments for context in contexts]
    if _hold_all(contexts):
        xs, hs = zip(*group.map(partial(end_layer, number), shards, xs, dense, sparse, segments), strict=True)
        return xs, hs
    firsts = [context.own.start for context in contexts]
    xs = group.map(partial(add_experts, number), shards, xs, dense, sparse, segments, firsts)
    (rows,) = group.all_gather(xs)
    return xs, group.map(partial(next_norm, number), shards, rows)


def _hold_all(contexts: Sequence[ShardContext]) -> bool:
    """Whether every device adds up and keeps all rows of the residual stream."""
    return all(context.own == contexts[0].own for context in contexts)


def _broadcast_inputs(
    group: DeviceGroup, model: PackedModel, inputs: Inputs, pages: Sequence[Pages], own: Sequence[range],
    context: ShardContext, x: Tensor, h: Rows,
) -> tuple[list[ShardContext], list[Tensor], list[Rows]]:  # fmt: skip
    """Contexts, inputs of the first layer and the norms of these for all shards, from the first one's."""

    def begin(
        shard: Shard, pages: Pages, own: range, x: Tensor, numbers: dict[str, Tensor]
    ) -> tuple[ShardContext, Rows]:
        if shard is model.shards[0]:
            return context, h
        tables: dict[LayerType, Tensor] = {kind: numbers.pop(kind) for kind in inputs.tables}
        segments = Segments(**numbers, rows=inputs.segments.rows)
        return ShardContext.of(shard, pages, segments, tables, own=own), enter_layer(shard, x)

    xs = group.broadcast(x)
    begun = group.map(begin, model.shards, pages, own, xs, group.broadcast_dict(_numbers(inputs)))
    kept = [x[rows.start : rows.stop] for x, rows in zip(xs, own, strict=True)]
    return [context for context, _ in begun], kept, [h for _, h in begun]


def _numbers(inputs: Inputs) -> dict[str, Tensor]:
    """A forward's segments and tables, which are all int32."""
    segments = inputs.segments
    fields = {name: getattr(segments, name) for name in ("kind", "start", "length", "since", "until")}
    return {name: field for name, field in fields.items() if field is not None} | inputs.tables
