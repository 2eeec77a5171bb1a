"""Activations to FP8, one scale per row. After a norm, the norm's kernel does this in the same launch."""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.kernels.packed import LARGEST_E4M3, Rows8
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import cdiv, constexpr, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import chained

E4M3_MAX = constexpr(LARGEST_E4M3)
"""`LARGEST_E4M3` for kernels."""


def quantize_rows(x: Tensor) -> Rows8:
    """x [T,D] -> e4m3 values [T,D] and fp32 scale [T,1]: each row's largest magnitude over 448.

    A row of zeros has the smallest scale instead, 1e-12 / 448.
    """
    if not use_triton(x):
        return quantize_rows_eager(x)
    rows, width = x.shape
    out = Rows8(torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty(rows, 1, device=x.device))
    many = 4 if width <= 1024 else 1
    quantize_kernel[cdiv(rows, many),](
        x, out.values, out.scale, rows, x.stride(0), WIDTH=width, PADDED=next_power_of_2(width), ROWS=many,
        num_warps=4, **chained(x, rows),
    )  # fmt: skip
    return out


@jit
def e4m3_unit(largest):
    """The scale of a row with this largest magnitude."""
    return tl.maximum(largest, 1e-12) / E4M3_MAX


@jit(varying=("rows",))
def quantize_kernel(
    x, values, scale, rows, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr
):
    """The scales of ROWS rows, and their values divided by them."""
    if PDL:
        await_inputs()
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    mask = (row < rows)[:, None] & (column < WIDTH)
    line = tl.load(x + row[:, None] * stride + column, mask=mask, other=0.0).to(tl.float32)
    size = e4m3_unit(tl.max(tl.abs(line), 1))
    tl.store(scale + row, size, mask=row < rows)
    tl.store(values + row[:, None] * WIDTH + column, (line / size[:, None]).to(tl.float8e4nv), mask=mask)


def quantize_rows_eager(x: Tensor) -> Rows8:
    """`quantize_rows` in plain PyTorch."""
    rows = x.float()
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST_E4M3  # [T,1]
    return Rows8((rows / scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn), scale)
