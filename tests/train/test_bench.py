"""`redraft bench train`, the arithmetic behind its percentages, and the profile of a recipe's step."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from redraft.bench.machine import versions
from redraft.cli.main import main
from redraft.errors import SettingError
from redraft.model import Transformer
from redraft.model.presets import preset
from redraft.train import profile
from redraft.train.batch import Batch
from redraft.train.bench import BenchSettings, measure
from redraft.train.flops import active_parameters, share_of_peak, step_flops
from redraft.train.recipe import LoraSettings, ObjectiveSettings, Recipe

NANO = Path(__file__).parents[2] / "recipes" / "nano.toml"


def test_active_parameters_are_those_that_a_token_meets() -> None:
    config = preset("nano")
    with torch.device("meta"):
        model = Transformer(config)
    matrices = {name: p for name, p in model.layers.named_parameters() if p.ndim >= 2}
    experts = sum(p.numel() for name, p in matrices.items() if ".experts." in name)
    others = sum(p.numel() for name, p in matrices.items() if ".experts." not in name)
    assert active_parameters(config) == others + experts * config.top_k_experts // config.num_experts
    assert 3.0e9 < active_parameters(preset("26b-a4b")) < 4.0e9


def test_a_steps_arithmetic_counts_both_streams(recipe: Recipe) -> None:
    objective = ObjectiveSettings(self_conditioning=0.0, encoder_weight=0.0)
    sources = tuple(dataclasses.replace(source, prompt_weight=1.0) for source in recipe.data.sources)
    data, config = dataclasses.replace(recipe.data, sources=sources), recipe.model
    plain = dataclasses.replace(recipe, objective=objective, data=data)
    clean, canvas = data.rows * data.tokens, data.rows * data.canvases * config.canvas_length
    head = 6 * canvas * config.vocab_size * config.hidden_size
    assert step_flops(plain) == 6 * active_parameters(config) * (clean + canvas) + head
    run = dataclasses.replace(recipe.run, init="somewhere")
    assert step_flops(dataclasses.replace(plain, lora=LoraSettings(rank=1), run=run)) == step_flops(plain) * 4 / 6
    twice = dataclasses.replace(plain, data=dataclasses.replace(data, accumulate=2))
    assert step_flops(twice) == 2 * step_flops(plain)
    conditioned = dataclasses.replace(plain, objective=dataclasses.replace(objective, self_conditioning=1.0))
    first = 2 * active_parameters(config) * canvas
    assert step_flops(conditioned) == step_flops(plain) + first + head  # logits, their means, the embedding's gradient


def test_the_share_of_the_peak_is_of_one_process(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert share_of_peak(recipe, 2.0, device) is None
    monkeypatch.setattr("redraft.train.flops.peak", lambda device: step_flops(recipe))
    assert share_of_peak(recipe, 2.0, device) == 0.5


@pytest.mark.parametrize("choice", [("--rank", "4"), ("--rank", "4", "--quantization", "fp8"), ("--rank", "0")])
def test_the_command_measures_steps(choice: tuple[str, ...], capsys) -> None:
    arguments = ["--shape", "nano", *choice, "--tokens", "32", "--canvases", "1", "--steps", "1"]
    assert main(["bench", "train", *arguments, "--device", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["all_tokens_per_second"] > record["clean_tokens_per_second"] > 0
    assert record["share_of_peak"] is None
    assert record["versions"] == versions()
    assert len(record["losses"]) == 1
    assert record["losses"][0] > 3


def test_the_version_of_triton_is_that_of_the_module_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.bench.machine.triton", SimpleNamespace(__version__="3.8.0+git1"))
    assert versions()["triton"] == "3.8.0+git1"
    monkeypatch.setattr("redraft.bench.machine.triton", None)  # not installed
    assert "triton" not in versions()


def test_the_shape_may_be_a_folders(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text(json.dumps(preset("nano").to_dict()))
    arguments = ["--rank", "0", "--tokens", "32", "--canvases", "1", "--steps", "1", "--device", "cpu", "--json"]
    assert main(["bench", "train", "--shape", str(tmp_path), *arguments]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shape"] == str(tmp_path)
    assert main(["bench", "train", "--shape", "huge", *arguments]) == 2


def test_a_shape_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("redraft.bench.random_weights.machine_memory", lambda: 64 * 10**9)
    assert main(["bench", "train", "--device", "cpu"]) == 2
    assert "the weights of 26b-a4b take 101 GB and this machine has 64; name a smaller" in capsys.readouterr().err


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(SettingError, match="rows is 0"):
        BenchSettings(rows=0)
    with pytest.raises(SettingError, match="rank is -1"):
        BenchSettings(rank=-1)
    with pytest.raises(SettingError, match="quantization is only for LoRA"):
        BenchSettings(rank=0, quantization="int4")
    with pytest.raises(SettingError, match=r"lora\.quantization is 'int3'"):
        measure(preset("nano"), BenchSettings(quantization="int3"), device="cpu")


def test_the_profile_times_the_parts_of_a_recipes_step(capsys: pytest.CaptureFixture[str]) -> None:
    profile.main([str(NANO), "--rows", "1", "--steps", "1", "--data"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rows"] == 1
    assert result["loss"] > 0
    assert list(result["parts_ms"]) == [
        "refresh", "encode", "first pass", "second pass", "losses", "backward", "meters", "optimizer"
    ]  # fmt: skip


def test_the_profile_times_all_batches_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, real = list[int](), profile.Trainer.train_step

    def train_step(trainer: profile.Trainer, *group: Batch) -> torch.Tensor:
        steps.append(len(group))
        return real(trainer, *group)

    monkeypatch.setattr(profile.Trainer, "train_step", train_step)
    recipe = tmp_path / "accumulating.toml"
    recipe.write_text(NANO.read_text().replace("[data]\n", "[data]\naccumulate = 3\n"))
    for data in ([], ["--data"]):
        profile.main([str(recipe), "--rows", "1", "--steps", "2", *data])
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        seconds = result["milliseconds_per_step"] / 1e3
        assert result["accumulate"] == 3
        assert result["clean_tokens_per_second"] == pytest.approx(3 * 96 / seconds, rel=0.01)
    assert steps == [3] * 2 * 12


def test_the_profile_sums_a_part_over_a_steps_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10))
    monkeypatch.setattr(profile.time, "perf_counter", lambda: float(next(times)))
    timer = profile.PartTimer(torch.device("cpu"))
    for name in ("start", "losses", "losses", "optimizer", "start", "losses", "losses", "optimizer"):
        timer.mark(name)
    assert timer.parts() == {"losses": 2000.0, "optimizer": 1000.0}


def test_a_recipe_that_compiles_without_capture_can_be_profiled_without_compiling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "compiled.toml"
    recipe.write_text(NANO.read_text().replace("[run]\n", "[run]\ncompile = true\ncapture = false\n"))
    profile.main([str(recipe), "--rows", "1", "--steps", "1", "--no-compile"])
    assert "parts_ms" in capsys.readouterr().out


@pytest.mark.parametrize("settings", ["shard = true", "curve_every = 5"])
def test_a_recipe_that_shards_or_measures_curves_can_be_profiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str
) -> None:
    """Sharding needs a group of processes, if of one, and curves need a tokenizer."""
    recipe = tmp_path / "more.toml"
    text = NANO.read_text().replace("[data]\n", '[data]\ntokenizer = "tiny"\n')
    recipe.write_text(text.replace("[run]\n", f"[run]\n{settings}\n"))
    profile.main([str(recipe), "--rows", "1", "--steps", "1"])
    assert "parts_ms" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    (["no such recipe"], "There is no recipe at 'no such recipe'."),
    ([str(NANO), "--rows", "0"], "data.rows is 0; it must be at least 1."),
    ([str(NANO), "--steps", "0"], "--steps is 0; it must be at least 1."),
])  # fmt: skip
def test_the_profile_refuses_in_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        profile.main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")
