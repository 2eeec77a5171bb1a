"""Routing and products on a GPU: at most twice the error of eager bf16 against fp32, and no row sees its neighbours."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from redraft.kernels import eager
from redraft.kernels.gluon import experts as gluon_experts
from redraft.kernels.gluon import int4_experts, int4_few_rows
from redraft.kernels.packed import PackedExperts, Rows8, dequantized
from redraft.kernels.triton import experts, linear, routing, tables
from redraft.kernels.triton.experts import GluonPlan, Plan
from redraft.kernels.triton.quantize import quantize_rows, quantize_rows_eager
from redraft.kernels.triton.routing import Routing
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4
from redraft.quant.prepare import prepare

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

EXPERTS, TOP_K, WIDTH, INNER = 16, 4, 512, 192
FORMATS = ["plain", "fp8", "int4", "int4 in groups of 32", "int4, down in groups of 32"]
PLAIN_ROWS = [f"{format}, plain rows" for format in FORMATS[2:]]


@pytest.fixture(autouse=True)
def _seeded_on_the_gpu() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.device("cuda"), torch.inference_mode():
        yield


def bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


def layer(weights: str) -> PackedExperts:
    gate_up, down = bf16(EXPERTS, 2 * INNER, WIDTH, scale=0.05), bf16(EXPERTS, WIDTH, INNER, scale=0.05)
    if weights == "plain":
        return PackedExperts(gate_up, down)
    if weights == "fp8":
        return PackedExperts(prepare(quantize_fp8(gate_up)), prepare(quantize_fp8(down)))
    format = weights.removesuffix(", plain rows")
    first, second = (32 if format.endswith(ending) else 64 for ending in ("int4 in groups of 32", "of 32"))
    return PackedExperts(prepare(quantize_int4(gate_up, first)), prepare(quantize_int4(down, second)))


def planned(
    x: Tensor, router: Tensor, weights: str, packed: PackedExperts, lengths: Tensor | None = None
) -> tuple[Routing, Plan]:
    plan = experts.plan_products(rows_for(weights, x), packed, TOP_K, EXPERTS)
    return routing.route_rows(x, router, torch.ones(EXPERTS), TOP_K, plan.block_rows, lengths), plan


def computed(x: Tensor, router: Tensor, weights: str, packed: PackedExperts, lengths: Tensor | None = None) -> Tensor:
    """The rows' outputs [T,K,D] of the experts that they choose."""
    routed, plan = planned(x, router, weights, packed, lengths)
    return experts.experts(rows_for(weights, x), routed, packed, plan)


def rows_for(weights: str, x: Tensor) -> Tensor | Rows8:
    return x if "plain" in weights else quantize_rows(x)


