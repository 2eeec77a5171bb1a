"""`inspect`: counts of the large model as published, and of whatever folder is given."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from outcome import Cli
from safetensors import safe_open

from gguf_file import write_gguf
from pack_quantized import Scheme, store
from redraft.model.presets import PRESETS
from redraft.model.weights import load_model, save_model


def test_the_large_model_without_weights(cli: Cli) -> None:
    shown = cli("inspect", "26b-a4b", "--json").json
    parts = {part["name"]: part for part in shown["parameters"]["parts"]}
    assert shown["parameters"]["text"] == 25_250_986_812
    assert shown["parameters"]["stored"] == 25_823_781_228
    assert shown["parameters"]["active_per_token"] == 3_840_375_582
    assert parts["experts"]["total"] == 22_837_985_280
    assert shown["bytes"]["bf16"] == 51_647_562_456
    assert shown["bytes"]["fp32"] == 103_295_124_912
    # Published checkpoints: FP8 27.20 GB (its scales are bf16, ours fp32), NVFP4 18.82 GB.
    assert shown["bytes"]["fp8"] == pytest.approx(27.20e9, rel=2e-3)
    assert shown["bytes"]["nvfp4"] == pytest.approx(18.82e9, rel=1e-3)
    assert shown["text_bytes"]["int4"] < 16.5e9
    assert sum(part["bytes"]["int4"] for part in parts.values()) == shown["bytes"]["int4"]
    assert shown["kv_bytes_per_token"]["full_attention"]["bytes"] == 20_480
    assert shown["kv_bytes_per_token"]["sliding_attention"]["bytes"] == 25 * 8_192


def test_people_see_the_same_numbers(cli: Cli) -> None:
    shown = cli("inspect", "26b-a4b").out
    for number in ("25,250,986,812", "25,823,781,228", "3,840,375,582", "51.6 GB", "20,480 B per token"):
        assert number in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_folder_counts_what_it_stores(cli: Cli, folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    shown = cli("inspect", folder, "--json").json
    assert shown["parameters"]["stored"] == shown["parameters"]["text"] == stored


def test_a_gguf_file_says_what_it_holds(cli: Cli, folder: Path, tmp_path: Path) -> None:
    write_gguf(folder, tmp_path / "model.gguf", type=lambda name: "Q8_0" if name == "token_embd.weight" else "BF16")
    shown = cli("inspect", tmp_path / "model.gguf", "--json").json
    assert shown["files"]["quantized"] == "GGUF"
    assert shown["files"]["bytes"]["Q8_0"] == 16384 * 64 // 32 * 34
    assert shown["parameters"] == cli("inspect", folder, "--json").json["parameters"]
    assert "quantized (GGUF), " in cli("inspect", tmp_path / "model.gguf").out
    write_gguf(folder, tmp_path / "plain.gguf", type=lambda _: "BF16")
    assert cli("inspect", tmp_path / "plain.gguf", "--json").json["files"]["quantized"] is None


def test_a_folder_says_in_which_format_it_is_stored(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cli("quantize", folder, tmp_path / "fp8", "--format", "fp8")
    plain, fp8 = (cli("inspect", path, "--json").json["files"] for path in (folder, tmp_path / "fp8"))
    assert plain["quantized"] is None
    assert fp8["quantized"] == "float-quantized"
    assert plain["count"] == fp8["count"] == 1
    assert "F8_E4M3" in fp8["bytes"]
    assert "F8_E4M3" not in plain["bytes"]
    for path, files in ((folder, plain), (tmp_path / "fp8", fp8)):
        assert 0 <= (path / "model.safetensors").stat().st_size - sum(files["bytes"].values()) < 100_000  # its header
    assert "quantized (float-quantized), " in cli("inspect", tmp_path / "fp8").out
    store(folder, tmp_path / "q", Scheme(group=16))
    four_bits = cli("inspect", tmp_path / "q", "--json").json["files"]
    assert four_bits["quantized"] == "pack-quantized"
    assert {"I32", "BF16"} <= four_bits["bytes"].keys()
    assert cli("inspect", "26b-a4b", "--json").json["files"] is None


def test_a_folder_of_which_a_part_is_here_is_described_without_it(cli: Cli, folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path, max_shard_size=200_000)
    shutil.copy(folder / "config.json", tmp_path)
    whole = cli("inspect", tmp_path, "--json").json
    assert whole["files"]["count"] > 1
    next(tmp_path.glob("*.safetensors")).unlink()
    assert cli("inspect", tmp_path, "--json").json == whole | {"files": None}


@pytest.mark.parametrize(
    ("names", "stored"),
    [
        (["model.decoder.norm.weight"], 25_250_986_812),
        (["model.decoder.norm.weight", "model.encoder.vision_tower.x"], 25_823_781_228),
        (None, 25_823_781_228),
    ],
)
def test_a_hub_model_is_described_by_its_json_files(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None, stored: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["26b-a4b"].to_dict()))
    if names is not None:
        index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    def snapshot(hub_id: str, allow_patterns: list[str]) -> str:
        assert (hub_id, allow_patterns) == ("some/model", ["*.json", "*.jinja"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert cli("inspect", "some/model", "--json").json["parameters"]["stored"] == stored


def test_an_index_beside_a_single_file_is_ignored_as_in_loading(cli: Cli, folder: Path, copied: Path) -> None:
    """It is left from other weights, here from some with a vision tower that the config describes."""
    vision = PRESETS["26b-a4b"].to_dict()["vision_config"]
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"vision_config": vision}))
    names = ["model.decoder.norm.weight", "model.encoder.vision_tower.x"]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    assert cli("inspect", copied, "--json").json["parameters"] == cli("inspect", folder, "--json").json["parameters"]


def test_an_index_without_names_is_one_sentence(cli: Cli, copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text("{}")
    outcome = cli("inspect", copied)
    assert (outcome.code, outcome.err) == (2, f"error: {copied / 'model.safetensors.index.json'} has no weight_map.\n")


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_a_damaged_file_of_weights_is_one_sentence(cli: Cli, copied: Path, content: bytes) -> None:
    (copied / "model.safetensors").write_bytes(content)
    outcome = cli("inspect", copied)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {copied / 'model.safetensors'} is damaged or truncated")


@pytest.mark.parametrize(
    ("vision", "words"),
    [
        ("x", "sets vision_config to 'x'"),
        ({"hidden_size": 5, "head_dim": None}, "needs whole numbers above 0 for intermediate_size"),
    ],
)
def test_a_vision_tower_that_makes_no_sense_is_one_sentence(cli: Cli, copied: Path, vision: object, words: str) -> None:
    (copied / "model.safetensors").unlink()  # without weights the config's word is taken
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"vision_config": vision}))
    outcome = cli("inspect", copied)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
