"""experts.py: each product against its twin in every format, live and dead rows, and through its options."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
import torch
from making import normal, route
from torch import Tensor

from redraft import kernels
from redraft.errors import SettingError
from redraft.kernels import eager
from redraft.kernels.packed import Packed, PackedExperts, Rows8, dequantized
from redraft.kernels.triton import experts
from redraft.kernels.triton.quantize import quantize_rows_eager
from redraft.kernels.triton.routing import Routing
from redraft.kernels.triton.tables import Tile, TritonPlan
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4
from redraft.quant.prepare import Stored, prepare

# Rows of dead assignments are never written, so what their memory held, NaN here, is quantized with the rest.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN slice:RuntimeWarning")

ROWS, EXPERTS, TOP_K, WIDTH, INNER = 48, 3, 2, 128, 64
TILE = Tile(columns=64, depth=64, stages=2, warps=4)
BLOCK_ROWS = 32
PLAN = TritonPlan(mean=inf, block_rows=BLOCK_ROWS, gate=TILE, down=TILE)
FORMATS: dict[str, Callable[[Tensor], Stored]] = {
    "fp8": quantize_fp8,
    "int4": quantize_int4,
    "int4 in groups of 32": lambda weight: quantize_int4(weight, 32),
}


GATE_UP, DOWN = 0.1 * normal(EXPERTS, 2 * INNER, WIDTH, seed=1), 0.1 * normal(EXPERTS, WIDTH, INNER, seed=2)


@pytest.fixture(params=[None, [10, 0, 16]], ids=["all live", "some dead"])
def routing(request: pytest.FixtureRequest) -> Routing:
    lengths = None if request.param is None else torch.tensor(request.param, dtype=torch.int32)
    return route(normal(ROWS, EXPERTS), torch.ones(EXPERTS), TOP_K, BLOCK_ROWS, lengths)


def live(routing: Routing) -> int:
    return int((routing.index >= 0).sum())


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
def test_plain_weights(routing: Routing, dtype: torch.dtype, bound: float) -> None:
    x = normal(ROWS, WIDTH)
    ours = experts.experts(x.to(dtype), routing, PackedExperts(GATE_UP.to(dtype), DOWN.to(dtype)), PLAN)
    alive = routing.index[:, 0] >= 0
    theirs = eager.experts(x[alive], routing.index[alive].long(), routing.weight[alive], GATE_UP, DOWN)
    assert ours.dtype == dtype
    assert error(ours[alive].float().sum(1), theirs) < bound
    assert (ours[~alive] == 0).all()


@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
def test_gate_in_low_precision(routing: Routing, stored: Callable[[Tensor], Stored]) -> None:
    x, weight = quantize_rows_eager(normal(ROWS, WIDTH)), prepare(stored(GATE_UP))
    ours, theirs = experts.gate(x, routing, weight, PLAN), experts.gate_eager(x, routing, weight)
    assert isinstance(ours, Rows8)
    assert isinstance(theirs, Rows8)
    count = live(routing)
    torch.testing.assert_close(ours.scale[:count], theirs.scale[:count], rtol=0.01, atol=0)
    # The kernel rounds to bf16 before e4m3, and the interpreter misrounds some values into the next binade.
    assert error(ours.dequantize(torch.float32)[:count], theirs.dequantize(torch.float32)[:count]) < 0.06


@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
def test_down_in_low_precision(routing: Routing, stored: Callable[[Tensor], Stored]) -> None:
    hidden, weight = hidden_rows(), prepare(stored(DOWN))
    ours = experts.down(hidden, routing, weight, PLAN, torch.float32)
    theirs = experts.down_eager(hidden, routing, weight, torch.float32)
    assert error(ours, theirs) < 1e-6
    assert (ours[routing.index < 0] == 0).all()


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
def test_int4_weights_take_plain_rows(routing: Routing, dtype: torch.dtype, bound: float, group: int) -> None:
    x, gate_up, down = normal(ROWS, WIDTH), *(prepare(quantize_int4(weight, group)) for weight in (GATE_UP, DOWN))
    ours = experts.experts(x.to(dtype), routing, PackedExperts(gate_up, down), PLAN)
    alive = routing.index[:, 0] >= 0
    exact = [dequantized(weight, torch.float32) for weight in (gate_up, down)]
    theirs = eager.experts(x[alive], routing.index[alive].long(), routing.weight[alive], *exact)
    assert ours.dtype == dtype
    assert error(ours[alive].float().sum(1), theirs) < bound
    assert (ours[~alive] == 0).all()


def hidden_rows() -> Rows8:
    return quantize_rows_eager(normal(ROWS * TOP_K, INNER, seed=3))


@pytest.mark.parametrize("stored", [prepare, quantize_fp8, quantize_int4])
@pytest.mark.parametrize("change", [{"columns": 128}, {"small": 16}, {"depth": 32}, {"depth": 128}], ids=str)
def test_every_way_to_cut_a_product_gives_the_same(stored: Callable[[Tensor], Stored], change: dict[str, int]) -> None:
    weight: Packed = prepare(stored(DOWN))
    lengths = torch.tensor([10, 0, 16], dtype=torch.int32)
    routing = route(normal(ROWS, EXPERTS), torch.ones(EXPERTS), TOP_K, BLOCK_ROWS, lengths)
    hidden = normal(ROWS * TOP_K, INNER, seed=3) if isinstance(weight, Tensor) else hidden_rows()
    usual = experts.down(hidden, routing, weight, PLAN, torch.float32)
    plan = replace(PLAN, down=replace(TILE, **change))
    torch.testing.assert_close(experts.down(hidden, routing, weight, plan, torch.float32), usual, rtol=1e-5, atol=1e-5)


def test_one_expert_takes_all_rows() -> None:
    logits = torch.full((ROWS, EXPERTS), -9.0)
    logits[:, 2] = 9.0
    routing, x = route(logits, torch.ones(EXPERTS), 1, BLOCK_ROWS), normal(ROWS, WIDTH)
    ours = experts.experts(x, routing, PackedExperts(GATE_UP, DOWN), PLAN)
    gate, up = (x @ GATE_UP[2].T).chunk(2, -1)
    torch.testing.assert_close(ours[:, 0], eager.gelu_gate(gate, up) @ DOWN[2].T, rtol=1e-4, atol=1e-4)


def test_the_same_inputs_give_the_same_bits() -> None:
    routing = route(normal(ROWS, EXPERTS), torch.ones(EXPERTS), TOP_K, BLOCK_ROWS)
    weights, x = (
        PackedExperts(prepare(quantize_int4(GATE_UP)), prepare(quantize_int4(DOWN))),
        quantize_rows_eager(normal(ROWS, WIDTH)),
    )
    assert torch.equal(experts.experts(x, routing, weights, PLAN), experts.experts(x, routing, weights, PLAN))


def test_the_sum_of_a_share_leaves_out_what_others_hold() -> None:
    """Which may be anything."""
    rows, index = normal(37, 4, 72), torch.randint(-1, 3, (37, 4), dtype=torch.int32)
    rows[index < 0] = torch.nan
    ours = experts.sum_of_experts(rows, index)
    assert ours.shape == (37, 1, 72)
    torch.testing.assert_close(ours, rows.nan_to_num(0).sum(1, keepdim=True))
    with kernels.force("eager"):
        torch.testing.assert_close(ours, experts.sum_of_experts(rows, index))


def test_widths_that_do_not_fit_are_named() -> None:
    weights = PackedExperts(normal(EXPERTS, 96, WIDTH), normal(EXPERTS, WIDTH, 48))
    with pytest.raises(SettingError, match="96"):
        experts.plan_products(normal(ROWS, WIDTH), weights, TOP_K, EXPERTS)
