"""For training (`train/rows.py`): gathers rows for experts, sums each token's rows, and runs the gates backwards.

A compiler would fuse the first two into the norms around them and then read every gathered row once per use; it makes
two passes of the last. The twins are in `kernels/eager.py`, with which training runs on a CPU.

Shapes: T tokens, K experts per token, R = T*K rows sorted by expert, D width, I expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.triton.expert_kernels import gelu_share
from redraft.kernels.triton.language import cdiv, jit, next_power_of_2, tl, use_triton

BLOCK = 1024


def take_rows(x: Tensor, row: Tensor) -> Tensor:
    """x [T,D], indices `row` [R] -> x[row] [R,D]."""
    if not use_triton(x):
        return x[row]
    x = x.contiguous()
    out = x.new_empty(len(row), x.shape[1])
    take_rows_kernel[len(row), cdiv(x.shape[1], BLOCK)](x, row, out, x.shape[1], BLOCK=BLOCK)
    return out


def sum_rows(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    """What `eager.sum_rows` defines."""
    if not use_triton(rows) or rows.dtype == torch.float64:
        return eager.sum_rows(rows, place, weight)
    rows, place = rows.contiguous(), place.contiguous()
    tokens, ranks = place.shape
    out = rows.new_empty(tokens, rows.shape[1])
    weights = rows if weight is None else weight.contiguous()  # never read where there are none
    sum_rows_kernel[tokens, cdiv(rows.shape[1], BLOCK)](
        rows, place, weights, out, rows.shape[1], RANKS=ranks, WEIGHTED=weight is not None, BLOCK=BLOCK
    )
    return out


def gate_gradients(inner: Tensor, d_hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What `eager.gate_gradients` defines."""
    if not use_triton(inner) or inner.dtype == torch.float64:
        return eager.gate_gradients(inner, d_hidden, weight)
    inner, d_hidden, weight = inner.contiguous(), d_hidden.contiguous(), weight.contiguous()
    rows, width = d_hidden.shape
    d_inner, d_weight = torch.empty_like(inner), torch.empty_like(weight)
    gate_gradients_kernel[(rows,)](
        inner, d_hidden, weight, d_inner, d_weight, width, BLOCK=next_power_of_2(width), num_warps=4
    )
    return d_inner, d_weight


@jit
def take_rows_kernel(x, row, out, width, BLOCK: tl.constexpr):
    """One block of one row."""
    target = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(row + target).to(tl.int64)
    tl.store(out + target * width + column, tl.load(x + source * width + column, mask=column < width),
             mask=column < width)  # fmt: skip


@jit
def sum_rows_kernel(
    rows, place, weight, out, width, RANKS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One block of one token's sum."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in tl.static_range(RANKS):
        source = tl.load(place + token * RANKS + rank).to(tl.int64)
        line = tl.load(rows + source * width + column, mask=column < width, other=0.0).to(tl.float32)
        if WEIGHTED:
            line *= tl.load(weight + token * RANKS + rank)
        total += line
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=column < width)


@jit
def gate_gradients_kernel(inner, d_hidden, weight, d_inner, d_weight, width, BLOCK: tl.constexpr):
    """One row. gelu(x) is x s for the share s = sigmoid(u), and its slope s + x s (1 - s) u'."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    here = column < width
    gate = tl.load(inner + row * 2 * width + column, mask=here, other=0.0).to(tl.float32)
    up = tl.load(inner + row * 2 * width + width + column, mask=here, other=0.0).to(tl.float32)
    gradient = tl.load(d_hidden + row * width + column, mask=here, other=0.0).to(tl.float32)
    share = gelu_share(gate)
    activated = gate * share
    tl.store(d_weight + row, tl.sum(activated * up * gradient, 0))
    gradient *= tl.load(weight + row)
    slope = share + activated * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * gate * gate)
    kind = d_inner.dtype.element_ty
    tl.store(d_inner + row * 2 * width + column, (gradient * up * slope).to(kind), mask=here)
    tl.store(d_inner + row * 2 * width + width + column, (gradient * activated).to(kind), mask=here)
