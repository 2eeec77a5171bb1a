"""Folders that are wrong in one way each: one sentence that names the fault, and nothing half-done."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentences import one_sentence
from torch import Tensor

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.errors import CheckpointError, SettingError
from redraft.model import shards
from redraft.model.files import fingerprint, read_header
from redraft.model.folders import read_config, resolve_folder
from redraft.model.initialise import initialise
from redraft.model.presets import preset
from redraft.model.transformer import Transformer
from redraft.model.weights import load_model, save_model

DECODER = "model.decoder.layers."
ENCODER = "model.encoder.language_model."


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = Transformer(preset("nano"))
    initialise(model, 0)
    for layer, part in enumerate(model.layers):
        part.encode_scalar.fill_(0.5 + layer)
        part.denoise_scalar.fill_(0.25 + layer)
    return model


@pytest.fixture
def folder(model: Transformer, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(model: Transformer, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "sharded", max_shard_size=100_000)
    return tmp_path / "sharded"


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    text = changes.pop("text_config", {})
    config |= changes
    config["text_config"] |= text
    path.write_text(json.dumps(config))


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    """A change of a config: the rotary positions of one kind of layers."""
    return {"text_config": {"rope_parameters": {kind: settings}}}


def load(folder: Path | str) -> Transformer:
    return load_model(folder, "cpu", "float32")


def assert_equal(first: Transformer, second: Transformer) -> None:
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


# --- there and back ----------------------------------------------------------------------------------------------


def test_single_file_round_trip(model: Transformer, folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert_equal(load(folder), model)
    assert load(folder).config == model.config


def test_sharded_round_trip(model: Transformer, sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    assert len(shards) > 3
    assert all(path.stat().st_size < 110_000 for path in shards)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert set(index["weight_map"].values()) == {path.name for path in shards}
    assert_equal(load(sharded), model)


def test_a_tensor_larger_than_a_shard_has_its_own(model: Transformer, tmp_path: Path) -> None:
    save_model(model, tmp_path, max_shard_size=1)
    assert len(list(tmp_path.glob("*.safetensors"))) == len(model.state_dict())
    assert_equal(load(tmp_path), model)


def test_saving_replaces_the_former_weights_and_keeps_other_files(model: Transformer, sharded: Path) -> None:
    others = ["model_ema.safetensors", "model-best.safetensors", "tokenizer.json"]
    for name in others:
        (sharded / name).write_text("{}")
    save_model(model, sharded)
    assert {path.name for path in sharded.iterdir()} == {"config.json", "model.safetensors", *others}
    assert_equal(load(sharded), model)
    save_model(model, sharded, max_shard_size=100_000)
    assert not (sharded / "model.safetensors").exists()
    assert {path.name for path in sharded.iterdir()} >= set(others)


def test_saving_replaces_weights_by_the_names_in_their_index(model: Transformer, sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    (sharded / "model-00001.safetensors").write_bytes(b"left by an older version")
    (sharded / "model-00002-of-00003.safetensors").write_bytes(b"left behind by a longer one")
    (sharded / "part-a.safetensors").write_bytes(b"")
    (sharded.parent / "elsewhere.safetensors").write_bytes(b"")
    index.write_text(json.dumps({"weight_map": {"a": "part-a.safetensors", "b": "../elsewhere.safetensors"}}))
    save_model(model, sharded)
    assert sorted(path.name for path in sharded.iterdir()) == ["config.json", "model.safetensors"]
    assert (sharded.parent / "elsewhere.safetensors").exists()
    for content in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(content)
        save_model(model, sharded)
        assert not index.exists()


def test_a_failed_save_leaves_the_folder_as_it_was(
    model: Transformer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    written = []

    def full_disk(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(save_file(tensors, path, metadata=metadata))

    monkeypatch.setattr(shards, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_model(model, folder, max_shard_size=100_000)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_fingerprint_is_that_of_the_weights_wherever_they_lie(model: Transformer, folder: Path) -> None:
    first = fingerprint(folder)
    assert fingerprint(folder.rename(folder.with_name("moved"))) == first
    for name in ("model.decoder.norm.weight", f"{DECODER}1.experts.down_proj"):
        save_model(model, folder)
        change_tensors(folder, lambda tensors, name=name: tensors[name].view(-1)[0].add_(1))
        assert fingerprint(folder) != first


def test_saved_files_are_as_readable_as_others(folder: Path) -> None:
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32])
def test_every_stored_dtype_loads_in_every_running_dtype(
    model: Transformer, folder: Path, stored: torch.dtype, wanted: torch.dtype
) -> None:
    change_tensors(folder, lambda t: t.update({name: tensor.to(stored) for name, tensor in t.items()}))
    loaded = load_model(folder, "cpu", wanted)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(stored).to(wanted)), name


def test_without_encoder_scalars_the_decoders_serve_both_phases(model: Transformer, folder: Path) -> None:
    change_tensors(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith(ENCODER)])
    for layer, part in enumerate(load(folder).layers):
        assert part.encode_scalar.item() == part.denoise_scalar.item() == 0.25 + layer


def test_copies_of_tied_tensors_are_accepted(model: Transformer, folder: Path) -> None:
    def add_copies(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
        tensors[ENCODER + "embed_tokens.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
        tensors[ENCODER + "norm.weight"] = tensors["model.decoder.norm.weight"].clone()
        tensors[ENCODER + "layers.1.router.scale"] = tensors[DECODER + "1.router.scale"].clone()

    change_tensors(folder, add_copies)
    assert_equal(load(folder), model)


@pytest.mark.parametrize("former", ["folder", "sharded"])
def test_an_interrupted_save_does_not_leave_former_weights(
    former: str, model: Transformer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = request.getfixturevalue(former)
    move, moved = os.replace, []

    def interrupted(source: Path, target: Path) -> None:
        moved.append(target)
        if len(moved) == 2:
            raise KeyboardInterrupt
        move(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model(model, place, max_shard_size=100_000)
    with pytest.raises(CheckpointError, match="has no weights"):
        load(place)


@pytest.mark.parametrize("name", ["lm_head.weight", ENCODER + "norm.weight"])
@pytest.mark.parametrize("change", [lambda t: t + 1, lambda t: t[1:].clone(), lambda t: t.view(torch.int32) * 1])
def test_another_copy_of_a_tied_tensor_is_refused(folder: Path, name: str, change: Callable[[Tensor], Tensor]) -> None:
    partner = "model.decoder." + ("embed_tokens.weight" if name.startswith("lm_head") else "norm.weight")
    change_tensors(folder, lambda tensors: tensors.update({name: change(tensors[partner])}))
    with pytest.raises(CheckpointError, match=f"{name} in .* differs from the tensor it is tied to, {partner}"):
        load(folder)


# --- tensors that do not fit -------------------------------------------------------------------------------------


def test_everything_that_is_off_is_named_in_one_error(folder: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors[DECODER + "0.mlp.up_proj.weight"], tensors[DECODER + "2.layer_scalar"]
        tensors |= {name: torch.zeros(1) for name in ("model.decoder.banana", ENCODER + "banana")}
        tensors["model.decoder.norm.weight"] = torch.zeros(63)
        tensors[DECODER + "1.router.scale"] = torch.zeros(64, dtype=torch.int8)

    change_tensors(folder, spoil)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    text = one_sentence(caught.value)
    assert f"2 missing: {DECODER}0.mlp.up_proj.weight, {DECODER}2.layer_scalar" in text
    assert f"2 unexpected: model.decoder.banana, {ENCODER}banana" in text
    assert "1 misshapen: model.decoder.norm.weight [63] instead of [64]" in text
    assert f"1 of an unsupported dtype: {DECODER}1.router.scale I8" in text


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_a_norm_in_a_format_of_matrices_is_named(folder: Path, dtype: torch.dtype) -> None:
    norm = "model.decoder.norm.weight"
    change_tensors(folder, lambda tensors: tensors.update({norm: tensors[norm].to(dtype)}))
    with pytest.raises(CheckpointError, match=rf"1 of an unsupported dtype: {norm}") as caught:
        load(folder)
    one_sentence(caught.value)


def test_long_lists_are_cut(folder: Path) -> None:
    change_tensors(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith(DECODER + "0.")])
    with pytest.raises(CheckpointError, match=r"22 missing: .* and 12 more") as caught:
        load(folder)
    assert str(caught.value).count(DECODER) == 10


def test_a_config_of_another_size_names_the_misshapen_tensors(folder: Path) -> None:
    change_config(folder, text_config={"vocab_size": 300})
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight \[256, 64\] instead of \[300, 64\]"):
        load(folder)


# --- broken files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_a_truncated_shard(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="damaged or truncated") as caught:
        load(folder)
    one_sentence(caught.value)


def test_a_shard_that_may_not_be_read_is_not_called_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: Permission denied\.$"):
        read_header(folder / "model.safetensors")


def test_a_truncated_shard_among_several(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=f"{path.name} is damaged or truncated"):
        load(sharded)


def test_a_shard_that_the_index_names_is_missing(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[2]
    path.unlink()
    with pytest.raises(CheckpointError, match=f"lacks {path.name}, named in model.safetensors.index.json"):
        load(sharded)


def test_an_index_may_not_point_outside_its_folder(sharded: Path, folder: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../model/model.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"lacks \.\./model/model.safetensors"):
        load(sharded)


@pytest.mark.parametrize("weight_map", ["{}", "3", '{"x": []}'])
def test_a_weight_map_that_makes_no_sense(sharded: Path, weight_map: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}')
    with pytest.raises(CheckpointError, match=r"index\.json"):
        load(sharded)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_an_index_that_makes_no_sense(sharded: Path, content: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        load(sharded)


def test_a_tensor_in_two_shards_is_named(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    name = next(iter(load_file(first)))
    save_file(load_file(second) | {name: torch.zeros(1)}, second)
    with pytest.raises(CheckpointError, match=f"{name} is in both {first} and {second}"):
        load(sharded)


def test_a_broken_link_is_called_that(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("gone")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a broken link"):
        load(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        load(folder)


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe{}", b'"text"', b"[" * 100_000])
def test_a_config_that_is_no_json_object(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma4"}, "'gemma4'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "sets quant_method to 'gptq'"),
        ({"quantization_config": "fp8"}, "sets quantization_config to 'fp8'; it must be an object"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"text_config": {"hidden_size": "wide"}}, "hidden_size to 'wide'"),
        ({"text_config": {"num_experts": 4.0}}, "num_experts to 4.0"),
        ({"text_config": {"top_k_experts": True}}, "top_k_experts to True; it must be a whole number from 1 to"),
        ({"text_config": {"vocab_size": 10**20}}, "vocab_size to 100000000000000000000; it must be a whole number"),
        ({"text_config": {"num_hidden_layers": 2}}, "num_hidden_layers is 2, and layer_types names 3 layers"),
        ({"text_config": {"layer_types": [SLIDING, FULL, SLIDING]}}, "names a last layer of kind 'sliding_attention'"),
        ({"text_config": {"num_key_value_heads": 0}}, "config.json"),
        ({"text_config": {"hidden_size": None}}, "hidden_size"),
        ({"text_config": {"sliding_window": None}}, "text_config lacks sliding_window"),
        ({"text_config": {"max_position_embeddings": None}}, "text_config lacks max_position_embeddings"),
        ({"text_config": {"bos_token_id": "x"}}, "bos_token_id to 'x'; it must be a token id below"),
        ({"text_config": {"pad_token_id": -5}}, "pad_token_id to -5; it must be a token id below"),
        ({"text_config": {"initializer_range": "x"}}, "initializer_range to 'x'; it must be a number above 0"),
        ({"quantization_config": {"transform_config": {"a": 1}}}, "sets transform_config to {'a': 1}"),
        ({"text_config": {"per_layer_config": {"0": {"head_dim": 8}}}}, "per_layer_config may only set head_dim"),
        ({"text_config": {"per_layer_config": {"2": {"sliding_window": 8}}}}, "per_layer_config may only set head_dim"),
        ({"text_config": {"per_layer_config": {"77": {"head_dim": 8}}}}, "per_layer_config may only set head_dim"),
        ({"text_config": {"per_layer_config": {"2": 3}}}, "config.json"),
        ({"text_config": {"top_k_experts": 9}}, "top_k_experts"),
        ({"text_config": {"rope_parameters": 3}}, "config.json"),
        ({"text_config": {"rope_parameters": {"rope_type": "default"}}}, "rope_parameters has 'rope_type'"),
        ({"text_config": {"attention_bias": True}}, "attention_bias is not supported"),
        ({"text_config": {"hidden_activation": "silu"}}, "hidden_activation 'silu' is not supported"),
        ({"text_config": {"use_bidirectional_attention": "all"}}, "use_bidirectional_attention 'all' is not supported"),
        ({"text_config": {"rope_scaling": {"type": "yarn", "factor": 4.0}}}, "rope_scaling is not supported"),
        (rope(SLIDING, rope_type="yarn"), "rope_type 'yarn' of 'sliding_attention' layers is not supported"),
        (rope(FULL, rope_type="default"), "rope_type 'default' of 'full_attention' layers is not supported"),
        (rope(FULL, rope_type="proportional", factor=8.0), "with factor 8.0 are not supported"),
        (rope(SLIDING, partial_rotary_factor=0.5), "partial_rotary_factor of 'sliding_attention' layers"),
        (rope(FULL, partial_rotary_factor=1.5), "partial_rotary_factor to 1.5; it must be between 0 and 1"),
        (rope(FULL, rope_theta=0), "global_rope_theta to 0.0; it must be a number above 0"),
        ({"text_config": {"final_logit_softcapping": None}}, "final_logit_softcapping null is not supported"),
    ],
)
def test_a_config_of_something_else(folder: Path, changes: dict[str, Any], words: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=re.escape(words)) as caught:
        load(folder)
    one_sentence(caught.value)
    assert str(folder / "config.json") in str(caught.value)


def test_full_layers_with_heads_of_several_sizes_are_refused() -> None:
    raw = preset("nano").to_dict()
    raw["text_config"] |= {"layer_types": [SLIDING, FULL, FULL], "per_layer_config": {"1": {"head_dim": 64}}}
    with pytest.raises(CheckpointError, match="the same for all 'full_attention' layers"):
        ModelConfig.from_dict(raw)
    raw["text_config"]["per_layer_config"] = {"0": {}, "1": {"head_dim": 64}, "2": {"head_dim": 64}}
    assert ModelConfig.from_dict(raw).global_head_dim == 64


def test_null_is_as_good_as_nothing(folder: Path) -> None:
    change_config(folder, canvas_length=None, eos_token_id=None, text_config={"eos_token_id": [3, 5]})
    config = read_config(folder)
    assert (config.canvas_length, config.eos_token_id) == (256, (3, 5))


def test_rotary_positions_are_read_as_transformers_reads_them(folder: Path) -> None:
    """Its default for layers that are described is the whole head; for those that are not, the model's own."""
    change_config(folder, **rope(FULL, rope_type="proportional", rope_theta=5000.0))
    config = load(folder).config
    assert (config.partial_rotary_factor, config.global_rope_theta, config.rope_theta) == (1.0, 5000.0, 10_000.0)
    change_config(folder, **rope(SLIDING, rope_type="default"))
    assert load(folder).config.rope_theta == 10_000.0
    change_config(folder, text_config={"rope_parameters": None})
    assert load(folder).config.partial_rotary_factor == 0.25


