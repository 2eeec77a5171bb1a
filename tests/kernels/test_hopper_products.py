"""The products compiled for Hopper, on any machine, as the tables cut them up at the 26B shape."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from compiling import Compiled, caught_launches, compiled
from triton.backends.compiler import GPUTarget

from redraft.kernels.packed import Packed, PackedExperts, PackedFp8, PackedInt4, Rows8
from redraft.kernels.triton import experts, linear, quantize, routing, tables
from redraft.kernels.triton.routing import Routing

SHARED_MEMORY = 227 * 1024
EXPERTS, TOP_K, WIDTH, INNER = 128, 8, 2816, 704
FP8_PRODUCT, BF16_PRODUCT = "f32.e4m3.e4m3", "f32.bf16.bf16"


@pytest.fixture(autouse=True)
def _meta_tensors_take_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (experts, linear, quantize, routing):
        monkeypatch.setattr(module, "use_triton", lambda x: True)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def packed(weights: str, outputs: int, inputs: int) -> Packed:
    if weights == "plain":
        return meta(EXPERTS, outputs, inputs, dtype=torch.bfloat16)
    if weights == "fp8":
        return PackedFp8(meta(EXPERTS, outputs, inputs, dtype=torch.float8_e4m3fn), meta(EXPERTS, outputs))
    codes = meta(EXPERTS, inputs // 64, outputs, 32, dtype=torch.uint8)
    return PackedInt4(codes, meta(EXPERTS, -(-inputs // 128), outputs, 2, dtype=torch.bfloat16), 64)


def rows_for(weights: str, count: int, width: int) -> Tensor | Rows8:
    if weights == "plain":
        return meta(count, width, dtype=torch.bfloat16)
    return Rows8(meta(count, width, dtype=torch.float8_e4m3fn), meta(count, 1))


def routed(rows: int, weights: str) -> Routing:
    block = tables.block_rows(rows, TOP_K, EXPERTS, weights)
    return Routing(
        index=meta(rows, TOP_K, dtype=torch.int32), weight=meta(rows, TOP_K),
        order=meta(rows * TOP_K, dtype=torch.int32),
        tiles=meta(routing.max_tiles(rows, TOP_K, EXPERTS, block), 3, dtype=torch.int32),
        counts=meta(2, dtype=torch.int32), block_rows=block,
    )  # fmt: skip


def only(found: list[Compiled], name: str) -> Compiled:
    return next(kernel for kernel in found if kernel.name == name)


@pytest.mark.parametrize("rows", [256, 1024, 4096])
@pytest.mark.parametrize("weights", ["plain", "fp8", "int4"])
def test_products_over_experts_use_hopper_s_instructions(weights: str, rows: int) -> None:
    layer = PackedExperts(packed(weights, 2 * INNER, WIDTH), packed(weights, WIDTH, INNER))
    found = compiled(experts.experts, rows_for(weights, rows, WIDTH), routed(rows, weights), layer)
    assert [kernel.name for kernel in found if kernel.name != "quantize_kernel"] == [
        "gate_kernel", "down_kernel", "combine_kernel",
    ]  # fmt: skip
    for kernel in found:
        assert kernel.spilled == 0, kernel.name
        assert kernel.shared <= SHARED_MEMORY
    for name in ("gate_kernel", "down_kernel"):
        product = only(found, name)
        assert (BF16_PRODUCT if weights == "plain" else FP8_PRODUCT) in product.ptx
        assert "mma.sync" not in product.ptx.replace("wgmma.mma_async.sync", "")


def test_int4_codes_reach_the_product_in_registers() -> None:
    """Unpacked codes must not take the way through shared memory: no store there inside the loop over inputs."""
    found = compiled(experts.gate, rows_for("int4", 256, WIDTH), routed(256, "int4"), packed("int4", 2 * INNER, WIDTH))
    loop = only(found, "gate_kernel").ptx.split("wgmma.mma_async")
    assert not any("st.shared" in part for part in loop[1:-1])


@pytest.mark.parametrize("rows", [256, 4096])
def test_routing(rows: int) -> None:
    x, weight = meta(rows, WIDTH, dtype=torch.bfloat16), meta(EXPERTS, WIDTH, dtype=torch.bfloat16)
    scale, lengths = meta(EXPERTS, dtype=torch.bfloat16), meta(rows // 256, dtype=torch.int32)
    found = compiled(routing.route_rows, x, weight, scale, TOP_K, 32, lengths)
    assert [kernel.name for kernel in found] == ["router_kernel", "choose_kernel", "place_kernel"]
    assert all(kernel.spilled == 0 and kernel.shared <= SHARED_MEMORY for kernel in found)
    assert BF16_PRODUCT in only(found, "router_kernel").ptx


def test_dense_product() -> None:
    weight = PackedFp8(meta(WIDTH, 4096, dtype=torch.float8_e4m3fn), meta(WIDTH))
    found = compiled(linear.linear, rows_for("fp8", 256, 4096), weight)
    assert FP8_PRODUCT in only(found, "linear_kernel").ptx
    assert found[0].spilled == 0


@pytest.mark.parametrize("rows", [256, 1024, 4096])
@pytest.mark.parametrize("weights", ["plain", "fp8", "int4"])
def test_a_card_without_hopper_s_instructions_has_room_for_every_plan(weights: str, rows: int) -> None:
    layer = PackedExperts(packed(weights, 2 * INNER, WIDTH), packed(weights, WIDTH, INNER))
    with caught_launches(GPUTarget("cuda", 89, 32)) as found:
        experts.experts(rows_for(weights, rows, WIDTH), routed(rows, weights), layer)
    assert all(kernel.shared <= 99 * 1024 for kernel in found)
    assert all("wgmma" not in kernel.ptx for kernel in found)
