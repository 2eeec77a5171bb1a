"""What a layer adds to the residual stream after attention and after its experts, fused with the norms around it.

Everything is fp32 inside and rounded where the plain model rounds, see `norms.py`. On one GPU these are two launches
per layer instead of a dozen. What several GPUs have computed parts of comes as these parts, which are added up where
they are read. Either every GPU does so for all rows (`after_attention`, `after_experts`), or each for its own rows
(`add_attention`, `add_experts`), and then the norms read every GPU's rows (`feed_forward_norms`,
`norms.norm_of_parts`).

Shapes: R rows of all, r rows of one GPU, D width, K expert rows per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.packed import Rows
from redraft.kernels.triton.instructions import await_inputs, forget
from redraft.kernels.triton.language import jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.norms import (
    factor,
    joined,
    launch,
    norm,
    of_canvases,
    outputs,
    peak,
    read,
    rounded_to,
    row_of_part,
    whole,
    write,
)
from redraft.kernels.triton.segments import KIND_DENOISE, Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterAttention:
    """Weights [D] of the norms between a layer's attention and its feed-forward parts, and of the router's input."""

    post_attention: Tensor
    pre_mlp: Tensor
    pre_experts: Tensor
    router_scale: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterExperts:
    """Weights [D] of the norms that end a layer, its two scalars [1], and `following`, the next norm's weight [D]."""

    post_mlp: Tensor
    post_experts: Tensor
    post_feedforward: Tensor
    encode_scalar: Tensor
    denoise_scalar: Tensor
    following: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForwardRows:
    """What the dense MLP, the experts and the router of a layer read: [R,D] each, the first two possibly in e4m3."""

    mlp: Rows
    experts: Rows
    router: Tensor


def after_attention(
    x: Tensor, attention: Sequence[Tensor], weights: AfterAttention, eps: float, *, mlp_fp8: bool = False,
    experts_fp8: bool = False,
) -> tuple[Tensor, FeedForwardRows]:  # fmt: skip
    """The residual x [R,D] with the normed attention output added, parts of [R,D], and what the feed-forward reads."""
    if not use_triton(x):
        x = add_attention(x, attention, weights, eps)
        return x, feed_forward_norms((x,), weights, eps, mlp_fp8=mlp_fp8, experts_fp8=experts_fp8)
    out, router = torch.empty_like(x), torch.empty_like(x)
    mlp, experts = outputs(x, mlp_fp8), outputs(x, experts_fp8)
    given = (weights.post_attention, weights.pre_mlp, weights.pre_experts, weights.router_scale)
    launch(
        _after_attention_kernel, x, x, tuple(attention), *given, out, *mlp, *experts, router,
        eps=eps, router_factor=x.shape[1] ** -0.5, MLP_FP8=mlp_fp8, EXPERTS_FP8=experts_fp8,
    )  # fmt: skip
    return out, FeedForwardRows(mlp=joined(*mlp), experts=joined(*experts), router=router)


def add_attention(
    x: Tensor, attention: Sequence[Tensor], weights: AfterAttention, eps: float, *, first: int = 0
) -> Tensor:
    """The residual x [r,D] of the rows from `first` on with their normed attention output added, parts of [R,D]."""
    if use_triton(x):
        out = torch.empty_like(x)
        launch(_add_attention_kernel, x, x, tuple(attention), weights.post_attention, out, first, eps=eps)
        return out
    attended = _sum([part[first : first + len(x)] for part in attention], x.device)
    return x + eager.rms_norm(attended, weights.post_attention, eps)


def feed_forward_norms(
    parts: Sequence[Tensor], weights: AfterAttention, eps: float, *, mlp_fp8: bool = False, experts_fp8: bool = False
) -> FeedForwardRows:
    """What the feed-forward reads of the residual [R,D], of which several GPUs hold equal parts, in their order."""
    if not use_triton(weights.pre_mlp):
        x = whole(parts, weights.pre_mlp.device)
        router = eager.rms_norm(x, None, eps) * weights.router_scale * x.shape[-1] ** -0.5
        mlp, experts = norm(x, weights.pre_mlp, eps, fp8=mlp_fp8), norm(x, weights.pre_experts, eps, fp8=experts_fp8)
        return FeedForwardRows(mlp=mlp, experts=experts, router=router)
    each, width = parts[0].shape
    router = weights.pre_mlp.new_empty(each * len(parts), width, dtype=parts[0].dtype)
    mlp, experts = outputs(router, mlp_fp8), outputs(router, experts_fp8)
    launch(
        _feed_forward_norms_kernel, router, tuple(parts), each, weights.pre_mlp, weights.pre_experts,
        weights.router_scale, *mlp, *experts, router,
        eps=eps, router_factor=width**-0.5, MLP_FP8=mlp_fp8, EXPERTS_FP8=experts_fp8,
    )  # fmt: skip
    return FeedForwardRows(mlp=joined(*mlp), experts=joined(*experts), router=router)