# --- what cannot be resolved -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "no folder", "word " * 2000, "./nowhere", "/nowhere/at/all", "a/b/c", "TINY"])
def test_neither_a_folder_nor_a_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(repr(name))):
        resolve_folder(name)


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file"):
        load(folder / "config.json")


def test_a_hub_id_asks_the_hub_for_model_files_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot(hub_id: str, **options: Any) -> str:
        asked.update(options, hub_id=hub_id)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_folder("some/model") == folder
    assert asked["hub_id"] == "some/model"
    assert set(asked["allow_patterns"]) == {"*.json", "*.jinja", "*.safetensors", "*.txt", "*.model"}
    assert resolve_folder("some/model", weights=False) == folder
    assert asked["allow_patterns"] == ["*.json", "*.jinja"]


# --- impossible settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float8", "fp16", "float16", "", torch.float16, torch.int8])
def test_a_dtype_that_the_model_does_not_run_in(folder: Path, dtype: str | torch.dtype) -> None:
    with pytest.raises(SettingError, match="it must be one of auto, bfloat16, float32"):
        load_model(folder, "cpu", dtype)


@pytest.mark.parametrize("device", ["gpu", "", "mps", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_here(folder: Path, device: str) -> None:
    with pytest.raises(SettingError, match="device is"):
        load_model(folder, device)


def test_wrong_settings_fail_before_a_download() -> None:
    with pytest.raises(SettingError):
        load_model("nobody/no-such-model", "cpu", "float8")


def test_saving_over_a_file_or_in_nothing(model: Transformer, folder: Path) -> None:
    with pytest.raises(SettingError, match="is a file"):
        save_model(model, folder / "config.json")
    with pytest.raises(SettingError, match="max_shard_size"):
        save_model(model, folder, max_shard_size=0)
