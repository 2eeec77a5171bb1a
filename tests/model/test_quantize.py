"""Quantized folders: written, read back, and read in the conventions of other writers."""

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nvfp4 import quantize_nvfp4
from redraft.errors import CheckpointError, SettingError
from redraft.kernels.packed import PackedFp8
from redraft.model import quantize
from redraft.model.checkpoint import Checkpoint
from redraft.model.copying import write_copy
from redraft.model.initialise import initialise
from redraft.model.names import to_hugging_face
from redraft.model.presets import preset
from redraft.model.quantize import quantize_folder, weight_format
from redraft.model.transformer import Transformer
from redraft.model.weights import load_model, save_model
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import Int4Weight, quantize_int4
from redraft.quant.nvfp4 import Nvfp4Weight

EXPERTS = "layers.0.experts.gate_up_proj"
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
EXPERT = "model.decoder.layers.0.experts.0"
GROUP = 16  # the test model's experts are narrow
GROUPS = {"fp8": None, "int4": GROUP}


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = Transformer(preset("nano"))
    initialise(model, 0)
    return model


@pytest.fixture
def folder(model: Transformer, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "model")
    for name in ("tokenizer.json", "chat_template.jinja", "pytorch_model.bin", "model.gguf", "a.bin.index.json"):
        (tmp_path / "model" / name).write_text("{}")
    return tmp_path / "model"