def after_experts(
    x: Tensor, dense: Sequence[Tensor], experts: Sequence[Tensor], weights: AfterExperts, segments: Segments,
    eps: float, *, fp8: bool = False,
) -> tuple[Tensor, Rows]:  # fmt: skip
    """The end of a layer: its output [R,D], and the next norm of it.

    x [R,D] is `after_attention`'s residual, dense the MLP's output, parts of [R,D], experts parts of [R,K,D], weighted
    expert rows that are summed in fp32, in order. They are used up: on a GPU they must not be read afterwards.
    """
    if not use_triton(x):
        y = add_experts(x, dense, experts, weights, segments, eps)
        return y, norm(y, weights.following, eps, fp8=fp8)
    following = outputs(x, fp8)
    lines, rest = divmod(experts[0][0].nbytes, 128)  # of the L2 cache; if tokens share a line, none is forgotten
    kept = rest or len(experts) > 1  # nor if another GPU may still read it
    out = _end(x, dense, experts, weights, segments, eps, *following, fp8=fp8, lines=0 if kept else lines)
    return out, joined(*following)


def add_experts(
    x: Tensor, dense: Sequence[Tensor], experts: Sequence[Tensor], weights: AfterExperts, segments: Segments,
    eps: float, *, first: int = 0,
) -> Tensor:  # fmt: skip
    """The end of a layer, without the next norm, for the rows from `first` on: x [r,D], all else as `after_experts`."""
    if use_triton(x):
        return _end(x, dense, experts, weights, segments, eps, first=first)
    own = slice(first, first + len(x))
    sparse = _sum([part[own].float().sum(1) for part in experts], x.device).to(x.dtype)
    y = eager.rms_norm(_sum([part[own] for part in dense], x.device), weights.post_mlp, eps)
    y = x + eager.rms_norm(y + eager.rms_norm(sparse, weights.post_experts, eps), weights.post_feedforward, eps)
    return y * torch.where(of_canvases(segments)[own, None], weights.denoise_scalar, weights.encode_scalar)


def _end(
    x: Tensor, dense: Sequence[Tensor], experts: Sequence[Tensor], weights: AfterExperts, segments: Segments,
    eps: float, y: Tensor | None = None, y_scale: Tensor | None = None, *, first: int | None = None, fp8: bool = False,
    lines: int = 0,
) -> Tensor:  # fmt: skip
    out = torch.empty_like(x)
    given = (weights.post_mlp, weights.post_experts, weights.post_feedforward)
    scalars = (weights.encode_scalar, weights.denoise_scalar, segments.kind)
    following = None if y is None else weights.following
    launch(
        _after_experts_kernel, x, x, tuple(dense), tuple(experts), *given, *scalars, following, out, y, y_scale, first,
        eps=eps, SEGMENT_ROWS=segments.rows, TOP_K=experts[0].shape[1], FP8=fp8, LINES=lines,
        PADDED_LINES=next_power_of_2(max(lines, 1)),
    )  # fmt: skip
    return out