def error(ours: Tensor, exact: Tensor) -> float:
    assert ours.isfinite().all()
    return float((ours.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("rows", [64, 300, 1024])
def test_plain_experts(rows: int) -> None:
    x, weights = bf16(rows, WIDTH), layer("plain")
    routed, plan = planned(x, bf16(EXPERTS, WIDTH), "plain", weights)
    choice = routed.index.long(), routed.weight
    assert isinstance(weights.gate_up, Tensor)
    assert isinstance(weights.down, Tensor)
    exact = eager.experts(x.float(), *choice, weights.gate_up.float(), weights.down.float())
    allowed = error(eager.experts(x, *choice, weights.gate_up, weights.down), exact)
    assert error(experts.experts(x, routed, weights, plan).float().sum(1), exact) <= 2 * allowed


@pytest.mark.parametrize("rows", [64, 300, 1024])
@pytest.mark.parametrize("weights", FORMATS[1:])
def test_each_product_in_low_precision(weights: str, rows: int) -> None:
    """Against fp32 on the same numbers: nothing but the rounding of the result to bf16, or to bf16 and e4m3."""
    x, packed = rows_for(weights, bf16(rows, WIDTH)), layer(weights)
    routed, plan = planned(bf16(rows, WIDTH), bf16(EXPERTS, WIDTH), weights, packed)
    hidden, exact = experts.gate(x, routed, packed.gate_up, plan), experts.gate_eager(x, routed, packed.gate_up)
    assert isinstance(hidden, Rows8)
    assert isinstance(exact, Rows8)
    assert error(hidden.dequantize(torch.float32), exact.dequantize(torch.float32)) < 0.03
    exact = experts.down_eager(hidden, routed, packed.down, torch.float32)
    assert error(experts.down(hidden, routed, packed.down, plan), exact) < 2 * 2**-9


@pytest.mark.parametrize("rows", [64, 300, 1024])
@pytest.mark.parametrize("weights", PLAIN_ROWS)
def test_int4_experts_of_plain_rows(weights: str, rows: int) -> None:
    x, packed = bf16(rows, WIDTH), layer(weights)
    routed, plan = planned(x, bf16(EXPERTS, WIDTH), weights, packed)
    choice = routed.index.long(), routed.weight
    exact = [dequantized(weight, torch.float32) for weight in (packed.gate_up, packed.down)]
    true = eager.experts(x.float(), *choice, *exact)
    allowed = error(eager.experts(x, *choice, *(weight.bfloat16() for weight in exact)), true)
    assert error(experts.experts(x, routed, packed, plan).float().sum(1), true) <= 2 * allowed


@pytest.mark.parametrize("weights", FORMATS + PLAIN_ROWS)
def test_a_row_does_not_depend_on_the_rows_beside_it(weights: str) -> None:
    x, router, packed = bf16(2048, WIDTH), bf16(EXPERTS, WIDTH), layer(weights)

    few = computed(x[:64], router, weights, packed)
    for count in (100, 512, 2048):
        assert torch.equal(computed(x[:count], router, weights, packed)[:64], few)


@pytest.mark.parametrize("half", [100, 800])
@pytest.mark.parametrize("weights", ["plain", "fp8"])
def test_experts_in_gluon_have_the_same_bits(weights: str, half: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of few rows, of many, and of dead ones, of experts that many rows choose and few; 50 on average, or 400."""
    x, router, packed = bf16(2 * half, WIDTH), bf16(EXPERTS, WIDTH), layer(weights)
    if not gluon_experts.fits(x, WIDTH, INNER):
        pytest.skip("needs a Hopper GPU")
    router[: EXPERTS // 2] += 0.2 * x[:half].mean(0)
    lengths = torch.tensor([half * 7 // 8, half], dtype=torch.int32)
    routed, plan = planned(x, router, weights, packed, lengths)
    assert isinstance(plan, GluonPlan)
    ours = experts.experts(rows_for(weights, x), routed, packed, plan)
    monkeypatch.setattr(gluon_experts, "fits", lambda *shape: False)
    assert torch.equal(ours, computed(x, router, weights, packed, lengths))


@pytest.mark.parametrize(("rows", "favoured"), [(64, 0.0), (120, 0.0), (300, 0.0), (1600, 0.2)])
@pytest.mark.parametrize("lines", [int4_few_rows.LINES, *int4_experts.STAGES])
@pytest.mark.parametrize("weights", FORMATS[2:])
def test_int4_experts_in_gluon_have_the_same_bits(
    weights: str, lines: int, rows: int, favoured: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of every height, full, nearly empty and of dead rows; columns and groups that leave half a tile over."""
    x, router, packed = bf16(rows, WIDTH), bf16(EXPERTS, WIDTH), layer(weights)
    if not int4_experts.fits(quantize_rows(x).values, WIDTH, INNER, 64):
        pytest.skip("needs a Hopper GPU")
    router[: EXPERTS // 2] += favoured * x[: rows // 2].mean(0)
    lengths = torch.tensor([rows // 2 - 9, rows // 2], dtype=torch.int32)
    monkeypatch.setitem(tables.GLUON_ROWS, "int4", ((0, lines),))
    routed, plan = planned(x, router, "int4", packed, lengths)
    assert isinstance(plan, GluonPlan)
    assert plan.block_rows == lines
    ours = experts.experts(quantize_rows(x), routed, packed, plan)
    monkeypatch.setattr(int4_experts, "fits", lambda *shape: False)
    assert torch.equal(ours, computed(x, router, "int4", packed, lengths))


@pytest.mark.parametrize("weights", FORMATS)
def test_dead_rows_are_zeros_and_change_nothing(weights: str) -> None:
    x, router, packed = bf16(128, WIDTH), bf16(EXPERTS, WIDTH), layer(weights)
    x[40:64] = torch.nan
    ours = computed(x, router, weights, packed, torch.tensor([40, 64], dtype=torch.int32))
    alone = computed(x[:40], router, weights, packed)
    assert (ours[40:64] == 0).all()
    assert torch.equal(ours[:40], alone)


@pytest.mark.parametrize("rows", [40, 256, 1000, 4096])
@pytest.mark.parametrize("block_rows", [32, 128])
def test_routing_equals_its_twin(rows: int, block_rows: int) -> None:
    logits, scale = bf16(rows, 128), torch.rand(128)
    lengths = torch.tensor([rows // 2 - 3], dtype=torch.int32)
    ours = routing._route(logits[None].float(), logits.dtype, scale, 8, block_rows, lengths, None)
    theirs = routing.route_eager(logits, scale, 8, block_rows, lengths)
    used = int(theirs.counts[1])
    assert torch.equal(ours.index, theirs.index)
    assert torch.equal(ours.order, theirs.order)
    assert torch.equal(ours.tiles[:used], theirs.tiles[:used])
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("number", "width"), [(16, 512), (32, 384), (128, 2816)])
def test_a_row_is_routed_alike_among_any_number(number: int, width: int) -> None:
    x, router, ones = bf16(4096, width), bf16(number, width, scale=0.05), torch.ones(number)
    few = routing.route_rows(x[:64], router, ones, 4, 32)
    for count in (100, 300, 512, 1024, 2048, 4096):
        many = routing.route_rows(x[:count], router, ones, 4, 32)
        assert torch.equal(many.index[:64], few.index)
        assert torch.equal(many.weight[:64], few.weight)


def test_router_is_as_exact_as_eager() -> None:
    x, weight, ones = bf16(300, WIDTH), bf16(128, WIDTH, scale=0.05), torch.ones(128)
    exact = (x.double() @ weight.double().T).bfloat16()
    ours, theirs = routing.route_rows(x, weight, ones, 8, 32), routing.route_eager(exact, ones, 8, 32)
    same = (ours.index == theirs.index).all(-1)
    assert same.float().mean() > 0.9
    torch.testing.assert_close(ours.weight[same], theirs.weight[same], rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("rows", [17, 256, 2048])
def test_dense_fp8(rows: int) -> None:
    x, weight = quantize_rows(bf16(rows, WIDTH)), prepare(quantize_fp8(bf16(768, WIDTH, scale=0.05)))
    exact = linear.linear_eager(x, weight, dtype=torch.float32)
    assert error(linear.linear(x, weight), exact) < 2 * 2**-9
    gated, twin = linear.gated_linear(x, weight, fp8=True), linear.gated_linear_eager(x, weight, fp8=True)
    assert isinstance(gated, Rows8)
    assert isinstance(twin, Rows8)
    assert error(gated.dequantize(torch.float32), twin.dequantize(torch.float32)) < 0.03


def test_quantized_rows_equal_the_twin() -> None:
    for width in (100, 704, 2816):
        x = bf16(99, width)
        ours, theirs = quantize_rows(x), quantize_rows_eager(x)
        torch.testing.assert_close(ours.scale, theirs.scale, rtol=1e-6, atol=0)
        assert (ours.values.float() != theirs.values.float()).float().mean() < 1e-3


def test_the_same_work_twice_gives_the_same_bits() -> None:
    x, router = bf16(256, WIDTH), bf16(EXPERTS, WIDTH)
    for weights in FORMATS:
        packed = layer(weights)
        torch.cuda.synchronize()
        one, two = (computed(x, router, weights, packed) for _ in range(2))
        assert torch.equal(one, two)
