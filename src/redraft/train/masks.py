"""Who sees whom in the two streams, written once for attention by parts (CPU, wide heads) and block-sparse (CUDA).

Every key has one integer code: document * STRIDE + position for clean tokens, CANVAS + n for tokens of canvas n. Every
query sees the codes in [low, high), and the codes equal to `own`. With that, causal and sliding encoding and two-sided
denoising of many canvases are the same three comparisons.

Shapes: B rows, T clean tokens, N canvases, C canvas tokens, Q queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from redraft.train.batch import Batch
from redraft.train.compiling import compiled_if
from redraft.train.parted_attention import parted_attention

STRIDE = 1 << 16
CANVAS = 1 << 30
NO_CANVAS = -(1 << 30)
"""The `own` of a query without a canvas; no key has this code."""
BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """int32 `low`, `high`, `own` [B,Q] of the queries and `code` [B,S] of the keys.

    Keys of canvases of `canvas` tokens come after those of `clean` tokens; encoding is one canvas without keys.
    """

    low: Tensor
    high: Tensor
    own: Tensor
    code: Tensor
    clean: int
    canvas: int

    def past(self) -> Tensor:
        """bool [B,Q,T], True where a clean token is seen."""
        code = self.code[:, None, : self.clean]
        return (code >= self.low[:, :, None]) & (code < self.high[:, :, None])


def _visible(low: Tensor, high: Tensor, own: Tensor, code: Tensor) -> Tensor:
    return ((code >= low) & (code < high)) | (code == own)


def encode_visibility(batch: Batch, window: int | None) -> Visibility:
    """Clean over clean: the same document, not later, and less than `window` tokens back."""
    base, position = batch.document * STRIDE, batch.position
    return Visibility(
        low=base + _window_start(position, window),
        high=base + position + 1,
        own=torch.full_like(base, NO_CANVAS),
        code=base + position,
        clean=position.shape[1],
        canvas=position.shape[1],
    )


def denoise_visibility(batch: Batch, window: int | None) -> Visibility:
    """Canvases over clean tokens and canvases: the clean past of the document, and all of the own canvas."""
    rows, count, length = batch.canvas_target.shape
    base = batch.canvas_document * STRIDE  # [B,N]
    own = (CANVAS + torch.arange(count, device=base.device, dtype=torch.int32)).expand(rows, count)
    low = base + _window_start(batch.canvas_start, window)
    clean = batch.document * STRIDE + batch.position  # [B,T]
    return Visibility(
        low=low.repeat_interleave(length, 1),
        high=(base + batch.canvas_start).repeat_interleave(length, 1),
        own=own.repeat_interleave(length, 1),
        code=torch.cat((clean, own.repeat_interleave(length, 1)), 1),
        clean=clean.shape[1],
        canvas=length,
    )


def _window_start(end: Tensor, window: int | None) -> Tensor:
    """First visible position of a past that ends before `end`: a window is one token and window - 1 before it."""
    return torch.zeros_like(end) if window is None else (end - (window - 1)).clamp(min=0)


def block_counts(low: Tensor, high: Tensor, own: Tensor, code: Tensor) -> Tensor:
    """How many pairs of each BLOCK x BLOCK tile are visible, int32 [B,Q/BLOCK,S/BLOCK]; ragged ends count as unseen."""
    q_pad, s_pad = -low.shape[1] % BLOCK, -code.shape[1] % BLOCK
    low, high = F.pad(low, (0, q_pad)), F.pad(high, (0, q_pad))
    own, code = F.pad(own, (0, q_pad), value=NO_CANVAS), F.pad(code, (0, s_pad), value=NO_CANVAS + 1)
    low, high, own = (x.unflatten(1, (-1, BLOCK))[:, :, None, :, None] for x in (low, high, own))
    code = code.unflatten(1, (-1, BLOCK))[:, None, :, None]  # [B,1,S/BLOCK,1,BLOCK]
    return _visible(low, high, own, code).sum((3, 4), dtype=torch.int32)


def block_mask(seen: Visibility, counts: Tensor) -> BlockMask:
    """The block-sparse mask of `seen` for the first `len(counts)` rows."""
    full = counts == BLOCK * BLOCK
    partial = (counts > 0) & ~full
    low, high, own, code = seen.low, seen.high, seen.own, seen.code

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return _visible(low[b, q], high[b, q], own[b, q], code[b, k])

    return BlockMask.from_kv_blocks(
        *_ordered(partial), *_ordered(full), BLOCK_SIZE=BLOCK, mask_mod=mask_mod,
        seq_lengths=(low.shape[1], code.shape[1]),
    )  # fmt: skip


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Counts [B,1,Q/BLOCK] and, chosen ones first, indices [B,1,Q/BLOCK,S/BLOCK] of marked tiles."""
    tiles = tiles[:, None].to(torch.int32)
    order = tiles.argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.to(torch.int32)


@dataclass(frozen=True)
class PastMask:
    """Which clean tokens each query sees, bool [B,Q,T], in addition to its own canvas of `canvas` tokens."""

    seen: Tensor
    canvas: int


Mask = PastMask | BlockMask


@dataclass(frozen=True)
class MaskBuilder:
    """Builds masks for one device: over clean tokens only, or block masks (`sparse`) with compiled counting."""

    sparse: bool
    compiled: bool

    def build(self, seen: Visibility, head_dim: int) -> Callable[[int], Mask]:
        """A function from a number of rows to the mask of the first that many rows, for heads of a given size."""
        if not self.sparse or head_dim > WIDEST_SPARSE:
            past, canvas = seen.past(), seen.canvas
            return lambda rows: PastMask(past[:rows], canvas)
        counts = compiled_if(block_counts, self.compiled)(seen.low, seen.high, seen.own, seen.code)
        return lambda rows: block_mask(seen, counts[:rows])


WIDEST_SPARSE = 256
"""Heads wider than this do not fit the block-sparse kernels."""

TILES: dict[int, dict[str, Any]] = {
    256: {
        "bwd_BLOCK_M1": 64, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 64,
        "bwd_num_warps": 8, "bwd_num_stages": 2,
    },
}  # fmt: skip
"""Options of the block-sparse kernels by head width, where something beats the library's choice: on an H200, the
backward pass of heads of 256 by a quarter."""


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor] | None, mask: Mask, *, compiled: bool
) -> Tensor:
    """q [B,N,Q,H] attending to `past` keys and values, if any, and its own k and v [B,G,Q,H]: [B,Q,N*H]."""
    if isinstance(mask, PastMask):
        clean, own = ((k, v), None) if past is None else (past, (k, v))
        return parted_attention(q, clean, own, mask.seen, mask.canvas, compiled=compiled)
    return compiled_if(_sparse_attention, compiled)(q, k, v, past, mask, _tiles(q))


def _sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor] | None, mask: BlockMask, options: dict[str, Any] | None
) -> Tensor:
    """The same with a block mask. Compiled as a whole, so the compiler handles data movement around the kernel."""
    if past is not None:
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)  # [B,G,T+Q,H]
    flex: Callable[..., Any] = flex_attention
    out = flex(q, k, v, block_mask=mask, scale=1.0, enable_gqa=True, kernel_options=options)
    return out.transpose(1, 2).flatten(2)


def _tiles(q: Tensor) -> dict[str, Any] | None:
    """Options for these queries, if a multiprocessor has room for them."""
    if not q.is_cuda:
        return None
    from redraft.kernels.triton.hardware import roomy  # Triton is imported only where there is a GPU

    return TILES.get(q.shape[-1]) if roomy(q.device) else None
