"""A packed model's layers, one shard at a time: what runs on one GPU between the points where shards are added up.

Shapes: R rows, D width, N query heads, G key/value heads, H head dim, K experts of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from redraft.kernels.packed import Matrix, PackedFp8, Rows
from redraft.kernels.streams import in_parallel
from redraft.kernels.switches import call
from redraft.kernels.triton import residuals
from redraft.kernels.triton.experts import experts, plan_products, sum_of_experts
from redraft.kernels.triton.linear import gated_linear, linear
from redraft.kernels.triton.norms import norm, norm_of_parts
from redraft.kernels.triton.prefetch import prefetch
from redraft.kernels.triton.quantize import quantize_rows
from redraft.kernels.triton.residuals import FeedForwardRows
from redraft.kernels.triton.routing import route_rows
from redraft.kernels.triton.segments import Segments
from redraft.model.packed.weights import PackedLayer, PackedModel, Shard
from redraft.model.placement import lacks_fp8

PREFETCH_BYTES = 8 << 20
"""Bytes of the first plain experts to bring into the L2 cache while the router chooses. On an H200 this saves 0.08 of
the 14.84 ms of one canvas; quantized experts do not gain from it."""


def conditioning(model: PackedModel, soft: Tensor) -> Tensor:
    """The self-conditioning MLP's output for soft embeddings [R,D]; rows of zeros stay zeros."""
    h = call("soft_norm", norm, soft, model.soft_norm, model.config.rms_norm_eps)
    hidden = call("soft_gated_linear", gated_linear, h, model.soft_gate_up)
    return product("soft_linear", hidden, model.soft_down, model.dtype)


def enter_layer(shard: Shard, x: Tensor) -> Rows:
    """The first layer's input [R,D], normed."""
    layer, eps = shard.layers[0], shard.config.rms_norm_eps
    return call("next_norm", norm_of_parts, (x,), layer.entering, eps, fp8=takes_fp8(layer.qkv))


def after_attention(number: int, shard: Shard, x: Tensor, out: Sequence[Tensor]) -> tuple[Tensor, FeedForwardRows]:
    """A layer's input x [R,D] with its attention's output added, which comes as parts of [R,D], and the norms of it."""
    weights, formats, eps = shard.layers[number].after_attention, _formats(shard, number), shard.config.rms_norm_eps
    return call("after_attention", residuals.after_attention, x, out, weights, eps, **formats)


def add_attention(number: int, shard: Shard, x: Tensor, out: Sequence[Tensor], first: int) -> Tensor:
    """The first half of `after_attention` for the rows x [r,D], of which `first` is the first."""
    weights, eps = shard.layers[number].after_attention, shard.config.rms_norm_eps
    return call("add_attention", residuals.add_attention, x, out, weights, eps, first=first)


def feed_forward_norms(number: int, shard: Shard, xs: Sequence[Tensor]) -> FeedForwardRows:
    """The second half of `after_attention`; xs [r,D] are all shards' rows."""
    weights, formats, eps = shard.layers[number].after_attention, _formats(shard, number), shard.config.rms_norm_eps
    return call("feed_forward_norms", residuals.feed_forward_norms, xs, weights, eps, **formats)


def feed_forward(number: int, shard: Shard, given: FeedForwardRows, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """What a layer does between attention and its end, or this shard's part of it.

    Returns the dense MLP's output [R,D] and the experts' weighted rows [R,K,D], or the sum [R,1,D] of those that the
    shard holds. In each segment, rows from `lengths` int32 [S] on take no experts.
    """
    layer = shard.layers[number]
    weights = layer.experts.gate_up
    early = [partial(prefetch, weights, PREFETCH_BYTES)] if isinstance(weights, Tensor) else []
    *_, dense, sparse = in_parallel(
        given.router.device,
        *early,
        partial(_dense, layer, given.mlp, shard.dtype),
        partial(_experts, shard, layer, given.router, given.experts, lengths),
    )
    return dense, sparse


def end_layer(
    number: int, shard: Shard, x: Tensor, dense: Sequence[Tensor], sparse: Sequence[Tensor], segments: Segments
) -> tuple[Tensor, Rows]:
    """A layer's output [R,D] and the next layer's (or the head's) normed input, from all shards' `feed_forward`."""
    weights, eps, fp8 = shard.layers[number].after_experts, shard.config.rms_norm_eps, _next_takes_fp8(shard, number)
    return call("after_experts", residuals.after_experts, x, dense, sparse, weights, segments, eps, fp8=fp8)


def add_experts(
    number: int, shard: Shard, x: Tensor, dense: Sequence[Tensor], sparse: Sequence[Tensor], segments: Segments,
    first: int,
) -> Tensor:  # fmt: skip
    """The first half of `end_layer` for the rows x [r,D], of which `first` is the first."""
    weights, eps = shard.layers[number].after_experts, shard.config.rms_norm_eps
    return call("add_experts", residuals.add_experts, x, dense, sparse, weights, segments, eps, first=first)


def next_norm(number: int, shard: Shard, xs: Sequence[Tensor]) -> Rows:
    """The second half of `end_layer`; xs [r,D] are all shards' rows."""
    weight, eps = shard.layers[number].after_experts.following, shard.config.rms_norm_eps
    return call("next_norm", norm_of_parts, xs, weight, eps, fp8=_next_takes_fp8(shard, number))


def _formats(shard: Shard, number: int) -> dict[str, bool]:
    """Which of a layer's feed-forward parts read FP8 rows."""
    layer = shard.layers[number]
    quantized = not isinstance(layer.experts.gate_up, Tensor)
    return {"mlp_fp8": takes_fp8(layer.gate_up), "experts_fp8": quantized and not lacks_fp8(shard.device)}


def _next_takes_fp8(shard: Shard, number: int) -> bool:
    """Whether what follows a layer, the next one or the head, reads FP8 rows."""
    return number + 1 < len(shard.layers) and takes_fp8(shard.layers[number + 1].qkv)


def _dense(layer: PackedLayer, mlp_in: Rows, dtype: torch.dtype) -> Tensor:
    """The dense MLP's output [R,D]."""
    hidden = call("gated_linear", gated_linear, mlp_in, layer.gate_up, fp8=takes_fp8(layer.down), dtype=dtype)
    return product("mlp_linear", hidden, layer.down, dtype)


def _experts(shard: Shard, layer: PackedLayer, router_in: Tensor, experts_in: Rows, lengths: Tensor | None) -> Tensor:
    """The chosen experts' weighted rows [R,K,D], or the sum [R,1,D] of those that the shard holds."""
    top_k, count, held = shard.config.top_k_experts, shard.config.num_experts, shard.held_experts
    plan = plan_products(experts_in, layer.experts, top_k, count)
    routing = call(
        "route", route_rows, router_in, layer.router, layer.expert_scale, top_k, plan.block_rows, lengths, held
    )
    rows = call("experts", experts, experts_in, routing, layer.experts, plan, shard.dtype)
    return rows if len(held) == count else call("sum_of_experts", sum_of_experts, rows, routing.index)


def takes_fp8(weight: Matrix) -> bool:
    """Whether a weight's products read FP8 rows."""
    return isinstance(weight, PackedFp8)


def as_rows(x: Tensor, weight: Matrix) -> Rows:
    """x [R,K] as the product with `weight` reads it."""
    return call("quantize", quantize_rows, x) if takes_fp8(weight) else x


def product(name: str, x: Rows, weight: Matrix, dtype: torch.dtype) -> Tensor:
    """x [R,K] times weight [N,K] transposed, as the operation `name`."""
    return call(name, linear, x, weight, dtype=dtype)
