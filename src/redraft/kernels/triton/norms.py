"""The RMS norms of a layer, fused with their surroundings: residuals, router scale, FP8 rounding, layer scalar.

Three launches per layer instead of a dozen. Inside, everything is fp32; values are rounded to the working dtype
wherever the plain model does, because the router's choice of experts can depend on a single rounding.

What several GPUs have computed parts of comes as these parts, which are added up where they are read.

Shapes: R rows, D width, K expert rows per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.packed import Matrix, Rows, Rows8, rows_of, values_and_scale
from redraft.kernels.triton.language import await_inputs, early, forget, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.quantize import quantize_rows_eager
from redraft.kernels.triton.segments import DENOISE, KIND_DENOISE, Segments

REGISTERS = 80
"""Per thread: three programs of 256 threads then share a multiprocessor, and hide one another's waits."""


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


def norm(x: Tensor, weight: Tensor, eps: float, *, fp8: bool = False) -> Rows:
    """x [R,D] over its root mean square, times `weight` [D]; as e4m3 rows if `fp8`."""
    if use_triton(x):
        y, scale = _outputs(x, fp8)
        _launch(_norm_kernel, x, weight, y, scale, eps=eps, FP8=fp8)
        return _rows(y, scale)
    y = eager.rms_norm(x, weight, eps)
    return quantize_rows_eager(y) if fp8 else y


def enter(
    token_ids: Tensor,
    embedding: Matrix,
    scale: Tensor,
    conditioning: Tensor,
    segments: Segments,
    following: Tensor,
    eps: float,
    *,
    fp8: bool = False,
    images: Tensor | None = None,
) -> tuple[Tensor, Rows]:
    """The input of the first layer [R,D] and its norm with weight `following` [D].

    Token ids [R], embedding [V,D], its scale [1] in the working dtype; an FP8 row is first rounded to that dtype. An id
    below 0, -1 - i, stands for row i of `images` [I,D], embeddings from a vision tower that are used as they are.
    Canvas rows add `conditioning` [R,D], the self-conditioning MLP's output, and are normed without a weight.
    """
    if use_triton(scale):
        table, token_scale = values_and_scale(embedding)
        x = scale.new_empty(len(token_ids), table.shape[1])
        y, y_scale = _outputs(x, fp8)
        arguments = (
            x, token_ids, table, token_scale, scale, images, conditioning, segments.kind, following, y, y_scale
        )  # fmt: skip
        _launch(_enter_kernel, *arguments, eps=eps, SEGMENT_ROWS=segments.rows, FP8=fp8)
        return x, _rows(y, y_scale)
    x = rows_of(embedding, token_ids.clamp(min=0), scale.dtype) * scale
    if images is not None:
        x = torch.where(token_ids[:, None] < 0, images[(-1 - token_ids).clamp(min=0)], x)
    canvas = _canvas_rows(segments)[:, None]
    x = torch.where(canvas, eager.rms_norm(x + conditioning, None, eps), x)
    return x, norm(x, following, eps, fp8=fp8)


def after_attention(
    x: Tensor, attention: Sequence[Tensor], weights: AfterAttention, eps: float, *, mlp_fp8: bool = False,
    experts_fp8: bool = False,
) -> tuple[Tensor, Rows, Rows, Tensor]:  # fmt: skip
    """The residual x [R,D] with the normed attention output added, parts of [R,D], and the inputs of what follows.

    Returns the new residual, the inputs of the dense MLP and of the experts (e4m3 if requested), and the router's.
    """
    if use_triton(x):
        return _after_attention(x, attention, weights, eps, mlp_fp8, experts_fp8)
    x = x + eager.rms_norm(_sum(attention, x.device), weights.post_attention, eps)
    router = eager.rms_norm(x, None, eps) * weights.router_scale * x.shape[-1] ** -0.5
    mlp = norm(x, weights.pre_mlp, eps, fp8=mlp_fp8)
    return x, mlp, norm(x, weights.pre_experts, eps, fp8=experts_fp8), router


def after_experts(
    x: Tensor, dense: Sequence[Tensor], experts: Sequence[Tensor], weights: AfterExperts, segments: Segments,
    eps: float, *, fp8: bool = False,
) -> tuple[Tensor, Rows]:  # fmt: skip
    """The end of a layer: its output [R,D], and the next norm of it.

    x [R,D] is `after_attention`'s residual, dense the MLP's output, parts of [R,D], experts parts of [R,K,D], weighted
    expert rows that are summed in fp32, in order. They are used up: on a GPU they must not be read afterwards.
    """
    if use_triton(x):
        return _after_experts(x, dense, experts, weights, segments, eps, fp8)
    sparse = _sum([part.float().sum(1) for part in experts], x.device).to(x.dtype)
    y = eager.rms_norm(_sum(dense, x.device), weights.post_mlp, eps) + eager.rms_norm(sparse, weights.post_experts, eps)
    y = x + eager.rms_norm(y, weights.post_feedforward, eps)
    y = y * torch.where(_canvas_rows(segments)[:, None], weights.denoise_scalar, weights.encode_scalar)
    return y, norm(y, weights.following, eps, fp8=fp8)


