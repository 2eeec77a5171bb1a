"""From the QKV product to attention: head norms, rotation, and keys and values written into their pages.

Shapes: R rows, N query heads, G key/value heads, H head dim, S segments, P pages of a request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.triton.instructions import await_inputs
from redraft.kernels.triton.language import cdiv, jit, next_power_of_2, tl, use_triton
from redraft.kernels.triton.launch import early
from redraft.kernels.triton.segments import KIND_UNUSED, Segments

RopeTable = tuple[Tensor, Tensor]


def rope_rows(segments: Segments, frequencies: Tensor) -> RopeTable:
    """cos and sin, fp32 [R,H/2] each, of every row's angles, for all layers of a kind; `frequencies` fp32 [H/2]."""
    if use_triton(frequencies):
        rows, half = len(segments.start) * segments.rows, len(frequencies)
        cosine, sine = (torch.empty(rows, half, device=frequencies.device) for _ in range(2))
        _rope_kernel[(rows,)](
            segments.start, frequencies, cosine, sine, half, SEGMENT_ROWS=segments.rows, LANES=next_power_of_2(half),
            num_warps=1, **early(frequencies),
        )  # fmt: skip
        return cosine, sine
    angles = segments.positions()[:, None].float() * frequencies
    return angles.cos(), angles.sin()


