"""The random numbers of `redraft.diffusion.rng`, drawn inside kernels: the same words for the same counters.

Philox-4x32-10 keyed by a request's seed, counting (position, step, canvas, purpose).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.kernels.philox import as_tokens, as_uniform, philox
from redraft.kernels.triton.language import cdiv, constexpr, jit, tl, use_triton

INITIAL, STEP = 0, 1
"""Purposes: the noise a canvas begins from, and the draws of a step."""
PURPOSE_INITIAL, PURPOSE_STEP = constexpr(INITIAL), constexpr(STEP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What keys a segment's random numbers: seed int64 [S], canvas index and step int32 [S]."""

    seed: Tensor
    canvas: Tensor
    step: Tensor


def words(counters: Counters, rows: int, purpose: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words, as int64 [S,rows], of positions 0..rows-1 of every segment."""
    c0 = torch.arange(rows, device=counters.seed.device)[None]  # [1,rows]
    c1, c2 = counters.step[:, None].long(), counters.canvas[:, None].long()  # [S,1]
    return philox(counters.seed[:, None], (c0, c1, c2, torch.full_like(c1, purpose)))


def uniform(counters: Counters, rows: int) -> Tensor:
    """The fp64 numbers in [0,1) that pick a step's candidates, [S,rows]."""
    return as_uniform(words(counters, rows, STEP))


def tokens(counters: Counters, rows: int, vocab: int, purpose: int) -> Tensor:
    """Uniform token ids, int64 [S,rows]."""
    return as_tokens(words(counters, rows, purpose), vocab)


def draw(seeds: Tensor, canvas: int, step: int, rows: int, vocab: int, purpose: int) -> tuple[Tensor, Tensor]:
    """Both at once, for canvases of int64 `seeds` [S] at the same step: fp64 and int64, [S,rows] each."""
    if use_triton(seeds):
        picks, ids = (seeds.new_empty(len(seeds), rows, dtype=dtype) for dtype in (torch.float64, torch.int64))
        _draw_kernel[(cdiv(rows, 128), len(seeds))](
            seeds, canvas, step, vocab, picks, ids, rows, PURPOSE=purpose, BLOCK=128, num_warps=4
        )
        return picks, ids
    counters = Counters(seed=seeds, canvas=torch.full_like(seeds, canvas), step=torch.full_like(seeds, step))
    drawn = words(counters, rows, purpose)
    return as_uniform(drawn), as_tokens(drawn, vocab)


@jit
def words_of(seed, position, step, canvas, PURPOSE: tl.constexpr):
    """`words` inside a kernel: uint32 words of positions (a tensor or a number), with an int64 seed."""
    c0 = position.to(tl.uint32)
    c1 = tl.zeros_like(c0) + step.to(tl.uint32)
    c2 = tl.zeros_like(c0) + canvas.to(tl.uint32)
    c3 = tl.zeros_like(c0) + PURPOSE
    k0, k1 = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox_impl(c0, c1, c2, c3, k0, k1, 10)


@jit
def uniform_of(seed, position, step, canvas):
    """`uniform` inside a kernel."""
    w0, w1, _, _ = words_of(seed, position, step, canvas, PURPOSE_STEP)
    return uniform_from(w0, w1)


@jit
def tokens_of(seed, position, step, canvas, vocab, PURPOSE: tl.constexpr):
    """`tokens` inside a kernel, int32."""
    _, _, w2, _ = words_of(seed, position, step, canvas, PURPOSE)
    return tokens_from(w2, vocab)


@jit
def uniform_from(w0, w1):
    """`as_uniform` inside a kernel."""
    return (w0.to(tl.uint64) * 2097152 + (w1 >> 11).to(tl.uint64)).to(tl.float64) * 1.1102230246251565e-16


@jit
def tokens_from(w2, vocab):
    """`as_tokens` inside a kernel, int32."""
    return tl.umulhi(w2, tl.zeros_like(w2) + vocab.to(tl.uint32)).to(tl.int32)


@jit(varying=("canvas", "step", "rows"))
def _draw_kernel(
    seeds, canvas, step, vocab, uniform, tokens, rows, PURPOSE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, out = position < rows, tl.program_id(1) * rows + position
    w0, w1, w2, _ = words_of(tl.load(seeds + tl.program_id(1)), position, step, canvas, PURPOSE)
    tl.store(uniform + out, uniform_from(w0, w1), inside)
    tl.store(tokens + out, tokens_from(w2, vocab).to(tl.int64), inside)
