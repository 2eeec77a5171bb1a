"""The GPU benchmarks as far as a machine without a GPU goes: floors, files, the board, and what they refuse."""

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from running import constraint
from typer.testing import CliRunner

from redraft.bench import kernels, step
from redraft.bench.board import Board, StepCase
from redraft.bench.clock import ClockWatch
from redraft.bench.gpu import require_gpu
from redraft.bench.operation_times import PARTS, PartTime
from redraft.bench.random_weights import LIKELY_TOKENS, STD, random_model, random_source, sharpened
from redraft.bench.results import write_results
from redraft.bench.roofline import Ceilings, floor_ms, step_components
from redraft.bench.step import StepResult, cases
from redraft.cli import bench_gpu
from redraft.cli.main import app, main
from redraft.config import LayerType
from redraft.engine.work import Denoise, DenoiseResult, Encode, Segment
from redraft.errors import SettingError
from redraft.kernels.packed import PackedInt4
from redraft.kernels.switches import OPERATIONS
from redraft.kernels.triton.routing import Routing
from redraft.model.packed.build import pack
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.packed.weights import tensors
from redraft.model.presets import preset
from redraft.model.weight_settings import WeightSettings

ASSUMED = Ceilings(bandwidth=4.3e12, bf16=790e12, fp8=1500e12)
CPU = torch.device("cpu")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")


@pytest.mark.parametrize(
    ("quantization", "floors"),
    [(None, (12.96, 19.96, 52.15)), ("fp8", (7.14, 12.63, 37.06)), ("int4", (4.65, 11.02, 44.07))],
)
def test_floors_of_the_26b_model(quantization: str | None, floors: tuple[float, ...]) -> None:
    """Worked out by hand from the shape, at 4.3 TB/s, 790 and 1500 TFLOP/s, behind 2,048 tokens."""
    config = preset("26b-a4b")
    for batch, expected in zip((1, 4, 16), floors, strict=True):
        parts = step_components(config, quantization=quantization, batch=batch, context=2048)
        assert floor_ms(parts, ASSUMED) == pytest.approx(expected, abs=0.01)


def test_fewer_experts_are_less_to_read() -> None:
    parts = step_components(preset("26b-a4b"), quantization="fp8", batch=1, context=0, distinct_experts=64)
    assert parts[0].bytes == pytest.approx(22.838e9 / 2, rel=1e-3)


def test_narrow_groups_are_more_scales_to_read() -> None:
    """Two bytes for every 32 weights, instead of for every 64."""
    wide, narrow = (
        step_components(preset("26b-a4b"), quantization="int4", group=group, batch=1, context=0)[0]
        for group in (64, 32)
    )
    assert narrow.bytes - wide.bytes == pytest.approx(22.838e9 * 2 / 64, rel=1e-3)


def test_random_experts_are_rounded_in_groups_of_a_given_size() -> None:
    settings = WeightSettings(device="cpu", quantization="int4")
    wide, narrow = (random_model("tiny", settings, group).packed for group in (None, 32))
    for layer, other in zip(wide.layers, narrow.layers, strict=True):
        experts = [(layer.experts.gate_up, other.experts.gate_up), (layer.experts.down, other.experts.down)]
        for whole, finer in experts:
            assert isinstance(whole, PackedInt4)
            assert isinstance(finer, PackedInt4)
            assert (whole.group, finer.group) == (64, 32)
            assert (whole.dequantize(torch.float32) - finer.dequantize(torch.float32)).abs().max() < 0.02
        assert torch.equal(layer.router, other.router)


def test_a_vocabulary_in_fp8_and_rows_that_gather_have_lower_floors() -> None:
    options = [{}, {"vocabulary_bytes": 1}, {"gathers": True}]
    parts = [step_components(preset("26b-a4b"), quantization="fp8", batch=16, context=0, **one) for one in options]
    floors = [{part.name: part.floor_ms(ASSUMED) for part in one} for one in parts]
    for name in ("head", "soft embeddings"):
        assert floors[1][name] == pytest.approx(floors[0][name] * ASSUMED.bf16 / ASSUMED.fp8)
    assert floors[2]["soft embeddings"] < 0.02
    assert sum(floors[0][name] != one[name] for one in floors for name in one) == 3


