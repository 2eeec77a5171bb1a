"""RMS norms of rows, fused with their surroundings: embeddings, and FP8 rounding of the result.

Inside, everything is fp32; values are rounded to the working dtype wherever the plain model does, because the router's
choice of experts can depend on a single rounding. Kernels with norms in other files are made of the pieces here.

Shapes: R rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.packed import Matrix, Rows, Rows8, rows_of, values_and_scale
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.quantize import e4m3_unit, quantize_rows_eager
from redraft.kernels.triton.segments import DENOISE, KIND_DENOISE, Segments

REGISTERS = 80
"""Per thread: three programs of 256 threads then share a multiprocessor, and hide one another's waits."""


def norm(x: Tensor, weight: Tensor, eps: float, *, fp8: bool = False) -> Rows:
    """x [R,D] over its root mean square, times `weight` [D]; as e4m3 rows if `fp8`."""
    return norm_of_parts((x,), weight, eps, fp8=fp8)


def norm_of_parts(parts: Sequence[Tensor], weight: Tensor, eps: float, *, fp8: bool = False) -> Rows:
    """The `norm` of rows [R,D] of which several GPUs hold equal parts, in their order."""
    if use_triton(weight):
        each, width = parts[0].shape
        y, scale = outputs(weight.new_empty(each * len(parts), width, dtype=parts[0].dtype), fp8)
        launch(_norm_kernel, y, tuple(parts), each, weight, y, scale, eps=eps, FP8=fp8)
        return joined(y, scale)
    y = eager.rms_norm(whole(parts, weight.device), weight, eps)
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
        y, y_scale = outputs(x, fp8)
        arguments = (
            x, token_ids, table, token_scale, scale, images, conditioning, segments.kind, following, y, y_scale
        )  # fmt: skip
        launch(_enter_kernel, x, *arguments, eps=eps, SEGMENT_ROWS=segments.rows, FP8=fp8)
        return x, joined(y, y_scale)
    x = rows_of(embedding, token_ids.clamp(min=0), scale.dtype) * scale
    if images is not None:
        x = torch.where(token_ids[:, None] < 0, images[(-1 - token_ids).clamp(min=0)], x)
    canvas = of_canvases(segments)[:, None]
    x = torch.where(canvas, eager.rms_norm(x + conditioning, None, eps), x)
    return x, norm(x, following, eps, fp8=fp8)


def whole(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Parts of rows, from any device, one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat([part.to(device) for part in parts])


def of_canvases(segments: Segments) -> Tensor:
    """Rows that belong to canvases, bool [R]."""
    return (segments.kind >= DENOISE).repeat_interleave(segments.rows)


def outputs(x: Tensor, fp8: bool) -> tuple[Tensor, Tensor | None]:
    """Room for a norm's output: like x, or e4m3 values and their scales."""
    if not fp8:
        return torch.empty_like(x), None
    return torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(x.shape[0], 1, dtype=torch.float32)


def joined(y: Tensor, scale: Tensor | None) -> Rows:
    """A norm's output, as one record."""
    return y if scale is None else Rows8(y, scale)


def launch(kernel: Any, output: Tensor, *arguments: Any, **constants: Any) -> None:
    """One program for each row of `output` [R,D]."""
    rows, width = output.shape
    block = next_power_of_2(width)
    warps = min(max(block // 512, 1), 8)
    kernel[(rows,)](
        *arguments, width=width, BLOCK=block, num_warps=warps, maxnreg=REGISTERS, **constants, **early(output)
    )


@jit
def read(pointer, offsets, inside):
    return tl.load(pointer + offsets, inside, other=0.0).to(tl.float32)


@jit
def rounded_to(x, pointer):
    """fp32 x rounded to the element type of `pointer`."""
    return x.to(pointer.dtype.element_ty).to(tl.float32)


@jit
def factor(x, width, eps):
    """One over the root mean square of a row."""
    return tl.rsqrt(tl.sum(x * x, 0) / width + eps)


@jit
def write(y, scale, row, width, column, value, largest, FP8: tl.constexpr):
    """Store a norm's rounded row; if FP8 as e4m3 with a scale that maps its `largest` magnitude to 448."""
    if FP8:
        unit = e4m3_unit(largest)
        tl.store(scale + row, unit)
        value *= 1.0 / unit
    tl.store(y + row * width + column, value.to(y.dtype.element_ty), column < width)


@jit
def peak(value, FP8: tl.constexpr):
    """A row's largest magnitude, where FP8 needs it."""
    return tl.max(tl.abs(value), 0) if FP8 else 0.0


@jit
def row_of_part(parts, each):
    """This program's row: the part that holds it, its number there, and its number among all; parts have `each` rows.

    Neighbours take rows of different parts, so that every GPU reads from all others at any time.
    """
    program = tl.program_id(0).to(tl.int64)
    number, own = program % len(parts), program // len(parts)
    part = parts[0]
    if len(parts) > 1:
        for other in tl.static_range(1, len(parts)):
            part = tl.where(number == other, parts[other], part)
    return part, own, number * each + own


@jit
def _norm_kernel(parts, each, weight, y, scale, width, eps, FP8: tl.constexpr, BLOCK: tl.constexpr):
    part, own, row = row_of_part(parts, each)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weights = read(weight, column, inside)
    await_inputs()
    value = read(part, own * width + column, inside)
    value = rounded_to(value * factor(value, width, eps) * weights, part)
    write(y, scale, row, width, column, value, peak(value, FP8), FP8)


@jit
def _enter_kernel(
    x, token_ids, embedding, token_scale, embedding_scale, images, conditioning, kind, following, y, scale, width,
    eps, SEGMENT_ROWS: tl.constexpr, FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weights = read(following, column, inside)
    await_inputs()
    token = tl.load(token_ids + row).to(tl.int64)
    added = read(conditioning, row * width + column, inside)
    known = tl.maximum(token, 0)
    value = read(embedding, known * width + column, inside)
    if token_scale is not None:
        value = rounded_to(value * tl.load(token_scale + known), x)
    value = rounded_to(value * tl.load(embedding_scale).to(tl.float32), x)
    if images is not None:  # noqa: SIM102  (decided when it is compiled)
        if token < 0:
            value = read(images, (-1 - token) * width + column, inside)
    if tl.load(kind + row // SEGMENT_ROWS) >= KIND_DENOISE:
        value = rounded_to(value + added, x)
        value = rounded_to(value * factor(value, width, eps), x)
    tl.store(x + row * width + column, value.to(x.dtype.element_ty), inside)
    value = rounded_to(value * factor(value, width, eps) * weights, x)
    write(y, scale, row, width, column, value, peak(value, FP8), FP8)
