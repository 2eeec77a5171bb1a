"""Dense products: rows in bf16 or FP8 times a weight in the same format.

Plain products go to PyTorch's library, which nothing here beats. FP8 products go either to the library's row-wise
scaled product or to `linear_kernel`, depending on the tables.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.errors import SettingError
from redraft.kernels import eager
from redraft.kernels.packed import Packed, PackedFp8, Rows, Rows8, dequantized
from redraft.kernels.triton import tables
from redraft.kernels.triton.expert_kernels import gelu_gate
from redraft.kernels.triton.language import cdiv, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.quantize import e4m3_unit, quantize_rows_eager


def without_workspace() -> None:
    """Run the library's scaled products without a workspace; call this before a process' first one, which checks.

    With a workspace, products of many rows use kernels that hand out their tiles by a counter, and clearing it before
    every launch costs 3 to 9 us, though they are no faster. If the user has set the variable, it is left alone.
    """
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")


def linear(x: Rows, weight: Packed, out: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x [T,K] times weight [N,K] transposed, [T,N].

    A plain weight takes rows of its own dtype and keeps it; an FP8 weight takes `Rows8` with a scale per row and gives
    `dtype`.
    """
    if isinstance(x, Tensor) and isinstance(weight, Tensor):
        return torch.mm(x, weight.t()) if out is None else torch.mm(x, weight.t(), out=out)
    if not use_triton(x if isinstance(x, Tensor) else x.values):
        return linear_eager(x, weight, out, dtype)
    if isinstance(x, Tensor) or not isinstance(weight, PackedFp8):
        raise SettingError(f"a linear layer cannot take {type(x).__name__} with a weight in {type(weight).__name__}.")
    return _scaled(x, weight, out, dtype)


def _scaled(x: Rows8, weight: PackedFp8, out: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`linear` in FP8 on CUDA."""
    (rows, inputs), outputs = x.values.shape, len(weight.values)
    tile = tables.linear_tile(x.values.device, rows, outputs, inputs)
    if tile is None:
        y = torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            x.values, weight.values.t(), x.scale, weight.scale[None], out_dtype=dtype, use_fast_accum=True
        )
        return y if out is None else out.copy_(y)
    out = torch.empty(rows, outputs, dtype=dtype, device=x.values.device) if out is None else out
    linear_kernel[cdiv(rows, tile.rows) * cdiv(outputs, tile.columns),](
        x.values, x.scale, weight.values, weight.scale, out, rows, N=outputs, K=inputs,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, STAGES=tile.stages, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


@jit(varying=("rows",))
def linear_kernel(
    x,  # e4m3 [T,K]
    x_scale,  # fp32 [T]
    weight,  # e4m3 [N,K]
    weight_scale,  # fp32 [N]
    out,  # [T,N]
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One tile [BM,BN]; neighbouring programs share the weight's rows, so device memory is read only once."""
    down = tl.cdiv(rows, BM)
    row = tl.program_id(0) % down * BM + tl.arange(0, BM)
    column = tl.program_id(0) // down * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    live, whole = row < rows, column < N
    lines = x + row[:, None].to(tl.int64) * K + inner[None, :]
    columns = weight + column[:, None].to(tl.int64) * K + inner[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        there = (k + inner < K)[None, :]
        left = tl.load(lines + k, mask=live[:, None] & there, other=0.0)
        right = tl.load(columns + k, mask=whole[:, None] & there, other=0.0)
        acc = tl.dot(left, tl.trans(right), acc)
    acc *= tl.load(weight_scale + column, mask=whole, other=0.0)[None, :]  # the weight's first, as in the library:
    acc *= tl.load(x_scale + row, mask=live, other=0.0)[:, None]  # both give a row the same bits
    target = out + row[:, None].to(tl.int64) * N + column[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=live[:, None] & whole[None, :])


def gated_linear(x: Rows, weight: Packed, *, fp8: bool = False, dtype: torch.dtype = torch.bfloat16) -> Rows:
    """x [T,K] -> gelu(gate x) * up x [T,I] with weight [2I,K], gate rows first.

    With `fp8` the result is `Rows8` with a scale per row, whatever x is; else plain rows keep their dtype, and `Rows8`
    give `dtype`.
    """
    if not use_triton(x if isinstance(x, Tensor) else x.values):
        return gated_linear_eager(x, weight, fp8=fp8, dtype=dtype)
    both = linear(x, weight, dtype=dtype)
    rows, inner = len(both), both.shape[1] // 2
    values = both.new_empty(rows, inner, dtype=torch.float8_e4m3fn if fp8 else both.dtype)
    scale = both.new_empty(rows, 1, dtype=torch.float32) if fp8 else None
    gate_rows_kernel[rows,](both, values, scale, INNER=inner, PADDED=next_power_of_2(inner), num_warps=2)
    return values if scale is None else Rows8(values, scale)


@jit
def gate_rows_kernel(both, values, scale, INNER: tl.constexpr, PADDED: tl.constexpr):
    """gelu(gate) * up of one row [2I], as it is or, if there is room for scales, in FP8."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    line = both + row * (2 * INNER) + column
    gate = tl.load(line, mask=column < INNER, other=0.0).to(tl.float32)
    up = tl.load(line + INNER, mask=column < INNER, other=0.0).to(tl.float32)
    hidden = gelu_gate(gate, up)
    if scale is not None:
        size = e4m3_unit(tl.max(tl.abs(hidden), 0))
        tl.store(scale + row, size)
        hidden /= size
    tl.store(values + row * INNER + column, hidden.to(values.dtype.element_ty), mask=column < INNER)


def linear_eager(x: Rows, weight: Packed, out: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`linear` in plain PyTorch: FP8 is converted to fp32 first."""
    if isinstance(x, Tensor):
        y = F.linear(x, dequantized(weight, x.dtype))
    else:
        y = F.linear(x.dequantize(torch.float32), dequantized(weight, torch.float32)).to(dtype)
    return y if out is None else out.copy_(y)


def gated_linear_eager(x: Rows, weight: Packed, *, fp8: bool = False, dtype: torch.dtype = torch.bfloat16) -> Rows:
    """`gated_linear` in plain PyTorch. As in the kernels, gates and ups are rounded to the working dtype."""
    gates, ups = linear_eager(x, weight, dtype=dtype).chunk(2, -1)
    return quantize_rows_eager(eager.gelu_gate(gates.float(), ups.float())) if fp8 else eager.gelu_gate(gates, ups)