def _sum(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of tensors of one shape, from any device, in fp32 and in their order, rounded once."""
    return reduce(torch.add, [part.to(device).float() for part in parts]).to(parts[0].dtype)


def _canvas_rows(segments: Segments) -> Tensor:
    """Rows that belong to canvases, bool [R]."""
    return (segments.kind >= DENOISE).repeat_interleave(segments.rows)


def _outputs(x: Tensor, fp8: bool) -> tuple[Tensor, Tensor | None]:
    """Room for a norm's output: like x, or e4m3 values and their scales."""
    if not fp8:
        return torch.empty_like(x), None
    return torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(x.shape[0], 1, dtype=torch.float32)


def _rows(y: Tensor, scale: Tensor | None) -> Rows:
    return y if scale is None else Rows8(y, scale)


def _launch(kernel: Any, x: Tensor, *arguments: Any, **constants: Any) -> None:
    """One program per row of x [R,D]."""
    block = next_power_of_2(x.shape[1])
    warps = min(max(block // 512, 1), 8)
    kernel[(x.shape[0],)](
        x, *arguments, width=x.shape[1], BLOCK=block, num_warps=warps, maxnreg=REGISTERS, **constants, **early(x)
    )


def _after_attention(
    x: Tensor, attention: Sequence[Tensor], weights: AfterAttention, eps: float, mlp_fp8: bool, experts_fp8: bool
) -> tuple[Tensor, Rows, Rows, Tensor]:
    out, router = torch.empty_like(x), torch.empty_like(x)
    mlp, experts = _outputs(x, mlp_fp8), _outputs(x, experts_fp8)
    given = (weights.post_attention, weights.pre_mlp, weights.pre_experts, weights.router_scale)
    _launch(
        _after_attention_kernel, x, tuple(attention), *given, out, *mlp, *experts, router,
        eps=eps, router_factor=x.shape[1] ** -0.5, MLP_FP8=mlp_fp8, EXPERTS_FP8=experts_fp8,
    )  # fmt: skip
    return out, _rows(*mlp), _rows(*experts), router


def _after_experts(
    x: Tensor, dense: Sequence[Tensor], experts: Sequence[Tensor], weights: AfterExperts, segments: Segments,
    eps: float, fp8: bool,
) -> tuple[Tensor, Rows]:  # fmt: skip
    out, following = torch.empty_like(x), _outputs(x, fp8)
    given = (weights.post_mlp, weights.post_experts, weights.post_feedforward)
    scalars = (weights.encode_scalar, weights.denoise_scalar, segments.kind)
    lines, rest = divmod(experts[0][0].nbytes, 128)  # of the L2 cache; if tokens share a line, none is forgotten
    kept = rest or len(experts) > 1  # nor if another GPU may still read it
    _launch(
        _after_experts_kernel, x, tuple(dense), tuple(experts), *given, *scalars, weights.following, out, *following,
        eps=eps, SEGMENT_ROWS=segments.rows, TOP_K=experts[0].shape[1], FP8=fp8, LINES=0 if kept else lines,
        PADDED_LINES=next_power_of_2(lines),
    )  # fmt: skip
    return out, _rows(*following)


@jit
def _read(pointer, offsets, inside):
    return tl.load(pointer + offsets, inside, other=0.0).to(tl.float32)


@jit
def _sum_of(parts, offsets, inside):
    """What several GPUs have computed parts of, in fp32; their sum is rounded."""
    total = _read(parts[0], offsets, inside)
    if len(parts) > 1:
        for number in tl.static_range(1, len(parts)):
            total += _read(parts[number], offsets, inside)
        total = _round(total, parts[0])
    return total


@jit
def _raw(pointer, offsets, inside):
    """Load values that are needed late without widening them: they take half the registers until then."""
    return tl.load(pointer + offsets, inside, other=0.0)


@jit
def _round(x, pointer):
    """fp32 x rounded to the element type of `pointer`."""
    return x.to(pointer.dtype.element_ty).to(tl.float32)


@jit
def _factor(x, width, eps):
    """One over the root mean square of a row."""
    return tl.rsqrt(tl.sum(x * x, 0) / width + eps)


@jit
def _write(y, scale, row, width, column, value, peak, FP8: tl.constexpr):
    """Store a norm's rounded row; if FP8 as e4m3 with a scale that maps its largest magnitude `peak` to 448."""
    if FP8:
        unit = tl.maximum(peak, 1e-12) / 448.0
        tl.store(scale + row, unit)
        value *= 1.0 / unit
    tl.store(y + row * width + column, value.to(y.dtype.element_ty), column < width)


@jit
def _peak(value, FP8: tl.constexpr):
    """A row's largest magnitude, where FP8 needs it."""
    return tl.max(tl.abs(value), 0) if FP8 else 0.0


@jit
def _norm_kernel(x, weight, y, scale, width, eps, FP8: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    factor = _read(weight, column, inside)
    await_inputs()
    value = _read(x, row * width + column, inside)
    value = _round(value * _factor(value, width, eps) * factor, x)
    _write(y, scale, row, width, column, value, _peak(value, FP8), FP8)


@jit
def _enter_kernel(
    x, token_ids, embedding, token_scale, embedding_scale, images, conditioning, kind, following, y, scale, width,
    eps, SEGMENT_ROWS: tl.constexpr, FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    factor = _read(following, column, inside)
    await_inputs()
    token = tl.load(token_ids + row).to(tl.int64)
    added = _read(conditioning, row * width + column, inside)
    known = tl.maximum(token, 0)
    value = _read(embedding, known * width + column, inside)
    if token_scale is not None:
        value = _round(value * tl.load(token_scale + known), x)
    value = _round(value * tl.load(embedding_scale).to(tl.float32), x)
    if images is not None:  # noqa: SIM102  (decided when it is compiled)
        if token < 0:
            value = _read(images, (-1 - token) * width + column, inside)
    if tl.load(kind + row // SEGMENT_ROWS) >= KIND_DENOISE:
        value = _round(value + added, x)
        value = _round(value * _factor(value, width, eps), x)
    tl.store(x + row * width + column, value.to(x.dtype.element_ty), inside)
    value = _round(value * _factor(value, width, eps) * factor, x)
    _write(y, scale, row, width, column, value, _peak(value, FP8), FP8)


@jit
def _after_attention_kernel(
    x, attention, post_attention, pre_mlp, pre_experts, router_scale, out, mlp, mlp_scale, experts, experts_scale,
    router, width, eps, router_factor, MLP_FP8: tl.constexpr, EXPERTS_FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    here = row * width + column
    first, mlp_factor = _read(post_attention, column, inside), _read(pre_mlp, column, inside)
    experts_factor, router_weight = _read(pre_experts, column, inside), _read(router_scale, column, inside)
    await_inputs()
    added, value = _sum_of(attention, here, inside), _read(x, here, inside)

    value = _round(value + _round(added * _factor(added, width, eps) * first, x), x)
    tl.store(out + here, value.to(x.dtype.element_ty), inside)
    normed = value * _factor(value, width, eps)
    routed = _round(_round(normed, x) * router_weight, x) * router_factor
    tl.store(router + here, routed.to(x.dtype.element_ty), inside)
    for_mlp, for_experts = _round(normed * mlp_factor, x), _round(normed * experts_factor, x)
    mlp_peak, experts_peak = 0.0, 0.0
    if MLP_FP8 or EXPERTS_FP8:
        mlp_peak, experts_peak = tl.split(tl.max(tl.abs(tl.join(for_mlp, for_experts)), 0))
    _write(mlp, mlp_scale, row, width, column, for_mlp, mlp_peak, MLP_FP8)
    _write(experts, experts_scale, row, width, column, for_experts, experts_peak, EXPERTS_FP8)


@jit
def _after_experts_kernel(
    x, dense, experts, post_mlp, post_experts, post_feedforward, encode_scalar, denoise_scalar, kind, following, out, y,
    scale, width, eps, SEGMENT_ROWS: tl.constexpr, TOP_K: tl.constexpr, FP8: tl.constexpr, LINES: tl.constexpr,
    PADDED_LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    here = row * width + column
    mlp_factor, sparse_factor = _raw(post_mlp, column, inside), _raw(post_experts, column, inside)
    both_factor, factor = _raw(post_feedforward, column, inside), _raw(following, column, inside)
    await_inputs()
    mlp = _raw(dense[0], here, inside) if len(dense) == 1 else _sum_of(dense, here, inside).to(x.dtype.element_ty)
    value = _raw(x, here, inside)
    sparse = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOP_K):
        sparse += _sum_of(experts, (row * TOP_K + k) * width + column, inside)
    is_canvas = tl.load(kind + row // SEGMENT_ROWS) >= KIND_DENOISE
    scalar = tl.load(tl.where(is_canvas, denoise_scalar, encode_scalar)).to(tl.float32)

    sparse, mlp = _round(sparse, x), mlp.to(tl.float32)
    mlp_sum, sparse_sum = tl.split(tl.sum(tl.join(mlp * mlp, sparse * sparse), 0))
    mlp = _round(mlp * tl.rsqrt(mlp_sum / width + eps) * mlp_factor, x)
    sparse = _round(sparse * tl.rsqrt(sparse_sum / width + eps) * sparse_factor, x)
    both = _round(mlp + sparse, x)
    if LINES > 0:
        forget(experts[0] + row * (TOP_K * width), LINES, PADDED_LINES)
    both = _round(both * _factor(both, width, eps) * both_factor, x)
    value = _round(_round(value.to(tl.float32) + both, x) * scalar, x)
    tl.store(out + here, value.to(x.dtype.element_ty), inside)
    value = _round(value * _factor(value, width, eps) * factor, x)
    _write(y, scale, row, width, column, value, _peak(value, FP8), FP8)
