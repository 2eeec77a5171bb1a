"""`eval`, `bench cpu` and `train`: what they print, and that the floor counts every product."""

import errno
import os
import subprocess
import sys
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from outcome import Cli
from torch.utils.flop_counter import FlopCounterMode

import redraft
from redraft import kernels
from redraft.bench import calls
from redraft.bench import cpu as bench_cpu
from redraft.bench.cpu import CpuResult, Engine
from redraft.bench.floor import gemm_flops_per_second, run_flops
from redraft.kernels import native
from redraft.train.trainer import TrainingResult

SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
FIGURES = {"solved", "total", "mean_steps", "tokens_per_forward"}


@pytest.fixture
def puzzles(tmp_path: Path) -> Path:
    file = tmp_path / "puzzles.csv"
    file.write_text(f"puzzle,solution\n{'0' * 40 + SOLUTION[40:]},{SOLUTION}\n{'0' * 50 + SOLUTION[50:]},{SOLUTION}\n")
    return file


def test_sudoku(cli: Cli, folder: Path, puzzles: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    outcome = cli("eval", "sudoku", puzzles, "--model", folder, "--steps", 1, "--max-tokens", 16, "--records", records)
    assert outcome.code == 0
    assert outcome.json.keys() >= FIGURES
    assert (outcome.json["solved"], outcome.json["total"], outcome.json["mean_steps"]) == (0, 2, 1.0)
    assert "0 of 2" in outcome.out
    assert len(records.read_text().splitlines()) == 2


def test_the_other_tasks_use_their_own_sets(cli: Cli, folder: Path) -> None:
    for name, tokens in (("infill", 1), ("tools", 16), ("results", 16), ("smalltalk", 16), ("extraction", 32)):
        outcome = cli("eval", name, "--limit", 1, "--model", folder, "--steps", 1, "--max-tokens", tokens)
        assert outcome.json.keys() >= FIGURES
        assert outcome.json["total"] == 1


@pytest.mark.parametrize(
    "options",
    [("sudoku", "--batch-size"), ("curve", "--batch-size"), ("decide", "--reads"), ("formats", "--group")],
)
def test_numbers_of_nothing_are_refused_before_a_model_is_loaded(cli: Cli, options: tuple[str, str]) -> None:
    name, option = options
    outcome = cli("eval", name, option, 0, "--model", "no-such-folder")
    assert (outcome.code, outcome.err) == (2, f"error: {option} is 0; it must be at least 1.\n")


def test_all_methods_of_infilling_are_a_table(cli: Cli, folder: Path) -> None:
    given = ("--middle", "--except-every", 2, "--limit", 1, "--steps", 1, "--max-tokens", 2, "--model", folder)
    outcome = cli("eval", "infill", "--method", "all", *given)
    assert outcome.code == 0, outcome.err
    assert [line.split()[0] for line in outcome.out.splitlines()[:3]] == ["found", "given", "left"]
    assert outcome.json["methods"]["left"]["total"] == 1
    assert len(outcome.json["pairs"]) == 3
    assert "--except-every is 1; it must be at least 2" in cli("eval", "infill", "--except-every", 1).err
    assert "found, given, left, all" in cli("eval", "infill", "--method", "both").err


def test_bad_sets_are_refused_before_loading(cli: Cli, tmp_path: Path, puzzles: Path) -> None:
    puzzles.write_text("puzzle,solution\n123,456\n")
    assert cli("eval", "sudoku", puzzles, "--model", "/none").err.startswith(f"error: {puzzles}, line 2:")
    assert "does not exist" in cli("eval", "tools", tmp_path / "none").err
    assert "cannot be written" in cli("eval", "tools", "--records", "/no/such/folder/x", "--model", "/none").err
    assert "--limit is 0" in cli("eval", "infill", "--limit", 0).err


def test_records_that_cannot_be_replaced_are_refused_before_loading(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (records, os.W_OK))
    outcome = cli("eval", "tools", "--records", records, "--model", "/none")
    assert (outcome.code, outcome.err) == (2, f"error: {records} cannot be written: it is read-only.\n")


def test_records_that_can_no_longer_be_written_do_not_take_the_figures_along(
    cli: Cli, folder: Path, puzzles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    records = tmp_path / "records.jsonl"
    records.write_text("old")
    outcome = cli("eval", "sudoku", puzzles, "--model", folder, "--steps", 1, "--max-tokens", 16, "--records", records)
    assert (outcome.code, outcome.json["total"]) == (1, 2)
    assert outcome.err.endswith(f"error: {records}: No space left on device.\n")
    assert records.read_text() == "old"


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"name": "a"}', b"\xff", b"[" * 100_000])
def test_bad_schemas_are_refused_before_loading(cli: Cli, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "schemas.jsonl"
    if content is not None:
        file.write_bytes(content)
    outcome = cli("bench", "constraints", file, "--model", "/none")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {file}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["nan", "-1", "0"])
def test_no_time_is_refused_before_loading(cli: Cli, seconds: str) -> None:
    outcome = cli("bench", "constraints", "--model", "/none", "--seconds", seconds)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"error: --seconds is {float(seconds)}; it must be at least 1.\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--limit", 3), "--limit needs a FILE of schemas."),
        (("--written", 3), "--written needs a FILE of schemas."),
        (("--tokenizer", "x.json"), "--tokenizer needs a FILE of schemas."),
        (("x.jsonl", "--tokenizer", "x.json", "--written", 3), "--written needs a model, and --tokenizer stands in for "
         "one; give one of them."),
    ],
)  # fmt: skip
def test_options_about_schemas_need_them(cli: Cli, given: tuple[object, ...], said: str) -> None:
    outcome = cli("bench", "constraints", "--model", "/none", *given)
    assert (outcome.code, outcome.err) == (2, f"error: {said}\n")


