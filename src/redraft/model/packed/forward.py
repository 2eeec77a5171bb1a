"""The forward pass of a packed model: a pure function over rows of segments and pages of keys and values.

Nothing here reads a value back from the device, so the whole pass can be captured in a CUDA graph. Shapes: R rows = S
segments of L, D width, N query heads, H head dim, P pages of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from redraft.cache.fp8 import FP8
from redraft.cache.pages import PAGE
from redraft.config import FULL, SLIDING, LayerType
from redraft.kernels.packed import Matrix, PackedFp8, Rows8
from redraft.kernels.streams import beside
from redraft.kernels.switches import call
from redraft.kernels.triton.attention import attend
from redraft.kernels.triton.experts import block_rows, experts
from redraft.kernels.triton.linear import gated_linear, linear
from redraft.kernels.triton.norms import after_attention, after_experts, enter, norm
from redraft.kernels.triton.prefetch import prefetch
from redraft.kernels.triton.qkv import RopeTable, norm_rope_write, rope_rows
from redraft.kernels.triton.quantize import quantize_rows
from redraft.kernels.triton.routing import route_rows
from redraft.kernels.triton.segments import DENOISE, Segments
from redraft.model.packed.weights import PackedLayer, PackedModel

Rows = Tensor | Rows8


PREFETCH_BYTES = 8 << 20
"""Bytes of the first plain experts to bring into the L2 cache while the router chooses. On one H200 this saved 0.1 to
0.2 ms per step of one canvas; quantized experts no longer gain from it, plain ones were not measured again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """Keys and values of all layers, [pages,256,G,H] each; layers of one kind have the same number of pages."""

    keys: list[Tensor]
    values: list[Tensor]

    def clean(self, layer: int, pages: Tensor) -> None:
        """Zero all values that are not finite in some pages [n] of a layer."""
        for pool in (self.keys[layer], self.values[layer]):
            if pool.dtype == FP8:
                bits = pool.view(torch.uint8)
                held = bits[pages]
                bits[pages] = held.masked_fill(held & 0x7F == 0x7F, 0)
            else:
                held = pool[pages]
                pool[pages] = held.masked_fill(~held.isfinite(), 0.0)


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


def new_pages(model: PackedModel, *, full: int, sliding: int, dtype: torch.dtype | None = None) -> Pages:
    """Pages of zeros, by default in the model's dtype: kernels read whole tiles, so unwritten memory must be finite."""

    def zeros(number: int) -> Tensor:
        pages = sliding if model.config.is_sliding(number) else full
        heads = model.config.layer_kv_heads(number), model.config.layer_head_dim(number)
        return torch.zeros(pages, PAGE, *heads, dtype=dtype or model.dtype, device=model.device)

    numbers = range(len(model.layers))
    return Pages(keys=list(map(zeros, numbers)), values=list(map(zeros, numbers)))


def new_images(model: PackedModel, tokens: int) -> Tensor:
    """Room for image embeddings of this many tokens, see `Inputs`."""
    return torch.zeros(tokens, model.config.hidden_size, dtype=model.dtype, device=model.device)


def forward(model: PackedModel, inputs: Inputs, pages: Pages, *, all_rows: bool = False) -> Tensor:
    """Hidden states of every row after the final norm, [R,D]; writes the rows' keys and values into their pages.

    In the last layer, rows that are only encoded stop at their keys and values, and their hidden states are
    meaningless, unless `all_rows` is set.
    """
    segments, eps = inputs.segments, model.config.rms_norm_eps
    canvases, rope, added = beside(
        model.device,
        partial(_canvas_lengths, segments),
        partial(_rope, model, segments),
        partial(conditioning, model, inputs.soft),
    )
    x, h = call(
        "enter", enter, inputs.token_ids, model.vocabulary.head, model.embedding_scale, added, segments,
        model.layers[0].entering, eps, fp8=takes_fp8(model.layers[0].qkv), images=inputs.images,
    )  # fmt: skip
    for number in range(len(model.layers)):
        attended = _attention(model, number, h, rope, inputs, pages)
        fewer = number == len(model.layers) - 1 and not all_rows
        x, h = finish_layer(model, number, x, attended, segments, canvases if fewer else segments.length)
    assert isinstance(h, Tensor)
    return h


