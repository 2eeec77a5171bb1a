"""Tensor parallelism: shards are parts of a model's weights, and together they compute what one device does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from running import STEPS, constraint, ids, new_runner, plainly, same, step_of
from torch import Tensor

from nvfp4 import quantize_nvfp4
from random_adapter import random_adapter
from redraft.config import ModelConfig
from redraft.engine.work import Encode
from redraft.errors import SettingError
from redraft.kernels.packed import dequantized
from redraft.kernels.switches import Operation, watching
from redraft.kernels.triton import head
from redraft.kernels.triton.residuals import _sum
from redraft.kernels.triton.segments import DENOISE, ENCODE
from redraft.model import Transformer
from redraft.model.layouts import Weight
from redraft.model.packed.build import pack, repack, repacked_bytes
from redraft.model.packed.tensor_parallel import check_tensor_parallel, shard_config, shard_source
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.weights import PackedLayer, tensors
from redraft.model.presets import preset
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import quantize_int4

CPU = torch.device("cpu")
COUNTS = pytest.mark.parametrize("gpus", [2, 4])


def divided(plain: Transformer, gpus: int, **given: object) -> PackedTransformer:
    source, other_devices = plain.state_dict().__getitem__, [CPU] * (gpus - 1)
    packed = pack(plain.config, source, device=CPU, dtype=torch.float32, other_devices=other_devices, **given)  # type: ignore[arg-type]
    return PackedTransformer(packed)


@COUNTS
def test_every_step_is_that_of_the_plain_model(plain: Transformer, gpus: int) -> None:
    """Alone and beside others, on pages of two requests."""
    runner, prompts = new_runner(divided(plain, gpus)), (ids(1, 300), ids(2, 9))
    records = [plainly(plain, prompt, slot) for slot, prompt in enumerate(prompts)]
    runner.run([Encode(slot=0, start=0, token_ids=prompts[0]), Encode(slot=1, start=0, token_ids=prompts[1])])
    for step in range(max(map(len, records))):
        work = [step_of(slot, len(prompts[slot]), step) for slot in (0, 1) if step < len(records[slot])]
        for part, result in zip(work, runner.run(work), strict=True):
            assert same(records[part.slot][step], result)


def test_every_share_samples_some_of_the_canvases(plain: Transformer) -> None:
    """One canvas is the first shard's; of three, the first takes one and the second two. Commits come in between."""
    runner, rows, kinds = new_runner(divided(plain, 2)), list[int](), list[list[int]]()

    def watch(operation: Operation) -> object:
        if operation.name == "predict":
            rows.append(len(operation.args[0]))
            kinds[:] = [*kinds[-1:], operation.args[5].kind.tolist()]
        return operation.run()

    with watching(watch):
        for slots in ([0], [0, 1, 2]):
            runner.run([step_of(slot, 0, 0) for slot in slots])
        assert rows == [16, 16, 32]
        commits = [Encode(slot=slot, start=0, token_ids=ids(slot, 16)) for slot in (0, 1)]
        runner.run([*commits, *(step_of(slot, 16, 0) for slot in (0, 1))])
    assert rows[3:] == [32, 32]
    assert kinds == [[DENOISE, ENCODE]] * 2