@pytest.mark.parametrize("command", ["constraints", "roofline"])
def test_results_that_cannot_be_written_are_refused_before_measuring(
    cli: Cli, folder: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("")
    outcome = cli("bench", command, "--model", folder, "--results", tmp_path / "file")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"error: The folder {tmp_path / 'file'} of results cannot be made: File exists.\n"


def test_results_that_can_no_longer_be_written_are_printed(cli: Cli, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("redraft.bench.results.write_results", full)
    outcome = cli("bench", "roofline", "--batch", 1, "--results", tmp_path)
    assert (outcome.code, outcome.err) == (1, "error: No space left on device.\n")
    assert outcome.json["bench"] == "roofline"


@pytest.mark.parametrize(("threads", "words"), [(0, "at least 1"), (99_999_999, "processors")])
def test_threads_that_no_machine_has_are_refused_before_loading(cli: Cli, threads: int, words: str) -> None:
    outcome = cli("bench", "cpu", "--threads", threads, "--model", "/none")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: --threads is {threads}; ")
    assert words in outcome.err


def test_bench_measures_both_on_the_same_weights(cli: Cli, folder: Path) -> None:
    outcome = cli("bench", "cpu", "--model", folder, "--steps", 2, "--repetitions", 1)
    assert outcome.code == 0
    assert outcome.err == ""
    ours, theirs = outcome.json["results"]
    assert (ours["engine"], theirs["engine"]) == ("redraft", "transformers")
    for record in (ours, theirs):
        assert record["tokens_per_second"]["median"] == pytest.approx(16e3 / record["ms_per_forward"] / 2, rel=1e-2)
    assert outcome.json["ratio"]["median"] == pytest.approx(
        ours["tokens_per_second"]["median"] / theirs["tokens_per_second"]["median"], rel=1e-2
    )
    assert outcome.json["floor_tokens_per_second"] > ours["tokens_per_second"]["max"]
    assert ours["dtype"] == theirs["dtype"]
    assert outcome.json["c_kernels"] is native.available()
    other = cli("bench", "cpu", "--model", folder, "--steps", 1, "--repetitions", 1, "--dtype", "float32").json
    assert [record["dtype"] for record in other["results"]] == ["float32"] * 2


def test_a_stall_is_not_the_rate_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is late before the first one, and again while it runs."""
    times = chain([0.0, 5.0, 25.0], count(26.0, 0.5))
    monkeypatch.setattr("redraft.bench.floor.time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert gemm_flops_per_second() == 2 * 1024**3 / 0.5


def test_speeds_of_both_follow_from_their_seconds() -> None:
    result = CpuResult(
        redraft=Engine(name="redraft", seconds=(0.5, 0.4, 1.0)),
        transformers=Engine(name="transformers", seconds=(1.0, 1.6, 2.5)),
        prompt_tokens=200, canvas_length=128, steps=16, dtype="float32", quantization=None, floor_seconds=0.16,
        gemm_flops_per_second=2e11,
    )  # fmt: skip
    found = result.to_dict()
    assert found["results"][0]["tokens_per_second"] == {"min": 128.0, "median": 256.0, "max": 320.0}
    assert [record["ms_per_forward"] for record in found["results"]] == [31.25, 100.0]
    assert found["ratio"] == {"min": 2.0, "median": 2.5, "max": 4.0}
    assert (found["floor_tokens_per_second"], found["gemm_gflops"]) == (800.0, 200.0)
    assert (found["results"][0]["floor_ms"], found["results"][0]["context"]) == (10.0, 200)


def test_engines_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, runs = 0.0, []

    def run(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds + 9 * (name not in runs)
        runs.append(name)

    monkeypatch.setattr(bench_cpu, "time", SimpleNamespace(perf_counter=lambda: now))
    both = {"a": lambda: run("a", 2.0), "b": lambda: run("b", 3.0)}
    assert bench_cpu._take_turns(both, 2, None) == {"a": [2.0, 2.0], "b": [3.0, 3.0]}
    assert runs == ["a", "b"] * 3


def test_bench_without_transformers_says_so(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    outcome = cli("bench", "cpu", "--model", folder)
    assert outcome.code == 2
    assert "transformers (5.23 or newer), which is not installed" in outcome.err
    alone = cli("bench", "cpu", "--model", folder, "--steps", 1, "--repetitions", 1, "--alone")
    assert alone.code == 0
    assert alone.json["ratio"] is None


def test_bench_of_experts_in_int4_is_redrafts_alone(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert cli("quantize", folder, tmp_path / "int4", "--format", "int4", "--group", 32).code == 0
    arguments = ("bench", "cpu", "--model", tmp_path / "int4", "--steps", 1, "--repetitions", 1)
    assert "The experts stay in INT4" in cli(*arguments).err
    (record,) = cli(*arguments, "--alone").json["results"]
    assert record["quantization"] == "int4"


def test_the_floor_counts_every_product(folder: Path) -> None:
    model = redraft.load_model(folder, device="cpu", dtype="float32")
    prompt, length = 40, model.config.canvas_length
    cache = model.new_cache(1, prompt)
    with torch.inference_mode(), kernels.force("cpu"):
        model.encode(torch.arange(prompt)[None], cache)
        with FlopCounterMode(display=False) as counter:
            soft = None
            for _ in range(2):
                logits = model.logits(model.denoise(torch.arange(length)[None], cache, soft))
                soft = model.soft_embeddings(logits)
    two_steps = run_flops(model.config, prompt=prompt, steps=3) - run_flops(model.config, prompt=prompt, steps=1)
    assert two_steps == pytest.approx(counter.get_total_flops(), rel=0.02)
    with torch.inference_mode(), kernels.force("cpu"), FlopCounterMode(display=False) as encoding:
        model.encode(torch.arange(prompt)[None], model.new_cache(1, prompt))
    longer = run_flops(model.config, prompt=2 * prompt, steps=1) - run_flops(model.config, prompt=prompt, steps=1)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counted = encoding.get_total_flops() - encoding.get_flop_counts()["Global"].get(attention, 0)  # PyTorch 2.15's
    assert longer == pytest.approx(counted, rel=0.05)


def test_train_hands_its_options_to_the_trainer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("redraft.cli.train.run", lambda recipe, **options: calls.append((recipe, options)))
    outcome = cli("train", "a.toml", "--resume", "--out", "there", "--max-seconds", 5, "--device", "cpu", "--json")
    assert outcome.code == 0
    options = {"resume": True, "out": "there", "max_seconds": 5.0, "device": "cpu", "as_json": True}
    assert calls == [(Path("a.toml"), options)]


@pytest.mark.parametrize(("finished", "code"), [(False, 130), (True, 0)])
def test_ctrl_c_is_code_130_unless_training_was_over(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, finished: bool, code: int
) -> None:
    there = Path("there")
    result = TrainingResult(step=3, finished=finished, interrupted=True, losses=[1.0], folder=there, model_folder=there,
                            tokens_per_second=1.0)  # fmt: skip
    monkeypatch.setattr("redraft.train.train", lambda *_, **__: result)
    outcome = cli("train", Path(__file__).parents[2] / "recipes" / "nano.toml")
    assert (outcome.code, outcome.out) == (code, "Step 3; the model is in there.\n")


def test_no_memory_is_a_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object, **__: object) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 256000000000 bytes. Error code 12 (Cannot allocate memory)\n"
        )

    monkeypatch.setattr("redraft.train.train", train)
    outcome = cli("train", Path(__file__).parents[2] / "recipes" / "nano.toml")
    assert (outcome.code, outcome.err) == (1, "error: There is no memory for another 256.0 GB at once.\n")


def test_a_recipe_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("train", tmp_path / "none.toml")
    assert outcome.code == 2
    assert outcome.err.startswith("error: There is no recipe")


def test_training_as_a_module_is_the_command(tmp_path):
    """As torchrun starts it: a folder that cannot be made is one sentence here too."""
    (tmp_path / "file").write_text("")
    recipe = Path(__file__).parents[2] / "recipes" / "nano.toml"
    command = [sys.executable, "-m", "redraft.train", str(recipe), "--out", str(tmp_path / "file" / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    folder = str(tmp_path / "file" / "run")
    assert done.stderr == f"error: run.out: the folder {folder!r} cannot be made: Not a directory.\n"


def test_bench_of_calls(cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CONTEXT", 60)
    monkeypatch.setattr(calls, "QUESTION", 20)
    outcome = cli("bench", "calls", "--model", folder, "--repeats", 2, "--results", tmp_path, "--device", "cpu")
    assert outcome.code == 0
    found = {one["call"]: one for one in outcome.json["calls"]}
    assert {"fill, length found", "decide", "the same with log-probabilities"} <= found.keys()
    for name, one in found.items():
        assert 0 < one["ms_spread"]["min"] <= one["ms"] <= one["ms_spread"]["max"]
        assert name in outcome.out
    assert outcome.json["versions"]["torch"] == torch.__version__
    assert [str(file) for file in tmp_path.glob("calls_*.json")] == outcome.json["files"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--random-weights",), "Random weights have no tokenizer; give --tokenizer too."),
        (("--tokenizer", "x"), "--tokenizer needs --random-weights; a model has its own tokenizer."),
        (("--repeats", 0), "--repeats is 0"),
    ],
)
def test_bench_of_calls_refuses(cli: Cli, arguments: tuple[object, ...], sentence: str) -> None:
    outcome = cli("bench", "calls", "--model", "/none", *arguments)
    assert outcome.code == 2
    assert sentence in outcome.err