def _canvas_lengths(segments: Segments) -> Tensor:
    """How many rows of each segment the head reads, int32 [S]: none if it is only encoded."""
    return torch.where(segments.kind >= DENOISE, segments.length, 0)


def _rope(model: PackedModel, segments: Segments) -> dict[LayerType, RopeTable]:
    """Every row's rotary angles, by kind of layer."""
    return {kind: call("rope", rope_rows, segments, unit) for kind, unit in model.frequencies.items()}


def _attention(
    model: PackedModel, number: int, h: Rows, rope: dict[LayerType, RopeTable], inputs: Inputs, pages: Pages
) -> Rows:
    """From a layer's normed input to its attended values [R,N*H], as `out` reads them; writes keys and values."""
    layer, keys, values = model.layers[number], pages.keys[number], pages.values[number]
    table, segments, sliding = inputs.tables[layer.kind], inputs.segments, layer.kind == SLIDING
    qkv = product("qkv_linear", h, layer.qkv, model.dtype)
    heads, eps = (qkv, layer.q_norm, layer.k_norm, rope[layer.kind]), model.config.rms_norm_eps
    q = call("qkv", norm_rope_write, *heads, keys, values, table, segments, eps, own_values=sliding)
    window = model.config.sliding_window if sliding else None

    fp8 = takes_fp8(layer.out)
    return call("attention", attend, q, keys, values, table, segments, window=window, fp8=fp8)


def conditioning(model: PackedModel, soft: Tensor) -> Tensor:
    """The self-conditioning MLP's output for soft embeddings [R,D]; rows of zeros stay zeros."""
    h = call("soft_norm", norm, soft, model.soft_norm, model.config.rms_norm_eps)
    hidden = call("soft_gated_linear", gated_linear, h, model.soft_gate_up)
    return product("soft_linear", hidden, model.soft_down, model.dtype)


def finish_layer(
    model: PackedModel, number: int, x: Tensor, attended: Rows, segments: Segments, lengths: Tensor | None
) -> tuple[Tensor, Rows]:
    """Everything in a layer after attention: its output [R,D] and the next layer's (or the head's) normed input.

    x [R,D] is the layer's input, attended [R,N*H] is in the format that `out` reads. In each segment, rows from
    `lengths` int32 [S] on take no experts.
    """
    layer, eps, dtype = model.layers[number], model.config.rms_norm_eps, model.dtype
    last = number == len(model.layers) - 1
    out = product("out_linear", attended, layer.out, dtype)
    weights = layer.experts.gate_up
    formats = {"mlp_fp8": takes_fp8(layer.gate_up), "experts_fp8": not isinstance(weights, Tensor)}
    x, mlp_in, experts_in, router_in = call(
        "after_attention", after_attention, x, out, layer.after_attention, eps, **formats
    )
    early = [partial(prefetch, weights, PREFETCH_BYTES)] if isinstance(weights, Tensor) else []
    *_, dense, sparse = beside(
        x.device,
        *early,
        partial(_dense, layer, mlp_in, dtype),
        partial(_experts, model, layer, router_in, experts_in, lengths),
    )
    following = False if last else takes_fp8(model.layers[number + 1].qkv)
    return call("after_experts", after_experts, x, dense, sparse, layer.after_experts, segments, eps, fp8=following)


def _dense(layer: PackedLayer, mlp_in: Rows, dtype: torch.dtype) -> Tensor:
    """The dense MLP's output [R,D]."""
    return product("mlp_linear", call("gated_linear", gated_linear, mlp_in, layer.gate_up), layer.down, dtype)


def _experts(
    model: PackedModel, layer: PackedLayer, router_in: Tensor, experts_in: Rows, lengths: Tensor | None
) -> Tensor:
    """The chosen experts' weighted rows [R,K,D]."""
    top_k = model.config.top_k_experts
    tile = block_rows(experts_in, top_k, layer.experts)
    routing = call("route", route_rows, router_in, layer.router, layer.expert_scale, top_k, tile, lengths)
    return call("experts", experts, experts_in, routing, layer.experts, model.dtype)


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