@pytest.mark.parametrize("batch", [1, 4])
def test_several_gpus_divide_the_layers_and_the_canvases_to_sample(batch: int) -> None:
    one, two, half = (
        {
            part.name: part
            for part in step_components(preset("26b-a4b"), quantization="fp8", batch=canvases, context=99, gpus=gpus)
        }
        for gpus, canvases in ((1, batch), (2, batch), (1, -(-batch // 2)))
    )
    halved = {name for name in one if two[name].bytes == one[name].bytes / 2 and two[name].flops == one[name].flops / 2}
    assert halved == {"experts", "attention projections", "dense MLP", "attention"}
    assert all(two[name] == half[name] for name in ("head", "soft embeddings"))
    assert all(two[name] == one[name] for name in ("router", "self-conditioning MLP"))


def test_every_operation_of_a_step_belongs_to_one_component() -> None:
    owned = [name for names in PARTS.values() for name in names]
    assert set(owned) == set(OPERATIONS)
    assert len(owned) == len(OPERATIONS)


def test_random_weights_are_the_same_each_time_and_norms_are_one() -> None:
    source = random_source(preset("nano"), torch.device("cpu"), torch.float32)
    weight = source("layers.0.experts.gate_up_proj")
    assert torch.equal(weight, source("layers.0.experts.gate_up_proj"))
    assert not torch.equal(weight, source("layers.1.experts.gate_up_proj"))
    assert float(weight.std()) == pytest.approx(STD, rel=0.05)
    assert source("norm.weight").eq(1).all()


def test_the_board_runs_prompts_longer_than_the_window_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(preset("nano"), sliding_window=256, max_position_embeddings=4096)
    source = random_source(config, torch.device("cpu"), torch.float32)
    model = PackedTransformer(pack(config, source, device=torch.device("cpu"), dtype=torch.float32))
    board = Board(model, StepCase(batch=2, context=1100, steps=2, repeats=1))
    board.prefill()
    assert Board(model, StepCase(batch=17, context=16)).fused_ms() is None
    results = board.runner.run(board.steps_at(1))
    assert [one.slot for one in results] == [0, 1]
    assert not any(one.converged for one in results)
    timed, run = list[Segment](), board.runner.run

    def watched(work: Sequence[Segment], *meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        timed.extend(work)
        return run(work, *meanwhile)

    monkeypatch.setattr(board.runner, "run", watched)
    times = board.engine_times(constraint("[a-z]{3,99}"))
    assert [time > 0 for time in times] == [True]
    canvases = [one for one in timed if isinstance(one, Denoise)]
    assert all(one.constraint is not None and not one.last for one in canvases)
    assert sum(len(one.token_ids) for one in timed if isinstance(one, Encode)) >= 2 * 1100
    assert [one.slot for one in timed[-4:]] == [0, 1, 0, 1]  # the steps that are timed have every canvas
    assert len(canvases) >= 2 * 2 * 3  # of two repetitions, the first of which warms up
    board.prefill()  # its pages are its own again
    assert [one.slot for one in board.runner.run(board.steps_at(1))] == [0, 1]


def test_graphs_are_measured_on_the_boards_own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine has had the board's runner before, also one whose requests obey a constraint."""
    config = replace(preset("nano"), sliding_window=256, max_position_embeddings=4096)
    model = PackedTransformer(pack(config, random_source(config, CPU, torch.float32), device=CPU, dtype=torch.float32))
    case = StepCase(batch=2, context=300, steps=1, repeats=1)
    fresh, measured = Board(model, case), list[dict[LayerType, NDArray[np.int32]]]()
    fresh.prefill()

    def graph_ms(board: Board, work: Sequence[Segment]) -> float:
        measured.append({kind: table.copy() for kind, table in board.runner.shared.pages.tables.items()})
        return 1.0

    monkeypatch.setattr(Board, "graph_ms", graph_ms)
    monkeypatch.setattr(step, "sampler_gb", lambda model, batch: 0.0)
    monkeypatch.setattr(step, "_memory", lambda model: {})
    monkeypatch.setattr(step, "free_cached_memory", lambda: None)
    monkeypatch.setattr(
        step, "operation_times", lambda board: ({}, [Routing(torch.zeros(1), *[torch.zeros(0)] * 4, 1, 1)])
    )
    monkeypatch.setattr(step, "ClockWatch", lambda device: nullcontext(SimpleNamespace(medians={})))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    result = step.measure_step(model, case, ASSUMED, {"letters": constraint("[a-z]{3,99}")})
    assert (result.graph_ms, result.fused_ms) == ((1.0,), 1.0)
    assert [len(times) for times in (result.engine_ms, result.constrained_ms["letters"])] == [1, 1]
    for tables in measured:
        for kind, table in fresh.runner.shared.pages.tables.items():
            assert np.array_equal(tables[kind], table)


@pytest.mark.parametrize("fp8", [False, True])
def test_sharp_distributions_are_those_of_a_few_tokens_and_only_for_a_while(fp8: bool) -> None:
    source, given = random_source(preset("nano"), CPU, torch.float32), {"device": CPU, "dtype": torch.float32}
    model = PackedTransformer(pack(preset("nano"), source, fp8_vocabulary=fp8, **given))
    vocabulary, tokens = model.packed.vocabulary, torch.arange(model.config.vocab_size)
    before, rows = [tensor.clone() for tensor in tensors(vocabulary)], vocabulary.rows(tokens, torch.float32)

    def entropy() -> float:
        board = Board(model, StepCase(batch=1, context=0))
        (result,) = board.runner.run(board.steps_at(0))
        return sum(result.entropy) / len(result.entropy)

    flat = entropy()
    with sharpened(model):
        assert entropy() < 0.9 * flat
        longer = vocabulary.rows(tokens, torch.float32)
        assert ((longer / rows).nan_to_num(1).amax(1) > 19).sum() == LIKELY_TOKENS
        if vocabulary.transposed is not None:
            transposed = vocabulary.transposed.dequantize(torch.float32).T
            assert (transposed - longer).norm() < 0.04 * longer.norm()
    for tensor, kept in zip(tensors(vocabulary), before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), kept.view(torch.uint8))


@pytest.mark.parametrize("quantization", [None, "fp8", "int4"])
def test_kernels_are_measured_layer_by_layer(quantization: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU a kernel is its own twin: errors are there and equal, choices have none; times are a stand-in."""
    monkeypatch.setattr(kernels, "_microseconds", lambda run: float(run() is not None))
    config = replace(preset("nano"), moe_intermediate_size=64)
    options = {"quantization": quantization, "batch": 2, "context": 40}
    found = kernels.measure_kernels(config, torch.device("cpu"), **options)
    layers = {one.name: [other.layer for other in found if other.name == one.name] for one in found}
    assert layers["experts"] == layers["qkv_linear"] == ["sliding", "full"]
    assert layers["predict"] == layers["enter_tokens"] == [""]
    divided = {"sum_of_experts", "add_attention", "feed_forward_norms", "add_experts", "next_norm"}
    constrained = {"class_sums", "automaton_terms", "best_tokens", "add_by_class"}
    assert set(layers) >= set(OPERATIONS) - {"quantize"} - divided - constrained
    compared = {one.name for one in found if one.error is not None}
    assert compared >= {"experts", "attention", "predict", "soft_embeddings", "after_experts"}
    assert all(one.ratio == 1 for one in found if one.error)
    assert {one.name for one in found if one.error} >= {"soft_norm", "soft_gated_linear", "soft_linear"}  # not of zeros
    assert all(one.to_dict()["us"] == 1 for one in found)
    some = kernels.measure_kernels(config, torch.device("cpu"), **options, only=["route", "attention"])
    assert [one.name for one in some] == ["attention", "route"] * 2
    with pytest.raises(SettingError, match="'router' is not a GPU operation"):
        kernels.measure_kernels(config, torch.device("cpu"), **options, only=["router"])


def test_an_error_where_the_twin_has_none_is_too_large() -> None:
    both = {"name": "rope", "layer": "", "microseconds": 1.0, "eager_error": 0.0}
    assert kernels.OperationResult(**both, error=1e-3).ratio > 2
    assert kernels.OperationResult(**both, error=0.0).ratio == 0


def test_results_are_dated_numbered_and_drawn(tmp_path: Path) -> None:
    record = {
        "device": "NVIDIA H200", "batch": 1, "context": 1024, "quantization": "fp8", "ms_per_forward": 8.5,
        "floor_ms": 7.1,
        "components": [{"name": "experts", "ms": 6.0, "floor_ms": 5.3}, {"name": "norms", "ms": 0.5, "floor_ms": None}],
    }  # fmt: skip
    first, second = write_results("step", [record], tmp_path), write_results("step", [record, record], tmp_path)
    assert first[0].name == f"step_nvidia-h200-fp8_{date.today()}.json"
    assert second[0].name == f"step_nvidia-h200-fp8_{date.today()}-2.json"
    assert json.loads(first[0].read_text())["results"] == [record]
    assert [file.suffix for file in first] == [".json", ".png"]


@no_gpu
@pytest.mark.parametrize("command", [["step", "--random-weights"], ["kernels"], ["energy"], ["roofline", "--measured"]])
def test_without_a_gpu_one_sentence_and_exit_code_2(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *command]) == 2
    assert "this machine has none" in capfd.readouterr().err


def test_roofline_prints_json_last_and_writes_where_it_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "roofline", "--batch", "1,4", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    last = json.loads(done.stdout.splitlines()[-1])
    assert [round(one["floor_ms"], 1) for one in last["results"]] == [12.9, 19.7]
    assert re.findall(r"bf16, (.*) after", done.stdout) == ["1 canvas", "4 canvases"]
    assert all(Path(file).exists() for file in last["files"])


def test_batches_must_be_numbers() -> None:
    done = CliRunner().invoke(app, ["bench", "roofline", "--batch", "1,x"])
    assert isinstance(done.exception, SettingError)


@pytest.mark.parametrize(("fused", "rate"), [(12.0, 2000.0), (None, None)])
def test_a_step_is_told_in_words_and_json(
    fused: float | None, rate: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (PartTime(name="experts", ms=6.0, floor_ms=5.0, operations={"experts": 6.0}),)
    memory = {"weights": 26.1, "peak": 27.0, "process": 28.0, "sampler": 0.5}
    clock = {"clock_mhz": 1560.0, "power_watts": 698.4, "power_limit_watts": 700.0} if fused else {}
    result = StepResult(
        case=StepCase(batch=1, context=1024, steps=12), quantization="fp8", group=None, dtype="bfloat16",
        vocabulary_dtype="fp8",
        engine_ms=(10.5, 10.0, 11.0), graph_ms=(10.0,), fused_ms=fused, parts=parts, floor_ms=7.0, clock=clock,
        distinct_experts=128.0, memory=memory, canvas_length=255, gpus=1,
        constrained_ms={"regex": (11.0, 12.0, 11.5)} if fused else {},
    )  # fmt: skip
    found = json.loads(json.dumps(result.to_dict()))
    assert (found["ms_per_forward"], found["percent_of_floor"]) == (10.5, 66.7)
    assert found["tokens_per_second_fused_commit"] == rate
    assert found["memory"]["sampler"] == 0.5
    assert found["vocabulary_dtype"] == "fp8"
    bench_gpu._print("26b-a4b", result)
    shown = capsys.readouterr().out
    assert "10.50 ms per forward" in shown
    assert ("commit fused" in shown) == (fused is not None)
    assert found["constrained_ms"] == ({"regex": {"min": 11.0, "median": 11.5, "max": 12.0}} if fused else {})
    assert ("11.50 ms (11.00 to 12.00)" in shown) == (fused is not None)
    assert ("1560 MHz at 698 of 700 W" in shown) == (found.get("clock_mhz") == 1560)


NVIDIA_SMI = """#!/bin/sh
case "$*" in *--id=GPU-7f*--query-gpu=clocks.sm,power.draw,*) ;; *) exit 1;; esac
echo "1500, 690.5, 700.00"; echo "1400, 710.5, 700.00"; echo "[N/A], 1, 1"; echo "1600, 700.5, 700.00"
: > "$0.told"
exec sleep 60
"""


def test_the_clock_is_watched_by_the_drivers_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="7f"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with ClockWatch(torch.device("cuda:0")) as watch:
        while not (tmp_path / "nvidia-smi.told").exists():
            time.sleep(0.01)
    assert watch.medians == {"clock_mhz": 1500.0, "power_watts": 700.5, "power_limit_watts": 700.0}
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with ClockWatch(torch.device("cuda:0")) as watch:
        pass
    assert watch.medians == {}


def test_more_canvases_than_a_graph_holds_are_refused() -> None:
    assert [case.batch for case in cases([1, 32], [16], steps=1, repeats=1)] == [1, 32]
    with pytest.raises(SettingError, match=r"^batch is 33; a graph holds at most 32 canvases\.$"):
        cases([4, 33], [16], steps=1, repeats=1)


@no_gpu
def test_a_device_that_is_no_gpu_is_refused() -> None:
    with pytest.raises(SettingError, match="this machine has none"):
        require_gpu()
    with pytest.raises(SettingError, match="device is 'cpu'"):
        require_gpu("cpu")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--certain"], r"^--certain changes a random model's weights; give --random-weights too\.$"),
        (["--group", "32"], r"^--group is of random weights in int4; give --random-weights --quantization int4 too\.$"),
        (["--group", "32", "--random-weights", "--quantization", "fp8"], "^--group is of random weights in int4"),
        (["--group", "16", "--random-weights", "--quantization", "int4"], r"^group is 16; it must be 32 or 64\.$"),
    ],
)
def test_options_of_random_weights_are_refused_without_them(
    given: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redraft.bench.gpu.require_gpu", lambda device: CPU)
    done = CliRunner().invoke(app, ["bench", "step", *given])
    assert isinstance(done.exception, SettingError)
    assert re.search(words, str(done.exception))