def _sum(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of tensors of one shape, from any device, in fp32 and in their order, rounded once."""
    return reduce(torch.add, [part.to(device).float() for part in parts]).to(parts[0].dtype)


@jit
def _sum_of(parts, offsets, inside):
    """What several GPUs have computed parts of, in fp32; their sum is rounded."""
    total = read(parts[0], offsets, inside)
    if len(parts) > 1:
        for number in tl.static_range(1, len(parts)):
            total += read(parts[number], offsets, inside)
        total = rounded_to(total, parts[0])
    return total


@jit
def _raw(pointer, offsets, inside):
    """Load values that are needed late without widening them: they take half the registers until then."""
    return tl.load(pointer + offsets, inside, other=0.0)


@jit
def _with_attention(value, added, weight, width, eps, x):
    """The residual of a row with what attention adds."""
    return rounded_to(value + rounded_to(added * factor(added, width, eps) * weight, x), x)


@jit
def _write_feed_forward_norms(
    value, mlp_weight, experts_weight, router_weight, mlp, mlp_scale, experts, experts_scale, router, row, width,
    column, eps, router_factor, MLP_FP8: tl.constexpr, EXPERTS_FP8: tl.constexpr,
):  # fmt: skip
    """The three norms of a row of the residual."""
    normed = value * factor(value, width, eps)
    routed = rounded_to(rounded_to(normed, router) * router_weight, router) * router_factor
    tl.store(router + row * width + column, routed.to(router.dtype.element_ty), column < width)
    for_mlp, for_experts = rounded_to(normed * mlp_weight, router), rounded_to(normed * experts_weight, router)
    mlp_peak, experts_peak = 0.0, 0.0
    if MLP_FP8 or EXPERTS_FP8:
        mlp_peak, experts_peak = tl.split(tl.max(tl.abs(tl.join(for_mlp, for_experts)), 0))
    write(mlp, mlp_scale, row, width, column, for_mlp, mlp_peak, MLP_FP8)
    write(experts, experts_scale, row, width, column, for_experts, experts_peak, EXPERTS_FP8)


@jit
def _after_attention_kernel(
    x, attention, post_attention, pre_mlp, pre_experts, router_scale, out, mlp, mlp_scale, experts, experts_scale,
    router, width, eps, router_factor, MLP_FP8: tl.constexpr, EXPERTS_FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    here = row * width + column
    first, mlp_weight = read(post_attention, column, inside), read(pre_mlp, column, inside)
    experts_weight, router_weight = read(pre_experts, column, inside), read(router_scale, column, inside)
    await_inputs()
    added, value = _sum_of(attention, here, inside), read(x, here, inside)
    value = _with_attention(value, added, first, width, eps, x)
    tl.store(out + here, value.to(x.dtype.element_ty), inside)
    _write_feed_forward_norms(
        value, mlp_weight, experts_weight, router_weight, mlp, mlp_scale, experts, experts_scale, router, row, width,
        column, eps, router_factor, MLP_FP8, EXPERTS_FP8,
    )  # fmt: skip


@jit
def _add_attention_kernel(x, attention, post_attention, out, first, width, eps, BLOCK: tl.constexpr):
    own = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weight = read(post_attention, column, inside)
    await_inputs()
    added, value = _sum_of(attention, (first + own) * width + column, inside), read(x, own * width + column, inside)
    value = _with_attention(value, added, weight, width, eps, x)
    tl.store(out + own * width + column, value.to(x.dtype.element_ty), inside)


@jit
def _feed_forward_norms_kernel(
    parts, each, pre_mlp, pre_experts, router_scale, mlp, mlp_scale, experts, experts_scale, router, width, eps,
    router_factor, MLP_FP8: tl.constexpr, EXPERTS_FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, own, row = row_of_part(parts, each)
    column = tl.arange(0, BLOCK)
    inside = column < width
    mlp_weight, experts_weight = read(pre_mlp, column, inside), read(pre_experts, column, inside)
    router_weight = read(router_scale, column, inside)
    await_inputs()
    _write_feed_forward_norms(
        read(part, own * width + column, inside), mlp_weight, experts_weight, router_weight, mlp, mlp_scale, experts,
        experts_scale, router, row, width, column, eps, router_factor, MLP_FP8, EXPERTS_FP8,
    )  # fmt: skip


@jit
def _after_experts_kernel(
    x, dense, experts, post_mlp, post_experts, post_feedforward, encode_scalar, denoise_scalar, kind, following, out, y,
    scale, first, width, eps, SEGMENT_ROWS: tl.constexpr, TOP_K: tl.constexpr, FP8: tl.constexpr, LINES: tl.constexpr,
    PADDED_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`x`, `out`, `y` and `scale` begin with row `first` of the others; None is 0, and saves registers."""
    own = tl.program_id(0).to(tl.int64)
    row = own if first is None else first + own
    column = tl.arange(0, BLOCK)
    inside = column < width
    here, there = own * width + column, row * width + column
    mlp_weight, sparse_weight = _raw(post_mlp, column, inside), _raw(post_experts, column, inside)
    both_weight = _raw(post_feedforward, column, inside)
    weight = both_weight if following is None else _raw(following, column, inside)
    await_inputs()
    mlp = _raw(dense[0], there, inside) if len(dense) == 1 else _sum_of(dense, there, inside).to(x.dtype.element_ty)
    value = _raw(x, here, inside)
    sparse = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOP_K):
        sparse += _sum_of(experts, (row * TOP_K + k) * width + column, inside)
    is_canvas = tl.load(kind + row // SEGMENT_ROWS) >= KIND_DENOISE
    scalar = tl.load(tl.where(is_canvas, denoise_scalar, encode_scalar)).to(tl.float32)

    sparse, mlp = rounded_to(sparse, x), mlp.to(tl.float32)
    mlp_sum, sparse_sum = tl.split(tl.sum(tl.join(mlp * mlp, sparse * sparse), 0))
    mlp = rounded_to(mlp * tl.rsqrt(mlp_sum / width + eps) * mlp_weight, x)
    sparse = rounded_to(sparse * tl.rsqrt(sparse_sum / width + eps) * sparse_weight, x)
    both = rounded_to(mlp + sparse, x)
    if LINES > 0:
        forget(experts[0] + row * (TOP_K * width), LINES, PADDED_LINES)
    both = rounded_to(both * factor(both, width, eps) * both_weight, x)
    value = rounded_to(rounded_to(value.to(tl.float32) + both, x) * scalar, x)
    tl.store(out + here, value.to(x.dtype.element_ty), inside)
    if following is not None:
        value = rounded_to(value * factor(value, width, eps) * weight, x)
        write(y, scale, own, width, column, value, peak(value, FP8), FP8)
