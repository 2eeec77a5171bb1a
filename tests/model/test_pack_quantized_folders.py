"""Folders with weights in 4 bits as vLLM serves them: which numbers they are, what they become, what is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import redraft
from pack_quantized import Scheme, store
from random_model import write_random_model
from redraft.errors import CheckpointError
from redraft.kernels.packed import Packed, PackedFp8, PackedInt4
from redraft.model import Model, Transformer
from redraft.model.checkpoint import Checkpoint
from redraft.model.inference import load_for_inference, load_packed
from redraft.model.initialise import initialise
from redraft.model.int4_experts import Int4Experts
from redraft.model.layouts import EXPERTS_AT_A_TIME
from redraft.model.packed.tensor_parallel import shard_source
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.weights import products
from redraft.model.presets import preset
from redraft.model.weight_settings import WeightSettings
from redraft.model.weights import load_model, save_model
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import Uint4Weight, quantize_int4
from redraft.train.frozen import Frozen
from redraft.train.lora import adapt
from redraft.train.quantized import load_quantized
from redraft.train.recipe import LoraSettings

GATE_UP, DOWN = "layers.0.experts.gate_up_proj", "layers.0.experts.down_proj"
MATRIX = "model.decoder.layers.1.experts.2.up_proj"
ROW = 10**6
"""A group of all inputs: a scale per row, which compressed-tensors calls `channel`."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain folder whose widths groups of 64 divide."""
    model = Transformer(
        replace(preset("nano"), hidden_size=128, intermediate_size=192, moe_intermediate_size=64, num_experts=20)
    )
    initialise(model, 3)
    folder = tmp_path_factory.mktemp("full")
    save_model(model.bfloat16(), folder)
    return folder