def expected(name: str, weight: Tensor, format: str) -> Tensor:
    kind = weight_format(name, format)
    if kind is None:
        return weight
    quantized = quantize_fp8(weight) if kind == "fp8" else quantize_int4(weight, GROUP)
    return quantized.dequantize(torch.float32)


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_a_quantized_folder_loads_as_exactly_the_rounded_weights(
    model: Transformer, folder: Path, tmp_path: Path, format: str
) -> None:
    seen = []
    summary = quantize_folder(
        folder,
        tmp_path / "out",
        format,
        group=GROUPS[format],
        max_shard_size=50_000,
        progress=lambda *at: seen.append(at),
    )
    loaded = load_model(tmp_path / "out", dtype="float32", device="cpu")
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], expected(name, weight, format), rtol=0, atol=0)
    shards = sorted(file.name for file in (tmp_path / "out").glob("*.safetensors"))
    assert shards == [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    assert len(shards) > 1
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert seen[-1] == (len(model.state_dict()), len(model.state_dict()))
    assert summary["bytes"] == sum(summary["bytes_by_format"].values())
    assert {path.name for path in tmp_path.iterdir()} == {"model", "out"}


@pytest.mark.parametrize("place", ["folder", "link", "here"])
def test_an_empty_folder_is_filled_where_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A link and the working directory cannot be replaced, and neither can a disk of its own."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    target = {"folder": tmp_path / "empty", "link": tmp_path / "link", "here": Path()}[place]
    quantize_folder(folder, target, "fp8")
    assert Checkpoint(tmp_path / "empty").formats
    assert (tmp_path / "link").is_symlink()
    described = {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert {file.name for file in target.iterdir()} == described | {"model.safetensors"}


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_the_target_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "out"
    if there:
        target.mkdir()
    monkeypatch.setattr("redraft.model.folders.shutil.copyfile", full_disk)
    with pytest.raises(OSError, match="No space left"):
        quantize_folder(folder, target, "fp8")
    assert target.exists() == there
    assert not there or not list(target.iterdir())


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_the_bytes_that_a_copy_needs_are_known_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.decoder.embed_tokens.weight"] = tensors["model.decoder.embed_tokens.weight"].half()
    save_file(tensors, folder / "model.safetensors")
    told = list[int]()

    def write(*given: Any, needed: int, **more: Any) -> None:
        told.append(needed)
        write_copy(*given, needed=needed, **more)

    monkeypatch.setattr(quantize, "write_copy", write)
    quantize_folder(folder, tmp_path / "out", format, group=GROUPS[format])
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert told == [sum(tensor.nbytes for tensor in written.values())]


def test_folders_made_on_the_way_are_removed_on_failure(folder: Path, tmp_path: Path) -> None:
    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_folder(folder, tmp_path / "a" / "b" / "out", "fp8", progress=stop)
    assert not (tmp_path / "a").exists()


def test_weights_keep_their_format_until_they_are_needed(folder: Path, tmp_path: Path) -> None:
    quantize_folder(folder, tmp_path / "fp8", "fp8")
    quantize_folder(folder, tmp_path / "int4", "int4", group=GROUP)
    assert isinstance(Checkpoint(tmp_path / "fp8").weight(EXPERTS), PackedFp8)
    experts = Checkpoint(tmp_path / "int4").weight(EXPERTS)
    assert isinstance(experts, Int4Weight)
    assert experts.group == GROUP
    assert experts.shape == Checkpoint(folder).shapes[EXPERTS]
    assert isinstance(Checkpoint(tmp_path / "int4").weight("layers.0.mlp.up_proj.weight"), PackedFp8)
    formats = Checkpoint(tmp_path / "int4").formats
    assert set(formats.values()) == {"fp8", "int4"}


def test_packed_words_come_with_the_shape_of_their_matrix(folder: Path, tmp_path: Path) -> None:
    quantize_folder(folder, tmp_path / "out", "int4", group=GROUP, max_shard_size=10**9)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for kind, shape in (("gate_proj", [32, 64]), ("down_proj", [64, 32])):
        assert tensors[f"{EXPERT}.{kind}.weight_shape"].tolist() == shape


def test_files_are_as_private_as_the_user_wants_them(folder: Path, tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        quantize_folder(folder, tmp_path / "out", "fp8")
    finally:
        os.umask(mask)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()} == {0o600}


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_a_single_expert_is_read_as_a_block_of_one(tmp_path: Path, format: str) -> None:
    model = Transformer(dataclasses.replace(preset("nano"), num_experts=1, top_k_experts=1))
    initialise(model, 0)
    save_model(model, tmp_path / "model")
    quantize_folder(tmp_path / "model", tmp_path / "out", format, group=GROUPS[format])
    checkpoint = Checkpoint(tmp_path / "out")
    for name, weight in model.state_dict().items():
        read = checkpoint.weight(name)
        plain = read if isinstance(read, Tensor) else read.dequantize(torch.float32)
        torch.testing.assert_close(plain, expected(name, weight, format), rtol=0, atol=0)


@pytest.mark.parametrize("convention", ["compressed-tensors", "modelopt"])
def test_nvfp4_of_either_convention_is_the_same_weight(model: Transformer, folder: Path, convention: str) -> None:
    """The one stores a divisor, the other a factor, under different names."""
    wanted = store_experts_in_nvfp4(folder, convention)
    loaded = load_model(folder, dtype="float32", device="cpu").state_dict()[EXPERTS]
    for expert in range(len(loaded)):
        gate, up = loaded[expert].chunk(2)
        base = f"model.decoder.layers.0.experts.{expert}"
        torch.testing.assert_close(gate, wanted[f"{base}.gate_proj"], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(up, wanted[f"{base}.up_proj"], rtol=1e-6, atol=1e-9)


def store_experts_in_nvfp4(folder: Path, convention: str) -> dict[str, Tensor]:
    """Rewrite a folder; returns what the experts' matrices are now, by their names."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    wanted = {}
    for name in [key for key in tensors if ".experts." in key]:
        fused = tensors.pop(name)
        kinds = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        for expert, block in enumerate(fused):
            for kind, matrix in zip(kinds, block.chunk(len(kinds)), strict=True):
                weight = quantize_nvfp4(matrix)
                base = f"{name.rpartition('.')[0]}.{expert}.{kind}"
                wanted[base] = weight.dequantize(torch.float32)
                tensors |= nvfp4_tensors(base, weight, convention)
    save_file(tensors, file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": convention}}))
    return wanted


def nvfp4_tensors(base: str, weight: Nvfp4Weight, convention: str) -> dict[str, Tensor]:
    factor = weight.factor[0, 0]
    if convention == "modelopt":
        return {
            f"{base}.weight": weight.codes,
            f"{base}.weight_scale": weight.scale,
            f"{base}.weight_scale_2": factor,
            f"{base}.input_scale": torch.ones(()),
        }
    return {
        f"{base}.weight_packed": weight.codes,
        f"{base}.weight_scale": weight.scale,
        f"{base}.weight_global_scale": (1 / factor).reshape(1),
        f"{base}.input_global_scale": torch.ones(1),
    }


def test_an_embedding_may_be_quantized_too(folder: Path) -> None:
    name, file = to_hugging_face("embedding.weight"), folder / "model.safetensors"
    tensors = load_file(file)
    kept = quantize_fp8(tensors[name])
    save_file(tensors | {name: kept.values, name + "_scale": kept.scale[:, None]}, file)
    checkpoint = Checkpoint(folder)
    assert (checkpoint.formats, checkpoint.dtype) == ({"embedding.weight": "fp8"}, torch.float32)
    loaded = load_model(folder, "cpu", "float32").embedding.weight
    assert torch.equal(loaded, kept.dequantize(torch.float32))


def test_a_quantized_tensor_that_lacks_its_scale_is_named(folder: Path, tmp_path: Path) -> None:
    quantize_folder(folder, tmp_path / "out", "fp8", max_shard_size=10**9)
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.decoder.layers.0.self_attn.q_proj.weight_scale"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"1 missing: model.decoder.layers.0.self_attn.q_proj.weight_scale"):
        load_model(tmp_path / "out")


def scaled(name: str, scale: Tensor) -> Change:
    return lambda tensors: tensors | {f"{EXPERT}.{name}.weight_scale": scale.to(torch.bfloat16)}


def plain(name: str) -> Change:
    """One matrix of a weight in full, the others of it as they were."""
    base, shape = f"{EXPERT}.{name}", preset("nano")
    whole = torch.zeros(shape.moe_intermediate_size, shape.hidden_size)
    return lambda tensors: {key: t for key, t in tensors.items() if base not in key} | {f"{base}.weight": whole}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            scaled("down_proj", torch.ones(64, 3)),
            "1 misshapen: EXPERT.down_proj.weight_scale [64, 3] instead of [64, 2]",
        ),
        (
            scaled("down_proj", torch.ones(63, 2)),
            "1 misshapen: EXPERT.down_proj.weight_scale [63, 2] instead of [64, 2]",
        ),
        (scaled("down_proj", torch.ones(64)), "1 misshapen: EXPERT.down_proj.weight_scale [64] instead of [64, 2]"),
        (scaled("down_proj", torch.ones(64, 0)), "1 misshapen: EXPERT.down_proj.weight_scale [64, 0]"),
        (scaled("gate_proj", torch.ones(32, 8)), "EXPERT.up_proj.weight_scale [32, 4] instead of [32, 8]"),
        (lambda t: t | {f"{EXPERT}.up_proj.weight_scale": torch.ones(32, 4, dtype=torch.int32)}, "scale I32"),
        (plain("up_proj"), f"1 in several formats: {EXPERTS}"),
    ],
)
def test_scales_that_do_not_fit_and_mixed_formats_are_named(
    folder: Path, tmp_path: Path, change: Change, words: str
) -> None:
    quantize_folder(folder, tmp_path / "out", "int4", group=GROUP, max_shard_size=10**9)
    file = tmp_path / "out" / "model.safetensors"
    save_file(change(load_file(file)), file)
    with pytest.raises(CheckpointError, match=re.escape(words.replace("EXPERT.", f"{EXPERT}."))):
        load_model(tmp_path / "out")


def test_a_factor_of_nvfp4_is_one_number(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.0.mlp.up_proj"
    tensors |= nvfp4_tensors(name, quantize_nvfp4(tensors.pop(f"{name}.weight")), "modelopt")
    save_file(tensors | {f"{name}.weight_scale_2": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 misshapen: .*up_proj\.weight_scale_2 \[2\] instead of \[1\]"):
        load_model(folder)


NAN, INF, ZERO = float("nan"), float("inf"), 0.0


@pytest.mark.parametrize(
    ("format", "suffix", "value"),
    [
        ("fp8", "weight_scale", NAN), ("fp8", "weight_scale", -INF), ("int4", "weight_scale", NAN),
        ("modelopt", "weight_scale", NAN), ("modelopt", "weight_scale_2", INF), ("modelopt", "weight_scale_2", ZERO),
        ("compressed-tensors", "weight_scale", NAN), ("compressed-tensors", "weight_global_scale", INF),
        ("compressed-tensors", "weight_global_scale", ZERO),
    ],
)  # fmt: skip
def test_a_damaged_scale_is_named_while_weights_are_read(
    folder: Path, tmp_path: Path, format: str, suffix: str, value: float
) -> None:
    """A model would compute something else with it, or nothing that is a number."""
    if format in ("fp8", "int4"):
        quantize_folder(folder, tmp_path / "out", format, group=GROUPS[format], max_shard_size=10**9)
    else:
        store_experts_in_nvfp4(folder, format)
        folder.rename(tmp_path / "out")
    file, name = tmp_path / "out" / "model.safetensors", f"{EXPERT}.up_proj.{suffix}"
    tensors = load_file(file)
    flat = tensors[name].float().reshape(-1)
    flat[-1] = value
    save_file(tensors | {name: flat.view(tensors[name].shape).to(tensors[name].dtype)}, file)
    words = "has infinite or NaN values, which are no scales" if value else "is 0, which is no scale of a whole matrix"
    with pytest.raises(CheckpointError, match=rf"^{re.escape(name)} in .*out {words}\.$"):
        load_model(tmp_path / "out", "cpu")


def test_a_row_of_zeros_may_have_a_scale_of_zero(folder: Path, tmp_path: Path) -> None:
    quantize_folder(folder, tmp_path / "out", "fp8", max_shard_size=10**9)
    file, name = tmp_path / "out" / "model.safetensors", f"{EXPERT}.up_proj.weight_scale"
    tensors = load_file(file)
    tensors[name][3] = 0
    save_file(tensors, file)
    assert not load_model(tmp_path / "out", "cpu", "float32").state_dict()[EXPERTS][0, 32 + 3].any()


def test_an_expert_that_is_missing_is_not_called_one_in_another_format(folder: Path, tmp_path: Path) -> None:
    quantize_folder(folder, tmp_path / "out", "fp8", max_shard_size=10**9)
    file = tmp_path / "out" / "model.safetensors"
    save_file({name: t for name, t in load_file(file).items() if ".0.experts.3." not in name}, file)
    with pytest.raises(CheckpointError, match=r"3 missing: .*experts\.3\.down_proj\.weight\.$"):
        load_model(tmp_path / "out", "cpu")


def test_weights_saved_in_full_do_not_claim_to_be_quantized(folder: Path, tmp_path: Path) -> None:
    quantize_folder(folder, tmp_path / "fp8", "fp8")
    save_model(load_model(tmp_path / "fp8", "cpu", "bfloat16"), tmp_path / "full")
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("fp8", "full"))
    assert "quantization_config" in before
    assert "quantization_config" not in after
    quantize_folder(tmp_path / "full", tmp_path / "again", "fp8")


def test_an_unknown_quantizer_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(
        CheckpointError, match=r"sets quant_method to 'gptq'; it must be compressed-tensors .* or modelopt \(NVFP4\)\.$"
    ):
        load_model(folder)


@pytest.mark.parametrize("format", ["fp8", "int4"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers_are_named(folder: Path, tmp_path: Path, format: str, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.decoder.layers.0.experts.down_proj"][1, 0, 0] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.experts\.1\.down_proj has infinite or NaN values"):
        quantize_folder(folder, tmp_path / "out", format, group=GROUPS[format])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["norm", "embed_tokens", "layers.0.router.proj"])
def test_weights_that_stay_as_they_are_must_be_numbers_too(folder: Path, tmp_path: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[f"model.decoder.{name}.weight"].view(-1)[3] = NAN if name == "norm" else -INF
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"decoder\.{name}\.weight has infinite or NaN values\.$"):
        quantize_folder(folder, tmp_path / "out", "fp8")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_quantized_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="format is 'int3'; it must be one of fp8, int4"):
        quantize_folder(folder, tmp_path / "out", "int3")
    with pytest.raises(SettingError, match="already exists"):
        quantize_folder(folder, folder, "fp8")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SettingError, match="link already exists"):
        quantize_folder(folder, tmp_path / "link", "fp8")
    with pytest.raises(SettingError, match="max_shard_size is 0; it must be at least 1 byte"):
        quantize_folder(folder, tmp_path / "out", "fp8", max_shard_size=0)
    for group in (7, 0, -4):
        with pytest.raises(SettingError, match=rf"group is {group}; it must divide"):
            quantize_folder(folder, tmp_path / "out", "int4", group=group)
    with pytest.raises(SettingError, match="group is 16, which needs format int4; fp8 has no groups"):
        quantize_folder(folder, tmp_path / "out", "fp8", group=16)
    save_model(Transformer(dataclasses.replace(preset("nano"), moe_intermediate_size=20)), tmp_path / "odd")
    with pytest.raises(SettingError, match="The weight has 20 inputs; int4 needs a multiple of 8"):
        quantize_folder(tmp_path / "odd", tmp_path / "out", "int4", group=4)
    quantize_folder(folder, tmp_path / "out", "fp8")
    with pytest.raises(CheckpointError, match="quantized already"):
        quantize_folder(tmp_path / "out", tmp_path / "again", "fp8")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "odd", "out", "link"}
