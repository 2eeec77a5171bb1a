"""What one shard of a model needs in a forward: its pages and rows, and attention over them.

Shapes: R rows = S segments of L, D width, K experts of a row, P pages of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from redraft.config import SLIDING, LayerType
from redraft.kernels.packed import Rows
from redraft.kernels.switches import call
from redraft.kernels.triton.attention import attend
from redraft.kernels.triton.qkv import RopeTable, norm_rope_write, rope_rows
from redraft.kernels.triton.segments import DENOISE, Segments
from redraft.model.packed.layers import product, takes_fp8
from redraft.model.packed.pages import Pages
from redraft.model.packed.weights import Shard


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardContext:
    """One shard's pages, rows and angles in a forward; everything is on its device.

    pages     keys and values of its heads
    segments  the segments that the rows belong to
    tables    int32 [S,P] per layer kind: which page holds which 256 positions of a segment's request
    rope      every row's rotary angles, by kind of layer
    canvases  int32 [S], how many rows of each segment the head reads: none if it is only encoded
    own       which rows of the residual stream the shard adds up and keeps, see `residual_rows`
    """

    shard: Shard
    pages: Pages
    segments: Segments
    tables: dict[LayerType, Tensor]
    rope: dict[LayerType, RopeTable]
    canvases: Tensor
    own: range

    @classmethod
    def of(cls, shard: Shard, pages: Pages, segments: Segments, tables: dict[LayerType, Tensor], *, own: range) -> Self:
        """A shard's context for these rows."""
        rope: dict[LayerType, RopeTable] = {}
        for kind, unit in shard.frequencies.items():
            rope[kind] = call("rope", rope_rows, segments, unit)
        canvases = torch.where(segments.kind >= DENOISE, segments.length, 0)
        return cls(shard=shard, pages=pages, segments=segments, tables=tables, rope=rope, canvases=canvases, own=own)

    def attention(self, number: int, h: Rows) -> Tensor:
        """From a layer's normed input to the output [R,D] of the shard's heads; writes their keys and values."""
        shard, segments = self.shard, self.segments
        layer, keys, values = shard.layers[number], self.pages.keys[number], self.pages.values[number]
        table, sliding, eps = self.tables[layer.kind], layer.kind == SLIDING, shard.config.rms_norm_eps
        qkv = product("qkv_linear", h, layer.qkv, shard.dtype)
        heads = (qkv, layer.q_norm, layer.k_norm, self.rope[layer.kind])
        q = call("qkv", norm_rope_write, *heads, keys, values, table, segments, eps, own_values=sliding)
        window = shard.config.sliding_window if sliding else None
        attended = call("attention", attend, q, keys, values, table, segments, window=window, fp8=takes_fp8(layer.out))
        return product("out_linear", attended, layer.out, shard.dtype)

    def takes_experts(self, *, canvases_only: bool) -> Tensor:
        """int32 [S]: how many rows of each segment take experts, all that are real or only those of canvases."""
        return self.canvases if canvases_only else self.segments.length


REDUCE_SCATTER_FROM = 4
"""From how many GPUs on sums are reduce-scattered and then gathered, not reduced by every GPU. The two exchanges more
per layer cost about what two GPUs gain: 2% more for one canvas, as much less for sixteen (two H200)."""


def residual_rows(rows: int, gpus: int) -> list[range]:
    """Which of a forward's rows of the residual stream each GPU adds up and keeps: all, or an equal part.

    Adding up means reading every GPU's part of a sum. If each GPU does that for its own rows and reads the others'
    results, about two parts of a row reach every GPU, however many there are, and not one from each of the others.
    """
    if gpus < REDUCE_SCATTER_FROM:
        return [range(rows)] * gpus
    each = rows // gpus
    assert each * gpus == rows
    return [range(first, first + each) for first in range(0, rows, each)]