def norm_rope_write(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rope: RopeTable,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    segments: Segments,
    eps: float,
    *,
    own_values: bool,
) -> Tensor:
    """Normed and rotated queries [R,N,H]; writes the rows' keys and values into their pages.

    qkv [R,(N+2G)*H] holds q, k, v side by side, or, if not `own_values`, [R,(N+G)*H] q and k: values are then the keys,
    normed without a weight and not rotated. keys, values [pages,256,G,H] are one layer's pages; table int32 [S,P] says
    which page holds positions p*256..p*256+255 of a segment's request. Padding rows write nothing. Pages of e4m3 need
    keys in the units of `redraft.cache.fp8`.
    """
    if use_triton(qkv):
        return _norm_rope_write(qkv, q_norm, k_norm, rope, keys, values, table, segments, eps, own_values)
    groups, dim = keys.shape[2:]
    q, k, v = heads_of(qkv, groups, dim, own_values=own_values)
    rows = segments.live().nonzero()[:, 0]
    position = segments.positions()[rows].long()
    page, at = table[rows // segments.rows, position // keys.shape[1]].long(), position % keys.shape[1]
    keys[page, at] = _rotate(eager.rms_norm(k, k_norm, eps), rope)[rows].to(keys.dtype)
    values[page, at] = eager.rms_norm(v, None, eps)[rows].to(values.dtype)
    return _rotate(eager.rms_norm(q, q_norm, eps), rope)


def heads_of(qkv: Tensor, groups: int, dim: int, *, own_values: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q [R,N,H], k and v [R,G,H] of a QKV product's rows, see `norm_rope_write`; if not `own_values`, v is k."""
    heads = qkv.view(qkv.shape[0], -1, dim)
    queries = heads.shape[1] - groups * (1 + own_values)
    return heads[:, :queries], heads[:, queries : queries + groups], heads[:, -groups:]


def _rotate(x: Tensor, rope: RopeTable) -> Tensor:
    """Rotate pairs (j, j + H/2) of x [R,*,H] in fp32."""
    cos, sin = (table[:, None] for table in rope)  # [R,1,H/2]
    left, right = x.float().chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def _norm_rope_write(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, rope: RopeTable, keys: Tensor, values: Tensor, table: Tensor,
    segments: Segments, eps: float, own_values: bool,
) -> Tensor:  # fmt: skip
    groups, dim = keys.shape[2:]
    total = qkv.shape[1] // dim
    heads = total - groups * (1 + own_values)
    q = qkv.new_empty(qkv.shape[0], heads, dim)
    block = 4
    _qkv_kernel[(qkv.shape[0], cdiv(heads + groups, block))](
        qkv, q_norm, k_norm, *rope, keys, values, table, segments.kind, segments.start, segments.length, q,
        table.stride(0), eps, SEGMENT_ROWS=segments.rows, HEADS=heads, GROUPS=groups, HALF_DIM=dim // 2, TOTAL=total,
        PAGE=keys.shape[1], LANES=next_power_of_2(dim // 2), BLOCK=block, OWN_VALUES=own_values, num_warps=4,
        **early(qkv),
    )  # fmt: skip
    return q


@jit
def _rope_kernel(start, frequencies, cosine, sine, half, SEGMENT_ROWS: tl.constexpr, LANES: tl.constexpr):
    """One row of both tables."""
    await_inputs()
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    position = tl.load(start + row // SEGMENT_ROWS) + row % SEGMENT_ROWS
    angle = position.to(tl.float32) * tl.load(frequencies + lane, lane < half, other=0.0)
    tl.store(cosine + row * half + lane, tl.cos(angle), lane < half)
    tl.store(sine + row * half + lane, tl.sin(angle), lane < half)


@jit
def _qkv_kernel(
    qkv, q_norm, k_norm, cosine, sine, keys, values, page_table, kind, start, length, q, page_stride, eps,
    SEGMENT_ROWS: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, HALF_DIM: tl.constexpr, TOTAL: tl.constexpr,
    PAGE: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, OWN_VALUES: tl.constexpr,
):  # fmt: skip
    """BLOCK heads of one row: query heads first, then key heads, with their values in the same program."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lane = tl.arange(0, LANES)[None]
    inside = (head < HEADS + GROUPS) & (lane < HALF_DIM)
    dtype = qkv.dtype.element_ty
    segment, offset = row // SEGMENT_ROWS, row % SEGMENT_ROWS
    cos = tl.load(cosine + row * HALF_DIM + lane, lane < HALF_DIM, other=0.0)
    sin = tl.load(sine + row * HALF_DIM + lane, lane < HALF_DIM, other=0.0)

    left, right, factor = _normed(qkv + (row * TOTAL + head) * 2 * HALF_DIM + lane, inside, HALF_DIM, eps)
    is_query = head < HEADS
    weight = tl.where(is_query, q_norm, k_norm) + lane
    left_out = (left * factor * tl.load(weight, inside, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
    right_out = (right * factor * tl.load(weight + HALF_DIM, inside, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
    rotated_left = (left_out * cos - right_out * sin).to(dtype)
    rotated_right = (right_out * cos + left_out * sin).to(dtype)
    target = q + (row * HEADS + head) * 2 * HALF_DIM + lane
    tl.store(target, rotated_left, inside & is_query)
    tl.store(target + HALF_DIM, rotated_right, inside & is_query)

    live = (tl.load(kind + segment) != KIND_UNUSED) & (offset < tl.load(length + segment))
    if live & (tl.program_id(1) * BLOCK + BLOCK > HEADS):
        position = tl.load(start + segment) + offset
        page = tl.load(page_table + segment * page_stride + position // PAGE).to(tl.int64)
        is_key = inside & (head >= HEADS)
        place = ((page * PAGE + position % PAGE) * GROUPS + head - HEADS) * 2 * HALF_DIM + lane
        tl.store(keys + place, rotated_left, is_key)
        tl.store(keys + place + HALF_DIM, rotated_right, is_key)
        if OWN_VALUES:
            own = qkv + (row * TOTAL + head + GROUPS) * 2 * HALF_DIM + lane
            left, right, factor = _normed(own, is_key, HALF_DIM, eps)
        tl.store(values + place, (left * factor).to(dtype), is_key)
        tl.store(values + place + HALF_DIM, (right * factor).to(dtype), is_key)


@jit
def _normed(pointer, inside, HALF_DIM: tl.constexpr, eps):
    """Both halves of some heads in fp32, and one over their root mean square."""
    left = tl.load(pointer, inside, other=0.0).to(tl.float32)
    right = tl.load(pointer + HALF_DIM, inside, other=0.0).to(tl.float32)
    squares = tl.sum(left * left, 1) + tl.sum(right * right, 1)
    return left, right, tl.rsqrt(squares / (2 * HALF_DIM) + eps)[:, None]
