"""The products compiled for Hopper, on any machine, as the tables cut them up at the 26B shape."""

import re

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from compiling import SHARED_MEMORY, bf16, caught_launches, compiled, int32, meta, only
from triton.backends.compiler import GPUTarget

from redraft.kernels.packed import Packed, PackedExperts, PackedFp8, PackedInt4, Rows8
from redraft.kernels.triton import experts, linear, routing, tables
from redraft.kernels.triton.experts import Plan
from redraft.kernels.triton.routing import Routing, max_tiles

EXPERTS, TOP_K, WIDTH, INNER = 128, 8, 2816, 704
FP8_PRODUCT, BF16_PRODUCT = "f32.e4m3.e4m3", "f32.bf16.bf16"


def packed(weights: str, outputs: int, inputs: int, group: int = 64) -> Packed:
    if weights == "plain":
        return bf16(EXPERTS, outputs, inputs)
    if weights == "fp8":
        return PackedFp8(meta(EXPERTS, outputs, inputs, dtype=torch.float8_e4m3fn), meta(EXPERTS, outputs))
    codes = meta(EXPERTS, inputs // 64, outputs, 32, dtype=torch.uint8)
    pairs = -(-inputs // (2 * group))
    return PackedInt4(codes, bf16(EXPERTS, pairs, outputs, 2), group)


def layer_of(weights: str, inner: int = INNER, group: int = 64) -> PackedExperts:
    return PackedExperts(packed(weights, 2 * inner, WIDTH, group), packed(weights, WIDTH, inner, group))


def rows_for(weights: str, count: int, width: int, *, plain: bool = False) -> Tensor | Rows8:
    if plain or weights == "plain":
        return bf16(count, width)
    return Rows8(meta(count, width, dtype=torch.float8_e4m3fn), meta(count, 1))


def planned(
    rows: int, weights: str, layer: PackedExperts | None = None, *, plain: bool = False
) -> tuple[Routing, Plan]:
    x = rows_for(weights, rows, WIDTH, plain=plain)
    plan = experts.plan_products(x, layer or layer_of(weights), TOP_K, EXPERTS)
    block = plan.block_rows
    routing = Routing(
        index=int32(rows, TOP_K), weight=meta(rows, TOP_K),
        order=int32(rows * TOP_K),
        tiles=int32(max_tiles(rows, TOP_K, EXPERTS, block), 3),
        counts=int32(2), block_rows=block, num_experts=EXPERTS,
    )  # fmt: skip
    return routing, plan


def both_products(rows: int, weights: str, layer: PackedExperts, *, plain: bool = False) -> None:
    """Both products of a layer, of plain rows or of those that the weights' format takes."""
    routing, plan = planned(rows, weights, layer, plain=plain)
    experts.experts(rows_for(weights, rows, WIDTH, plain=plain), routing, layer, plan)


@pytest.mark.parametrize("rows", [256, 1024, 4096])
@pytest.mark.parametrize(("weights", "group"), [("plain", 0), ("fp8", 0), ("int4", 64), ("int4", 32)])
def test_products_over_experts_use_hopper_s_instructions(weights: str, group: int, rows: int) -> None:
    layer = layer_of(weights, group=group)
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        both_products(rows, weights, layer)
    products = [kernel for kernel in found if kernel.name != "quantize_kernel"]
    by_gluon = rows > 256 or weights == "int4"
    assert [kernel.name for kernel in products] == (
        ["_gate_kernel", "_down_kernel"] if by_gluon else ["gate_kernel", "down_kernel"]
    )
    for kernel in found:  # beside its sums a tile of INT4 weights keeps a few numbers that its loop does not need
        assert kernel.spilled <= (64 if by_gluon and weights == "int4" else 0), kernel.name
        assert kernel.shared <= SHARED_MEMORY
    for product in products:
        assert (BF16_PRODUCT if weights == "plain" else FP8_PRODUCT) in product.ptx
        assert "mma.sync" not in product.ptx.replace("wgmma.mma_async.sync", "")


@pytest.mark.parametrize(("weights", "rows", "rest"), [("fp8", 1024, 0), ("fp8", 2048, 16), ("plain", 2048, 0)])
def test_the_rest_of_a_tile_s_rows_takes_narrow_products(weights: str, rows: int, rest: int) -> None:
    """Two for either group of warps, of 64 weights each; their places are announced apart from those of 128 rows."""
    layer = layer_of(weights)
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        both_products(rows, weights, layer)
    for name in "_gate_kernel", "_down_kernel":
        ptx = only(found, name).ptx
        assert ptx.count(f"m64n{rest}k32") == (2 * 2 * 128 // 32 if rest else 0)
        assert ("wgmma.wait_group.sync.aligned 3" in ptx) == bool(rest)


def test_int4_codes_reach_the_product_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked codes must not take the way through shared memory: no store there inside the loop over inputs."""
    monkeypatch.setitem(tables.GLUON_ROWS, "int4", ())
    routing, plan = planned(256, "int4")
    found = compiled(experts.gate, rows_for("int4", 256, WIDTH), routing, packed("int4", 2 * INNER, WIDTH), plan)
    loop = only(found, "gate_kernel").ptx.split("wgmma.mma_async")
    assert not any("st.shared" in part for part in loop[1:-1])


@pytest.mark.parametrize("group", [64, 32])
@pytest.mark.parametrize(("rows", "products"), [(512, 1 + 1), (1024, 2 + 1)])
def test_int4_products_in_gluon_run_beside_the_scaling_of_others(rows: int, products: int, group: int) -> None:
    """Tiles of 64 rows or 32, and of 64 and 16 or 64 alone."""
    layer = layer_of("int4", group=group)
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        both_products(rows, "int4", layer)
    for name, blocks in ("_gate_kernel", 2), ("_down_kernel", 3):  # of 64 inputs, in the loop and behind it
        ptx = only(found, name).ptx
        jobs = 2 * 2 * blocks  # of either group of warps
        assert ptx.count("wgmma.mma_async") == jobs * products * 2  # of 32 inputs
        assert ptx.count("wgmma.wait_group.sync.aligned 1") > ptx.count("wgmma.wait_group.sync.aligned 0")


@pytest.mark.parametrize("group", [64, 32])
def test_int4_products_of_few_rows_are_made_by_four_groups_of_warps(group: int) -> None:
    layer = layer_of("int4", group=group)
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        both_products(256, "int4", layer)
    for name, blocks in ("_gate_kernel", 2), ("_down_kernel", 3):  # of 64 inputs, in the loop and behind it
        ptx = only(found, name).ptx
        assert ptx.count("wgmma.mma_async") == 4 * blocks * 2  # of 32 inputs
        assert ptx.count("m64n32k32") == ptx.count("wgmma.mma_async")


@pytest.mark.parametrize("rows", [256, 1024, 4096])
@pytest.mark.parametrize("groups", [(64, 32), (32, 64)])
def test_int4_products_of_different_groups_share_their_tiles(groups: tuple[int, int], rows: int) -> None:
    """Both products have the tiles of one routing."""
    layer = PackedExperts(packed("int4", 2 * INNER, WIDTH, groups[0]), packed("int4", WIDTH, INNER, groups[1]))
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        both_products(rows, "int4", layer)
    assert len([kernel for kernel in found if kernel.name != "quantize_kernel"]) == 2


@pytest.mark.parametrize("inner", [704, 256])
@pytest.mark.parametrize(("weights", "rows"), [("plain", 1024), ("fp8", 1024), ("int4", 1024), ("int4", 256)])
def test_every_group_of_warps_remembers_its_place_in_the_ring(weights: str, rows: int, inner: int) -> None:
    """From tile to tile: Triton 3.6 drops a number that changes there if only the bounds of inner loops use it."""
    layer = layer_of(weights, inner)
    with caught_launches(GPUTarget("cuda", 90, 32)) as found:
        both_products(rows, weights, layer)
    groups, copies = 4 if rows == 256 else 2, 2 if weights == "int4" else 1
    for name in "_gate_kernel", "_down_kernel":
        walks = re.findall(r"scf\.for %index.*", only(found, name).ir)
        assert len(walks) == groups + copies
        assert all("iter_args(%number" in walk for walk in walks)


@pytest.mark.parametrize("share", [None, range(64, 128)])
@pytest.mark.parametrize("rows", [256, 1024, 4096])
def test_routing(rows: int, share: range | None) -> None:
    x, weight = bf16(rows, WIDTH), bf16(EXPERTS, WIDTH)
    scale, lengths = bf16(EXPERTS), int32(rows // 256)
    found = compiled(routing.route_rows, x, weight, scale, TOP_K, 32, lengths, share)
    found += compiled(experts.sum_of_experts, bf16(rows, TOP_K, WIDTH), int32(rows, TOP_K))
    assert [kernel.name for kernel in found] == ["router_kernel", "choose_kernel", "place_kernel", "sum_kernel"]
    assert all(kernel.spilled == 0 and kernel.shared <= SHARED_MEMORY for kernel in found)
    assert BF16_PRODUCT in only(found, "router_kernel").ptx


@pytest.mark.parametrize("rows", [256, 4096])
@pytest.mark.parametrize("width", [384, 512, WIDTH])
def test_parts_of_the_router_s_sum_are_added_by_themselves(width: int, rows: int) -> None:
    found = compiled(routing.route_rows, bf16(rows, width), bf16(16, width), bf16(16), 4, 32)
    assert re.search(r"arith\.addf .*tensor", only(found, "router_kernel").ir)


@pytest.mark.parametrize(("outputs", "warps"), [(WIDTH, 4), (3 * 2 * INNER, 8)])
def test_dense_products(outputs: int, warps: int) -> None:
    weight = PackedFp8(meta(outputs, 4096, dtype=torch.float8_e4m3fn), meta(outputs))
    kernel = only(compiled(linear.linear, rows_for("fp8", 256, 4096), weight), "linear_kernel")
    assert FP8_PRODUCT in kernel.ptx
    assert f".reqntid {32 * warps}" in kernel.ptx
    assert kernel.spilled == 0
    assert kernel.shared <= SHARED_MEMORY


@pytest.mark.parametrize("rows", [256, 1024, 4096])
@pytest.mark.parametrize("weights", ["plain", "fp8", "int4"])
def test_a_card_without_hopper_s_instructions_has_room_for_every_plan(weights: str, rows: int) -> None:
    layer = layer_of(weights)
    with caught_launches(GPUTarget("cuda", 89, 32)) as found:
        both_products(rows, weights, layer)
    assert all(kernel.shared <= 99 * 1024 for kernel in found)
    assert all("wgmma" not in kernel.ptx for kernel in found)
