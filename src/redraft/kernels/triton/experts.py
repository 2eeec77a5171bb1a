"""The mixture of experts on packed weights, in two products over rows sorted by expert.

1. `gate`: gelu(gate x) * up x for the tiles of `Routing`, in sorted order;
2. `down`: the down projection, times the router's weight, each row written to the place of its assignment.

The K rows of a token are summed by the kernel that reads them, best expert first: no atomics, so the sum never varies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.errors import SettingError
from redraft.kernels import eager
from redraft.kernels.gluon import experts as gluon_experts
from redraft.kernels.gluon import int4_experts, int4_few_rows
from redraft.kernels.packed import (
    Packed,
    PackedExperts,
    PackedFp8,
    PackedInt4,
    Rows,
    dequantized,
    values_and_scale,
)
from redraft.kernels.triton import tables
from redraft.kernels.triton.descriptors import bulk_copies, descriptor
from redraft.kernels.triton.expert_kernels import down_kernel, gate_kernel, sum_kernel
from redraft.kernels.triton.language import INTERPRETED, cdiv, next_power_of_2, use_triton
from redraft.kernels.triton.launch import FEW_ROWS_OF_PRODUCTS, chained
from redraft.kernels.triton.quantize import quantize_rows, quantize_rows_eager
from redraft.kernels.triton.routing import Routing
from redraft.kernels.triton.tables import Tile, TritonPlan


@dataclass(frozen=True, slots=True)
class GluonPlan:
    """Both products over experts by a module of `kernels.gluon`, in tiles of at most `block_rows` rows."""

    block_rows: int
    kernels: Any


Plan = TritonPlan | GluonPlan


def plan_products(x: Rows, weights: PackedExperts, top_k: int, num_experts: int) -> Plan:
    """How both products are computed for rows x [T,D], each of which goes to top_k of num_experts.

    `weights` may hold only some of these experts. Raises `SettingError` if no kernel supports the weights' shapes;
    eager twins take any.
    """
    values, _ = values_and_scale(x)
    name, mean = format_of(weights.gate_up), len(values) * top_k / num_experts
    rows = tables.gluon_rows(name, mean)
    kernels = None if rows is None else _gluon_kernels(values, weights, rows)
    if rows is not None and kernels is not None:
        return GluonPlan(rows, kernels)
    if use_triton(values):
        _check_shapes(weights)
    return tables.plan(name, mean)


def _gluon_kernels(x: Tensor, weights: PackedExperts, rows: int) -> Any:
    """The kernels of `kernels.gluon` that take x and these weights in tiles of this many rows, or None."""
    _, width, inner = weights.down.shape
    groups = [weight.group for weight in (weights.gate_up, weights.down) if isinstance(weight, PackedInt4)]
    if not groups:
        return gluon_experts if gluon_experts.fits(x, width, inner) else None
    if not all(int4_experts.fits(x, width, inner, group) for group in groups):
        return None
    return int4_few_rows if rows == int4_few_rows.LINES else int4_experts


def _check_shapes(weights: PackedExperts) -> None:
    for weight in (weights.gate_up, weights.down):
        _, outputs, inputs = weight.shape
        if outputs % 128 or inputs % 64:
            message = f"experts of {outputs} x {inputs} do not fit the CUDA kernels, which work in steps of 128 x 64."
            raise SettingError(message)


def experts(
    x: Rows, routing: Routing, weights: PackedExperts, plan: Plan, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """x [T,D] -> each row's K experts' outputs, [T,K,D], times the router's weights; zeros in dead rows.

    If `weights` are a share of the experts, rows of the others are undefined, and so are dead ones. `plan` is that of
    `plan_products` for these rows, and its `block_rows` are those of the routing.

    Plain rows go with plain weights, or with INT4 ones where there are no FP8 products, and keep their dtype. FP8 and
    INT4 weights take `Rows8` with a scale per row, and give `dtype`.
    """
    return down(gate(x, routing, weights.gate_up, plan, dtype), routing, weights.down, plan, dtype)


def gate(x: Rows, routing: Routing, weight: Packed, plan: Plan, dtype: torch.dtype = torch.bfloat16) -> Rows:
    """x [T,D] -> hidden rows gelu(gate x) * up x [T*K,I], in the order of `routing.order`; undefined in dead rows.

    weight [E,2I,D], gate rows first. `Rows8` gives `Rows8`: hidden rows are rounded to `dtype`, then to FP8 in a
    separate launch, because a row's scale depends on the whole row.
    """
    if not use_triton(routing.order):
        return gate_eager(x, routing, weight, dtype)
    top_k, (_, both, width) = routing.index.shape[1], weight.shape
    total, inner = len(routing.order), both // 2
    values, x_scale = values_and_scale(x)
    out = values.new_empty(total, inner, dtype=values.dtype if x_scale is None else dtype)
    if isinstance(plan, GluonPlan):
        plan.kernels.gate(values, x_scale, *_matrix(weight), routing, out)
    else:
        # With several GPUs side streams start late, and the dense MLP would find no room beside programs that wait.
        most = FEW_ROWS_OF_PRODUCTS if weight.shape[0] == routing.num_experts else 0
        gate_kernel[len(routing.tiles) * (inner // plan.gate.columns),](
            values, x_scale, *_matrix(weight, plan.gate), out, routing.order, routing.tiles,
            D=width, INNER=inner, TOP_K=top_k, **_settings(weight, routing, plan.gate, most),
        )  # fmt: skip
    return out if x_scale is None else quantize_rows(out)


def down(hidden: Rows, routing: Routing, weight: Packed, plan: Plan, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """hidden [T*K,I] sorted -> [T,K,D] in the order of assignments, times the router's weight; zeros in dead rows.

    weight [E,D,I]. Plain rows keep their dtype, `Rows8` gives `dtype`.
    """
    if not use_triton(routing.order):
        return down_eager(hidden, routing, weight, dtype)
    _, width, inner = weight.shape
    values, scale = values_and_scale(hidden)
    out = torch.empty(
        *routing.index.shape, width, dtype=dtype if scale is not None else values.dtype, device=values.device
    )
    if isinstance(plan, GluonPlan):
        plan.kernels.down(values, scale, *_matrix(weight), routing, out)
    else:
        down_kernel[len(routing.tiles) * (width // plan.down.columns),](
            values, scale, *_matrix(weight, plan.down), routing.weight, out, routing.order, routing.tiles,
            D=width, INNER=inner, **_settings(weight, routing, plan.down),
        )  # fmt: skip
    return out


def sum_of_experts(rows: Tensor, index: Tensor) -> Tensor:
    """rows [T,K,D] -> [T,1,D], the sum in fp32 of those whose index [T,K] is not negative, best expert first."""
    if not use_triton(rows):
        return rows.float().masked_fill(index[..., None] < 0, 0.0).sum(1, keepdim=True).to(rows.dtype)
    count, top_k, width = rows.shape
    out = rows.new_empty(count, 1, width)
    block = min(next_power_of_2(width), 2048)
    sum_kernel[count, cdiv(width, block)](rows, index, out, width, TOP_K=top_k, BLOCK=block, num_warps=4)
    return out


def format_of(weight: Packed) -> str:
    """The name of a weight's format: plain, fp8 or int4."""
    return "plain" if isinstance(weight, Tensor) else "fp8" if isinstance(weight, PackedFp8) else "int4"


