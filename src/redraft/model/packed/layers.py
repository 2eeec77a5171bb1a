"""A packed model's layers, one share at a time: what runs on one GPU between the points where shares are added up.

Shapes: R rows, D width, N query heads, G key/value heads, H head dim, K experts of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from redraft.config import FULL
from redraft.kernels.packed import Matrix, PackedFp8, Rows
from redraft.kernels.streams import in_parallel
from redraft.kernels.switches import call
from redraft.kernels.triton.experts import block_rows, experts, sum_of_experts
from redraft.kernels.triton.linear import gated_linear, linear
from redraft.kernels.triton.norms import after_attention, after_experts, norm
from redraft.kernels.triton.prefetch import prefetch
from redraft.kernels.triton.quantize import quantize_rows
from redraft.kernels.triton.routing import route_rows
from redraft.kernels.triton.segments import Segments
from redraft.model.packed.weights import PackedLayer, PackedModel, Share

PREFETCH_BYTES = 8 << 20
"""Bytes of the first plain experts to bring into the L2 cache while the router chooses. On one H200 this saved 0.1 to
0.2 ms per step of one canvas; quantized experts no longer gain from it, plain ones were not measured again."""


def conditioning(model: PackedModel, soft: Tensor) -> Tensor:
    """The self-conditioning MLP's output for soft embeddings [R,D]; rows of zeros stay zeros."""
    h = call("soft_norm", norm, soft, model.soft_norm, model.config.rms_norm_eps)
    hidden = call("soft_gated_linear", gated_linear, h, model.soft_gate_up)
    return product("soft_linear", hidden, model.soft_down, model.dtype)


def enter_layer(share: Share, x: Tensor) -> Rows:
    """The first layer's input [R,D], normed."""
    layer, eps = share.layers[0], share.config.rms_norm_eps
    return call("enter", norm, x, layer.entering, eps, fp8=takes_fp8(layer.qkv))


def feed_forward(
    share: Share, number: int, x: Tensor, out: Sequence[Tensor], lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What a layer does between attention and its end, or this share's part of it.

    x [R,D] is the layer's input, `out` its attention's output as parts of [R,D]. Returns x with that added, the dense
    MLP's output [R,D] and the experts' weighted rows [R,K,D], or the sum [R,1,D] of those that the share holds. In each
    segment, rows from `lengths` int32 [S] on take no experts.
    """
    layer, eps = share.layers[number], share.config.rms_norm_eps
    weights = layer.experts.gate_up
    formats = {"mlp_fp8": takes_fp8(layer.gate_up), "experts_fp8": not isinstance(weights, Tensor)}
    x, mlp_in, experts_in, router_in = call(
        "after_attention", after_attention, x, out, layer.after_attention, eps, **formats
    )
    early = [partial(prefetch, weights, PREFETCH_BYTES)] if isinstance(weights, Tensor) else []
    *_, dense, sparse = in_parallel(
        x.device,
        *early,
        partial(_dense, layer, mlp_in, share.dtype),
        partial(_experts, share, layer, router_in, experts_in, lengths),
    )
    return x, dense, sparse


def end_layer(
    share: Share, number: int, x: Tensor, dense: Sequence[Tensor], sparse: Sequence[Tensor], segments: Segments
) -> tuple[Tensor, Rows]:
    """A layer's output [R,D] and the next layer's (or the head's) normed input, from all shares' `feed_forward`."""
    layer, last = share.layers[number], number == len(share.layers) - 1
    fp8 = False if last else takes_fp8(share.layers[number + 1].qkv)
    weights, eps = layer.after_experts, share.config.rms_norm_eps
    return call("after_experts", after_experts, x, dense, sparse, weights, segments, eps, fp8=fp8)


def _dense(layer: PackedLayer, mlp_in: Rows, dtype: torch.dtype) -> Tensor:
    """The dense MLP's output [R,D]."""
    return product("mlp_linear", call("gated_linear", gated_linear, mlp_in, layer.gate_up), layer.down, dtype)


def _experts(share: Share, layer: PackedLayer, router_in: Tensor, experts_in: Rows, lengths: Tensor | None) -> Tensor:
    """The chosen experts' weighted rows [R,K,D], or the sum [R,1,D] of those that the share holds."""
    top_k, count = share.config.top_k_experts, share.config.num_experts
    tile = block_rows(experts_in, top_k, count, layer.experts)
    routing = call(
        "route", route_rows, router_in, layer.router, layer.expert_scale, top_k, tile, lengths, share.experts
    )
    rows = call("experts", experts, experts_in, routing, layer.experts, share.dtype)
    return rows if len(share.experts) == count else call("sum_of_experts", sum_of_experts, rows, routing.index)


def takes_fp8(weight: Matrix) -> bool:
    """Whether a weight's products read FP8 rows."""
    return isinstance(weight, PackedFp8)


def as_rows(x: Tensor, weight: Matrix) -> Rows:
    """x [R,K] as the product with `weight` reads it."""
    return call("quantize", quantize_rows, x) if takes_fp8(weight) else x


def product(name: str, x: Rows, weight: Matrix, dtype: torch.dtype) -> Tensor:
    """x [R,K] times weight [N,K] transposed, as the operation `name`."""
    return call(name, linear, x, weight, dtype=dtype)


def layer_heads(qkv: Tensor, layer: PackedLayer, dim: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [R,N,H], raw k and raw v [R,G,H] of a QKV product's rows; in full layers k and v are the same."""
    heads = qkv.view(qkv.shape[0], -1, dim)
    queries = heads.shape[1] - (groups if layer.kind == FULL else 2 * groups)
    return heads[:, :queries], heads[:, queries : queries + groups], heads[:, -groups:]