@pytest.fixture
def stored(full: Path, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Stores the plain folder as a scheme says; returns the folder and the plain twin with its numbers."""

    def write(scheme: Scheme, **others: Any) -> tuple[Path, Path]:
        return tmp_path / "q", store(full, tmp_path / "q", scheme, **others)

    return write


Stored = Callable[..., tuple[Path, Path]]


def packed_from(folder: Path, quantization: str | None = None) -> PackedTransformer:
    """The model as it is on a GPU, here computed by the kernels' twins."""
    return load_packed(Checkpoint(folder), WeightSettings(device="cpu", dtype="float32", quantization=quantization))


def on_cpu(folder: Path, dtype: str = "float32", quantization: str | None = None) -> Model:
    return load_for_inference(Checkpoint(folder), WeightSettings(device="cpu", dtype=dtype, quantization=quantization))


@torch.inference_mode()
def logits_of(model: Model) -> Tensor:
    cache = model.new_cache(1, 64)
    model.encode(torch.arange(20)[None], cache)
    return model.logits(model.denoise(torch.arange(30, 46)[None], cache))


def assert_rounded(found: Packed, numbers: Tensor, format: str | None = "fp8") -> None:
    """A packed matrix is `numbers` in bf16, rounded to a format."""
    rounded = (quantize_int4 if format == "int4" else quantize_fp8)(numbers.bfloat16())
    assert isinstance(found, PackedInt4 if format == "int4" else PackedFp8)
    assert torch.equal(found.dequantize(torch.float32), rounded.dequantize(torch.float32))


def in_bf16(plain: Path) -> Path:
    """The plain folder with its numbers rounded to bf16."""
    change(plain, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    return plain


def change(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("group", "scales"),
    [(16, torch.bfloat16), (32, torch.bfloat16), (32, torch.float16), (64, torch.float32), (ROW, torch.bfloat16)],
)
def test_every_number_is_what_the_format_says(stored: Stored, group: int, scales: torch.dtype, symmetric: bool) -> None:
    folder, plain = stored(Scheme(group=group, scales=scales, symmetric=symmetric))
    expected = load_model(plain, "cpu", "float32").state_dict()
    found = load_model(folder, "cpu", "float32").state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name
    formats = Checkpoint(folder).formats
    assert set(formats.values()) == {"int4" if symmetric else "uint4"}
    assert {"layers.0.attention.q_proj.weight", "layers.2.mlp.down_proj.weight", GATE_UP, DOWN} <= formats.keys()


@pytest.mark.parametrize("symmetric", [True, False])
def test_outputs_in_bf16_are_those_of_the_numbers_in_bf16(stored: Stored, symmetric: bool) -> None:
    folder, plain = stored(Scheme(symmetric=symmetric))
    assert torch.equal(logits_of(load_model(folder, "cpu", "bf16")), logits_of(load_model(plain, "cpu", "bf16")))
    exact = logits_of(load_model(plain, "cpu", "fp32"))
    ours, theirs = ((logits_of(on_cpu(place, "bfloat16")) - exact).norm() for place in (folder, plain))
    assert ours < 2 * theirs  # not the same, as INT4 experts are multiplied in fp32


@pytest.mark.parametrize("group", [32, 64, ROW])
@pytest.mark.parametrize("asked", [None, "int4"])
def test_symmetric_experts_keep_their_codes_and_the_rest_becomes_fp8(
    stored: Stored, group: int, asked: str | None
) -> None:
    folder, plain = stored(Scheme(group=group))
    found, weights = packed_from(folder, asked), load_model(plain, "cpu", "float32").state_dict()
    assert found.packed.quantization == "int4"
    for number, layer in enumerate(found.packed.layers):
        for ours, name in ((layer.experts.gate_up, "gate_up_proj"), (layer.experts.down, "down_proj")):
            assert isinstance(ours, PackedInt4)
            assert torch.equal(ours.dequantize(torch.float32), weights[f"layers.{number}.experts.{name}"])
        for field, names in products(Checkpoint(plain).config, number).items():
            if field not in ("router", "experts"):
                assert_rounded(getattr(layer, field), torch.cat([weights[name] for name in names]))
    expected = logits_of(load_model(plain, "cpu", "float32"))
    assert (logits_of(found) - expected).norm() < 0.15 * expected.norm()  # activations and dense weights are in FP8


@pytest.mark.parametrize("scheme", [Scheme(symmetric=False), Scheme(group=16)])
@pytest.mark.parametrize("asked", [None, "fp8", "int4"])
def test_what_no_kernel_takes_is_rounded_again(stored: Stored, scheme: Scheme, asked: str | None) -> None:
    folder, plain = stored(scheme)
    found, weights = packed_from(folder, asked), load_model(plain, "cpu", "float32").state_dict()
    assert found.packed.quantization == (asked or "fp8")
    experts = found.packed.layers[0].experts
    for ours, name in ((experts.gate_up, GATE_UP), (experts.down, DOWN)):
        assert_rounded(ours, weights[name], found.packed.quantization)
    assert torch.equal(logits_of(found), logits_of(packed_from(in_bf16(plain), asked or "fp8")))


def test_int4_becomes_fp8_if_asked(stored: Stored) -> None:
    folder, plain = stored(Scheme())
    found, weights = packed_from(folder, "fp8"), load_model(plain, "cpu", "float32").state_dict()
    assert found.packed.quantization == "fp8"
    assert_rounded(found.packed.layers[0].experts.down, weights[DOWN])
    assert torch.equal(logits_of(found), logits_of(packed_from(in_bf16(plain), "fp8")))


@pytest.mark.parametrize("other", [Scheme(symmetric=False), Scheme(group=16)])
def test_both_weights_of_a_layer_s_experts_have_one_format(stored: Stored, other: Scheme) -> None:
    folder, plain = stored(Scheme(), down_proj=other)
    found, weights = packed_from(folder), load_model(plain, "cpu", "float32").state_dict()
    for layer in found.packed.layers[:1]:
        assert_rounded(layer.experts.gate_up, weights[GATE_UP])
        assert_rounded(layer.experts.down, weights[DOWN])
    assert found.packed.quantization == "fp8"
    assert torch.equal(logits_of(found), logits_of(packed_from(in_bf16(plain), "fp8")))


def test_a_dense_matrix_alone_does_not_make_a_model_int4(full: Path, tmp_path: Path) -> None:
    store(full, tmp_path / "q", Scheme(), names=r".*self_attn\.[qkvo]_proj")
    assert packed_from(tmp_path / "q").packed.quantization == "fp8"


@pytest.mark.parametrize(
    ("scheme", "others"),
    [
        (Scheme(), {}),
        (Scheme(group=64), {"down_proj": Scheme(group=32)}),
        (Scheme(group=16), {}),
        (Scheme(group=ROW), {}),
    ],
)
def test_symmetric_experts_stay_in_int4_on_a_cpu(stored: Stored, scheme: Scheme, others: dict[str, Scheme]) -> None:
    folder, plain = stored(scheme, **others)
    found = on_cpu(folder)
    experts = [module for module in found.modules() if isinstance(module, Int4Experts)]
    assert len(experts) == 3
    assert all(part.gate_up.group == part.down.group for part in experts)  # else the C product does not take them
    torch.testing.assert_close(logits_of(found), logits_of(on_cpu(plain)), rtol=1e-4, atol=1e-4)


def test_asymmetric_experts_are_widened_on_a_cpu_or_rounded_if_asked(stored: Stored) -> None:
    folder, plain = stored(Scheme(symmetric=False))
    assert torch.equal(logits_of(on_cpu(folder)), logits_of(on_cpu(plain)))
    found, expected = on_cpu(folder, quantization="int4"), on_cpu(plain, quantization="int4")
    assert any(isinstance(module, Int4Experts) for module in found.modules())
    assert torch.equal(logits_of(found), logits_of(expected))


def test_experts_are_widened_a_few_at_a_time(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a layer of the 26B model in fp32, and what is made on the way, would take 5 GB."""
    folder, _ = stored(Scheme(symmetric=False))
    seen, dequantize = set[int](), Uint4Weight.dequantize

    def counted(weight: Uint4Weight, dtype: torch.dtype) -> Tensor:
        seen.add(weight.shape[0] if len(weight.shape) == 3 else 0)
        return dequantize(weight, dtype)

    monkeypatch.setattr(Uint4Weight, "dequantize", counted)
    load_model(folder, "cpu", "bf16")
    assert seen == {0, EXPERTS_AT_A_TIME, 20 - EXPERTS_AT_A_TIME}


@pytest.mark.parametrize("name", ["attention.k_proj", "attention.o_proj", "mlp.up_proj", "mlp.down_proj"])
def test_several_gpus_hold_parts_of_asymmetric_matrices(stored: Stored, name: str) -> None:
    folder, plain = stored(Scheme(symmetric=False))
    config, name = Checkpoint(folder).config, f"layers.0.{name}.weight"
    for number in range(2):
        mine, whole = (shard_source(Checkpoint(each).weight, config, number, 2)(name) for each in (folder, plain))
        assert isinstance(whole, Tensor)
        assert not isinstance(mine, Tensor)
        if isinstance(mine, Uint4Weight):
            assert torch.equal(mine.dequantize(torch.float32), whole)
        else:  # divided along the inputs, where a group may not divide
            assert torch.equal(mine.dequantize(torch.float32), quantize_fp8(whole.bfloat16()).dequantize(torch.float32))


def test_training_keeps_asymmetric_weights_as_they_are_stored(stored: Stored) -> None:
    folder, plain = stored(Scheme(symmetric=False))
    network = load_quantized(folder, "int4", device=torch.device("cpu"), dtype=torch.float32)
    frozen = network.get_submodule("layers.0.experts.gate_up_proj")
    assert isinstance(frozen, Frozen)
    assert isinstance(frozen.stored(), Uint4Weight)
    assert torch.equal(frozen.dense(torch.float32), load_model(plain, "cpu", "float32").state_dict()[GATE_UP])


@pytest.mark.parametrize("symmetric", [True, False])
def test_training_looks_up_an_embedding_that_is_stored_in_4_bits(stored: Stored, symmetric: bool) -> None:
    folder, plain = stored(Scheme(symmetric=symmetric), names=r".*\.embed_tokens")
    assert Checkpoint(folder).formats.keys() == {"embedding.weight"}
    settings = LoraSettings(rank=2)
    twins = [load_quantized(each, "int4", device=torch.device("cpu"), dtype=torch.float32) for each in (folder, plain)]
    for twin in twins:
        adapt(twin, settings, seed=0)
    ours, theirs = (twin.embeddings(torch.arange(20)) for twin in twins)
    assert torch.equal(ours, theirs)
    assert not ours.requires_grad


@pytest.mark.parametrize("quantization", [None, "int4", "fp8"])
def test_answers_come_out_of_such_a_folder(tmp_path: Path, quantization: str | None) -> None:
    (tmp_path / "full").mkdir()
    full = write_random_model(tmp_path / "full", canvas=16, context=256)
    store(full, tmp_path / "q", Scheme(symmetric=False))
    for file in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        (tmp_path / "q" / file).write_bytes((full / file).read_bytes())
    llm = redraft.load(tmp_path / "q", device="cpu", quantization=quantization)
    assert llm.generate("Hello!", max_tokens=16, seed=1).stats.steps


# --- what is refused ---------------------------------------------------------------------------------------------


def with_index(index: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | {f"{MATRIX}.weight_g_idx": index.to(torch.int32)}


def test_groups_of_inputs_that_are_not_neighbours_are_refused(stored: Stored) -> None:
    folder, plain = stored(Scheme())
    change(folder, with_index(torch.arange(128) // 32))
    assert torch.equal(logits_of(load_model(folder, "cpu", "float32")), logits_of(load_model(plain, "cpu", "float32")))
    change(folder, with_index(torch.arange(128) % 4))
    told = rf"^{re.escape(MATRIX)}\.weight_g_idx in .*q forms groups of inputs that are not neighbours .* be read\.$"
    with pytest.raises(CheckpointError, match=told):
        Checkpoint(folder)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_older_formats_are_refused_with_what_is_supported(stored: Stored, method: str) -> None:
    folder, _ = stored(Scheme())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": method, "bits": 4}})
    )
    told = rf"sets quant_method to '{method}'; it must be .*, or 4 bits in pack-quantized\) or modelopt \(NVFP4\)\.$"
    with pytest.raises(CheckpointError, match=told):
        load_model(folder, "cpu")
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {}}))
    change(folder, lambda tensors: {name.replace("weight_packed", "qweight"): t for name, t in tensors.items()})
    with pytest.raises(CheckpointError, match=r"^.*q stores .*\.qweight as AutoAWQ and GPTQ do; it must be compressed"):
        load_model(folder, "cpu")


def test_other_numbers_of_bits_are_refused(stored: Stored) -> None:
    folder, _ = stored(Scheme())
    text = (folder / "config.json").read_text().replace('"num_bits": 4', '"num_bits": 8')
    (folder / "config.json").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"sets num_bits to 8 in group_0; of whole numbers only 4 bits are read\.$"
    ):
        load_model(folder, "cpu")


@pytest.mark.parametrize(
    ("suffix", "tensor", "told"),
    [
        (".weight_zero_point", torch.zeros(9, 4, dtype=torch.int32), r"1 misshapen: .*zero_point \[9, 4\] .* \[8, 4\]"),
        (".weight_zero_point", torch.zeros(64, 4, dtype=torch.int8), r"1 unexpected: .*weight_zero_point"),
        (".weight_packed", torch.zeros(64, 16), r"1 of an unsupported dtype: .*weight_packed F32"),
        (".weight_packed", None, r"1 missing: .*up_proj\.weight_packed"),
        (".weight_scale", None, r"1 missing: .*up_proj\.weight_scale"),
    ],
)
def test_tensors_that_do_not_fit_are_named(stored: Stored, suffix: str, tensor: Tensor | None, told: str) -> None:
    folder, _ = stored(Scheme(symmetric=False))

    def changed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        rest = {name: kept for name, kept in tensors.items() if name != MATRIX + suffix}
        return rest if tensor is None else rest | {MATRIX + suffix: tensor}

    change(folder, changed)
    with pytest.raises(CheckpointError, match=told):
        load_model(folder, "cpu")


def test_some_matrices_of_a_weight_without_zero_points_are_named(stored: Stored) -> None:
    folder, _ = stored(Scheme(symmetric=False))
    change(folder, lambda tensors: {name: t for name, t in tensors.items() if name != f"{MATRIX}.weight_zero_point"})
    with pytest.raises(CheckpointError, match=r"1 in several formats: layers\.1\.experts\.gate_up_proj"):
        load_model(folder, "cpu")
