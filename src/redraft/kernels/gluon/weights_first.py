"""Common parts of products over experts with the weights first: what their rows need, and where results go.

Sums are [64 weight rows, rows of an expert]; they are transposed while they are stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redraft.kernels.gluon.language import constant, gl, gluon
from redraft.kernels.triton.expert_kernels import gelu_gate


class Given(NamedTuple):
    """What a down projection reads of the routing and of hidden rows, and where its results go; all are pointers."""

    order: Any
    hidden_scale: Any
    worth: Any
    out: Any


@constant
def sums_layout(rows):
    """The layout of a warp group's sums [64,rows] over inputs in FP8."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 32])


@constant
def _wide():
    """The layout of results [rows,64] as they are stored, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])


@constant
def _line():
    """The layout of one number per row, until the sums are ready."""
    return gl.BlockedLayout([1], [32], [4], [0])


@gluon
def token_scale(order, x_scale, start, end, TOP_K: gl.constexpr, COUNT: gl.constexpr):
    """The scales of COUNT tokens from row `start` on."""
    line = start + gl.arange(0, COUNT, _line())
    token = gl.load(order + line, mask=line < end, other=0) // TOP_K
    return gl.load(x_scale + token, mask=line < end, other=0.0)


@gluon
def store_hidden(out, gates, ups, scale, start, end, first, INNER: gl.constexpr, COUNT: gl.constexpr):
    """Store 64 columns from `first` of COUNT hidden rows from `start`, given their products [64,COUNT] and scales."""
    WIDE: gl.constexpr = _wide()
    scale = gl.convert_layout(scale, gl.SliceLayout(0, sums_layout(COUNT)))[None]
    hidden = gelu_gate(gates * scale, ups * scale).to(out.dtype.element_ty)
    hidden = gl.convert_layout(gl.permute(hidden, (1, 0)), WIDE)
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    line = start + gl.arange(0, COUNT, gl.SliceLayout(1, WIDE))
    place = out + line[:, None].to(gl.int64) * INNER + column[None]
    gl.store(place, hidden, mask=(line < end)[:, None], eviction_policy="evict_last")  # the next launches read it


@gluon
def row_facts(given, start, end, steps, COUNT: gl.constexpr):
    """The places of COUNT rows from `start` on, their weights, and their scales."""
    line = start + gl.arange(0, COUNT, _line())
    place = gl.load(given.order + line, mask=line < end, other=0)
    factor = gl.load(given.worth + place, mask=line < end, other=0.0)
    return place, factor, gl.load(given.hidden_scale + line, mask=(line < end) & (steps > 0), other=0.0)


@gluon
def store_rows(out, sums, facts, start, end, first, D: gl.constexpr, COUNT: gl.constexpr):
    """Store 64 columns from `first` of COUNT rows, each in its place, given their products [64,COUNT]."""
    WIDE: gl.constexpr = _wide()
    SIDE: gl.constexpr = gl.SliceLayout(0, sums_layout(COUNT))
    place, factor, scale = facts
    sums = sums * gl.convert_layout(scale, SIDE)[None]
    result = (sums * gl.convert_layout(factor, SIDE)[None]).to(out.dtype.element_ty)
    result = gl.convert_layout(gl.permute(result, (1, 0)), WIDE)
    place = gl.convert_layout(place, gl.SliceLayout(1, WIDE))
    column = first + gl.arange(0, 64, gl.SliceLayout(0, WIDE))
    line = start + gl.arange(0, COUNT, gl.SliceLayout(1, WIDE))
    place = out + place[:, None].to(gl.int64) * D + column[None]
    gl.store(place, result, mask=(line < end)[:, None], eviction_policy="evict_last")  # until they are summed
