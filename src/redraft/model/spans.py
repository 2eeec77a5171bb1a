"""One forward over segments of any requests: causal and two-sided ones side by side, as one flat list of tokens.

Encoding and denoising differ only in a layer's scale and in which keys a token sees; both are per segment here.
On a CPU in fp32 every segment is bit for bit what `Transformer.encode` or `denoise` would compute for it alone.
Shapes: T tokens of all segments, S keys, D width, N heads, G key/value heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft import kernels
from redraft.cache.fp8 import key_unit
from redraft.cache.paged import PagedKV
from redraft.model.attention import causal_sight
from redraft.model.transformer import Layer, Transformer
from redraft.model.vision import ImageEmbeddings, overlay


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A segment at positions `start` .. `start + length` of a request with these pages (lists as in `PageTable`).

    `causal` marks an encoding; its tokens are `token_ids` [length], including all of each of its `images`. Otherwise it
    is a canvas: all of it sees all of it, and `soft` [length,D] are its soft embeddings, None on its first step.
    """

    start: int
    token_ids: Tensor
    causal: bool
    full: Sequence[int]
    sliding: Sequence[int]
    soft: Tensor | None = None
    images: Sequence[ImageEmbeddings] = ()

    @property
    def length(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one span reads in one space: rows [S] of its keys, and the mask [1,1,T,S] of a causal one."""

    rows: Tensor
    mask: Tensor | None


def key_units(model: Transformer) -> list[float]:
    """The unit of every layer's keys when they are stored in FP8."""
    return [key_unit(layer.attention.k_norm.weight) for layer in model.layers if isinstance(layer, Layer)]


@torch.inference_mode()
def run_spans(model: Transformer, pages: PagedKV, spans: Sequence[Span]) -> Tensor:
    """Hidden states [T,D] of all spans' tokens, in order. Writes their keys and values into their pages."""
    sights = {sliding: [_sight(model, pages, span, sliding) for span in spans] for sliding in (False, True)}
    targets = {sliding: _targets(pages, spans, sliding) for sliding in (False, True)}
    lengths = [span.length for span in spans]
    count = sum(lengths)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sliding = model.config.is_sliding(layer)
        pages.write(layer, targets[sliding], k[0, :, :count].transpose(0, 1), v[0, :, :count].transpose(0, 1))
        out = q.new_zeros(1, q.shape[2], q.shape[1] * q.shape[3])  # [1,T,N*H]
        row = 0
        for length, sight in zip(lengths, sights[sliding], strict=True):
            keys, values = pages.read(layer, sight.rows)
            out[:, row : row + length] = kernels.attention(q[:, :, row : row + length], keys, values, sight.mask)
            row += length
        return out

    # Products of fewer rows round differently; see `kernels.MIN_ROWS`.
    padding = max(0, kernels.MIN_ROWS - count)
    x = F.pad(_embed(model, spans), (0, 0, 0, padding))[None]  # [1,T,D]
    positions = torch.cat([span.start + torch.arange(span.length) for span in spans])
    causal = torch.cat([torch.full((n,), span.causal) for n, span in zip(lengths, spans, strict=True)])
    positions, causal = (F.pad(column, (0, padding))[None].to(model.device) for column in (positions, causal))  # [1,T]
    return model.run_layers(x, positions, attend, causal[..., None])[0, :count]


def _embed(model: Transformer, spans: Sequence[Span]) -> Tensor:
    """Input rows [T,D]: plain embeddings for causal tokens, image embeddings, self-conditioned ones for canvases."""
    parts = []
    for span in spans:
        embedded = model.embed(span.token_ids[None])
        if not span.causal:
            embedded = model.condition(embedded, None if span.soft is None else span.soft[None])
        parts.append(overlay(embedded[0], span.start, span.images))
    return torch.cat(parts)


def _sight(model: Transformer, pages: PagedKV, span: Span, sliding: bool) -> _Sight:
    past = model.config.sliding_window - 1
    first, stop = max(0, span.start - past) if sliding else 0, span.start + span.length
    rows = pages.rows(span.sliding if sliding else span.full, first, stop)
    if not span.causal:
        return _Sight(rows, None)
    here, there = torch.arange(span.start, stop), torch.arange(first, stop)
    window = model.config.sliding_window if sliding else None
    seen = causal_sight(here, there, window, [image.positions for image in span.images])
    return _Sight(rows, seen[None, None].to(model.device))


def _targets(pages: PagedKV, spans: Sequence[Span], sliding: bool) -> Tensor:
    parts = [pages.rows(span.sliding if sliding else span.full, span.start, span.start + span.length) for span in spans]
    return torch.cat(parts)
