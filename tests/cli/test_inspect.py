"""`inspect`: counts of the large model as published, and of whatever folder is given."""

from pathlib import Path

from outcome import Cli
from safetensors import safe_open


def test_the_large_model_without_weights(cli: Cli) -> None:
    shown = cli("inspect", "26b-a4b", "--json").json
    parts = {part["name"]: part for part in shown["parameters"]["parts"]}
    assert shown["parameters"]["text"] == 25_250_986_812
    assert shown["parameters"]["stored"] == 25_823_781_228
    assert shown["parameters"]["active_per_token"] == 3_840_375_582
    assert parts["experts"]["total"] == 22_837_985_280
    assert shown["bytes"] == {"bf16": 51_647_562_456, "fp32": 103_295_124_912}
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