@COUNTS
def test_shards_sample_canvases_with_constraints_in_rounds(
    plain: Transformer, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """Two of one automaton and one of another: with two shards the first two are sampled together, with four each is
    alone; where logits exist for one canvas at a time, two shards need another round."""
    words, time = constraint(r"[a-z ]{3,40}x[a-z]*"), constraint(r"\d\d?:\d\d")
    limits = [whole.begin().canvas(16, 40) for whole in (words, time, words)]
    prompts = [ids(seed, 20) for seed in (6, 7, 8)]
    records = [plainly(plain, prompts[slot], slot, constraint=limit) for slot, limit in enumerate(limits)]
    expected = {2: ([32, 16], [16] * 3), 4: ([16] * 3,) * 2}[gpus]
    for most, sampled in zip((2048, 16), expected, strict=True):
        monkeypatch.setattr("redraft.engine.constrained_step.CONSTRAINED_ROWS", most)
        runner, rows = new_runner(divided(plain, gpus)), list[int]()

        def watch(operation: Operation, rows: list[int] = rows) -> object:
            if operation.function is head.multiply:
                rows.append(len(operation.args[0]))
            return operation.run()

        runner.run([Encode(slot=slot, start=0, token_ids=prompt) for slot, prompt in enumerate(prompts)])
        with watching(watch):
            for step, record in enumerate(zip(*records, strict=False)):
                found = runner.run([step_of(slot, 20, step, constraint=limit) for slot, limit in enumerate(limits)])
                assert all(map(same, record, found))
        assert rows == sampled * (step + 1)


@COUNTS
def test_shards_sample_canvases_with_biases(plain: Transformer, gpus: int) -> None:
    """One also has a constraint, one has neither."""
    words = constraint(r"[a-z ]{3,40}x[a-z]*").begin().canvas(16, 40)
    given = [{"constraint": words, "logit_bias": ((100, -100.0), (101, 4.0))}, {"logit_bias": ((9, 20.0),)}, {}]
    prompts, runner = [ids(seed, 20) for seed in (6, 7, 8)], new_runner(divided(plain, gpus))
    records = [plainly(plain, prompts[slot], slot, **own) for slot, own in enumerate(given)]  # type: ignore[arg-type]
    runner.run([Encode(slot=slot, start=0, token_ids=prompt) for slot, prompt in enumerate(prompts)])
    for step, record in enumerate(zip(*records, strict=False)):
        found = runner.run([step_of(slot, 20, step, **own) for slot, own in enumerate(given)])
        assert all(map(same, record, found))


@COUNTS
@torch.inference_mode()
def test_forwards_outside_the_engine(plain: Transformer, gpus: int) -> None:
    """Two requests of their own lengths, which share pages after a copy."""
    model, tokens = divided(plain, gpus), torch.tensor([ids(1, 290), ids(2, 290)])
    canvas = torch.tensor([ids(3, 16)] * 4)
    found = []
    for one in (plain, model):
        cache = one.new_cache(2, 400)
        encoded = one.encode(tokens, cache, [290, 30])
        both = cache.copy([0, 1, 1, 0])
        one.encode(torch.tensor([ids(4, 8)] * 4), both, [8, 3, 0, 5])
        found.append((encoded[0], encoded[1, :30], one.denoise(canvas, both)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


def test_adapters_change_their_share_of_every_weight(plain: Transformer) -> None:
    """Experts, attention and MLP alike."""
    model, adapter, prompt = divided(plain, 2), random_adapter(plain, 3, size=0.1), ids(8, 20)
    source = adapter.applied(plain.state_dict().__getitem__)
    twin = PackedTransformer(repack(model.packed, source, set(adapter.factors)))
    kept = {tensor.data_ptr() for tensor in tensors(model.packed)}
    anew = sum(tensor.nbytes for tensor in tensors(twin.packed) if tensor.data_ptr() not in kept)
    assert repacked_bytes(model.packed, adapter.factors.keys()) == {CPU: anew}
    whole = PackedTransformer(pack(plain.config, source, device=CPU, dtype=torch.float32))
    runners = [new_runner(one) for one in (twin, whole, model)]
    for runner in runners:
        runner.run([Encode(slot=0, start=0, token_ids=prompt)])
    for step in range(STEPS):
        ours, theirs, without = (runner.run([step_of(0, 20, step)])[0] for runner in runners)
        assert same(ours, theirs)
    assert not same(ours, without)


def test_what_a_broken_request_left_is_cleaned_everywhere(plain: Transformer) -> None:
    runner = new_runner(divided(plain, 2))
    runner.run([Encode(slot=0, start=0, token_ids=ids(1, 40))])
    pages = runner.shared.pages
    for shard in pages.stored:
        shard.values[2][4, 3] = torch.nan
    runner.release(0)
    assert all(pool.isfinite().all() for shard in pages.stored for pool in (*shard.keys, *shard.values))


def quantized(name: str) -> Callable[[Tensor], Weight]:
    return {"plain": torch.clone, "fp8": quantize_fp8, "int4": lambda w: quantize_int4(w, 32), "nvfp4": quantize_nvfp4}[
        name
    ]


def full(weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dequantize(torch.float32)


@COUNTS
@pytest.mark.parametrize("format", ["plain", "fp8", "int4", "nvfp4"])
def test_shards_of_a_weight_make_the_whole(gpus: int, format: str) -> None:
    """Outputs of some, inputs of others, whole experts; a key/value head that is the only one is in every shard."""
    config = replace(preset("nano"), hidden_size=128, intermediate_size=128, moe_intermediate_size=64)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Transformer(config).state_dict().items()}
    torch.manual_seed(1)
    weights = {name: torch.randn(shape) for name, shape in shapes.items() if len(shape) > 1}
    stored = {name: quantized(format)(weight) for name, weight in weights.items()}
    sources = [shard_source(stored.__getitem__, config, number, gpus) for number in range(gpus)]
    for name, weight in stored.items():
        parts, whole = [full(source(name)) for source in sources], full(weight)
        heads = config.layer_kv_heads(int(name.split(".")[1])) if "layers" in name else 0
        if "layers" not in name or "router" in name:
            assert all(torch.equal(part, whole) for part in parts)
        elif name.endswith(("k_proj.weight", "v_proj.weight")):
            each = gpus // heads if heads < gpus else 1
            assert torch.equal(torch.cat(parts[::each]), whole)
            assert all(torch.equal(parts[number], parts[number // each * each]) for number in range(gpus))
        elif name.endswith(("o_proj.weight", "mlp.down_proj.weight")):
            off = (torch.cat(parts, 1) - whole).abs().amax()  # 4-bit groups are rounded once more, to FP8
            assert off <= (0.07 * whole.abs().amax() if format in ("int4", "nvfp4") else 0)
        else:
            assert torch.equal(torch.cat(parts), whole)


@COUNTS
@pytest.mark.parametrize("quantization", [None, "fp8", "int4"])
def test_a_gpu_holds_its_part_of_every_matrix(gpus: int, quantization: str | None) -> None:
    config = replace(preset("nano"), hidden_size=128, intermediate_size=128, moe_intermediate_size=64, num_experts=8)
    plain = Transformer(config)
    whole, model = divided(plain, 1, quantization=quantization), divided(plain, gpus, quantization=quantization)

    def sizes(layer: PackedLayer) -> int:
        matrices = layer.out, layer.gate_up, layer.down, layer.experts.gate_up, layer.experts.down
        return sum(dequantized(matrix, torch.float32).numel() for matrix in matrices)

    for shard in model.packed.shards:
        assert [sizes(layer) * gpus for layer in shard.layers] == [sizes(layer) for layer in whole.packed.layers]
    assert {len(shard.held_experts) for shard in model.packed.shards} == {8 // gpus}


@torch.inference_mode()
@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_quantized_shares_stay_near_the_quantized_whole(config: ModelConfig, quantization: str) -> None:
    plain = Transformer(replace(config, moe_intermediate_size=64)).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for tensor in plain.state_dict().values():
            if tensor.dim() > 1:
                tensor.normal_(0, tensor.shape[-1] ** -0.5)
    hidden = []
    for gpus, given in ((1, {}), (1, {"quantization": quantization}), (2, {"quantization": quantization})):
        model = divided(plain, gpus, **given)
        cache = model.new_cache(1, 64)
        model.encode(torch.tensor([ids(1, 20)]), cache)
        hidden.append(model.denoise(torch.tensor([ids(2, 16)]), cache))
    exact, whole, shards = hidden
    assert 0 < (shards - exact).norm() < 1.5 * (whole - exact).norm()


HEADS_OF_24 = replace(preset("26b-a4b"), num_attention_heads=24)


@pytest.mark.parametrize(
    ("config", "gpus", "message"),
    [
        (preset("26b-a4b"), 3, "gpus is 3; it must be 1, 2, 4 or 8"),
        (preset("26b-a4b"), 16, "gpus is 16; it must be 1, 2, 4 or 8"),
        (preset("26b-a4b"), 0, "gpus is 0; it must be 1, 2, 4 or 8"),
        (preset("tiny"), 4, "6 query heads, 2 and 1 key/value heads, dense MLP of 512 and 16 experts cannot"),
        (replace(HEADS_OF_24, num_key_value_heads=3), 2, "24 query heads, 3 and 2 key/value heads, .* cannot"),
        (replace(HEADS_OF_24, num_global_key_value_heads=3), 4, "24 query heads, 8 and 3 key/value heads, .* cannot"),
        (replace(preset("26b-a4b"), intermediate_size=2116), 8, "dense MLP of 2116 and 128 experts cannot"),
        (replace(preset("26b-a4b"), num_experts=66), 4, "dense MLP of 2112 and 66 experts cannot"),
    ],
)
def test_what_cannot_be_divided_is_said(config: ModelConfig, gpus: int, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_tensor_parallel(config, gpus)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_the_26b_model_can_be_divided(gpus: int) -> None:
    config = preset("26b-a4b")
    check_tensor_parallel(config, gpus)
    shard = shard_config(config, gpus)
    assert shard.num_attention_heads == 16 // gpus
    assert shard.num_key_value_heads == 8 // gpus
    assert shard.num_global_key_value_heads == max(2 // gpus, 1)
    assert shard.num_experts == 128


def test_parts_are_added_in_fp32_and_rounded_once() -> None:
    """1 + 2^-8 rounds to 1 in bf16, and 1 + 2^-8 + 2^-8 does not."""
    one, small = torch.ones(3, dtype=torch.bfloat16), torch.full((3,), 2**-8, dtype=torch.bfloat16)
    assert _sum([one, small, small], CPU).tolist() == [1 + 2**-7] * 3