def _matrix(weight: Packed, tile: Tile | None = None) -> tuple[Any, Tensor | None]:
    """The weight as a kernel takes it, through a descriptor if its `tile` says so, and its scales."""
    if isinstance(weight, PackedInt4):
        return weight.codes, weight.scale.view(torch.int32)
    values, scale = values_and_scale(weight)
    return (descriptor(values.flatten(0, 1), tile.columns, tile.depth) if tile and tile.tma else values), scale


def _settings(weight: Packed, routing: Routing, tile: Tile, most: int = FEW_ROWS_OF_PRODUCTS) -> dict[str, Any]:
    """Options of a launch, which may begin early with up to `most` rows."""
    return {
        "FORMAT": format_of(weight), "GROUP": weight.group if isinstance(weight, PackedInt4) else 0,
        "BM": routing.block_rows, "SMALL": min(tile.small, routing.block_rows), "BN": tile.columns, "BK": tile.depth,
        "STAGES": tile.stages, "TMA": tile.tma and bulk_copies(routing.order.device), "ASM": not INTERPRETED,
        "num_warps": tile.warps, "num_stages": tile.stages,
        **chained(routing.order, len(routing.index), most),
    }  # fmt: skip


def gate_eager(x: Rows, routing: Routing, weight: Packed, dtype: torch.dtype = torch.bfloat16) -> Rows:
    """`gate` in plain PyTorch, one expert after the other."""
    plain = _plain(x)
    top_k = routing.index.shape[1]
    hidden = plain.new_zeros(len(routing.order), weight.shape[1] // 2)
    for expert, first, end in _live_tiles(routing):
        rows = plain[routing.order[first:end] // top_k]
        gates, ups = F.linear(rows, dequantized(weight[expert], plain.dtype)).chunk(2, -1)
        hidden[first:end] = eager.gelu_gate(gates, ups)
    return hidden if isinstance(x, Tensor) else quantize_rows_eager(hidden.to(dtype))


def down_eager(hidden: Rows, routing: Routing, weight: Packed, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`down` in plain PyTorch, one expert after the other."""
    plain = _plain(hidden)
    dtype = hidden.dtype if isinstance(hidden, Tensor) else dtype
    out = torch.zeros(len(routing.order), weight.shape[1], dtype=dtype, device=plain.device)
    worth = routing.weight.flatten()
    for expert, first, end in _live_tiles(routing):
        places = routing.order[first:end]
        y = F.linear(plain[first:end], dequantized(weight[expert], plain.dtype)) * worth[places, None]
        out[places] = y.to(dtype)
    return out.view(*routing.index.shape, -1)


def _live_tiles(routing: Routing) -> list[list[int]]:
    return routing.tiles[: int(routing.counts[0])].tolist()


def _plain(x: Rows) -> Tensor:
    """FP8 rows as fp32."""
    return x if isinstance(x, Tensor) else x.dequantize(torch.float32)
