"""Several processes train as one that takes their batches one after the other; started by torchrun, over gloo."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import changed

from redraft.errors import SettingError, TrainingError
from redraft.model.weights import load_model
from redraft.train import read_recipe
from redraft.train.batch import Batch
from redraft.train.checkpoint import load_checkpoint, save_checkpoint
from redraft.train.distributed import World
from redraft.train.limits import RunLimits
from redraft.train.packing import Packer
from redraft.train.progress import read_log
from redraft.train.trainer import Trainer, TrainingResult, train

RECIPE = """
[model]
vocab_size = 48
hidden_size = 32
intermediate_size = 24
moe_intermediate_size = 16
num_experts = 4
top_k_experts = 2
num_attention_heads = 4
num_key_value_heads = 2
num_global_key_value_heads = 1
head_dim = 8
global_head_dim = 16
layer_types = ["sliding_attention", "full_attention"]
sliding_window = 6
max_position_embeddings = 512
canvas_length = 16
[data]
rows = 2
tokens = 32
canvases = 2
accumulate = {accumulate}
[[data.sources]]
name = "reverse"
kind = "reverse"
share = 1.0
[[data.sources]]
name = "short"
kind = "reverse"
share = 3.0
prompt_weight = 0.1
fill_weight = 0.0
[optimizer]
steps = 16
learning_rate = 3e-3
warmup = 2
[run]
out = "{out}"
seed = 5
log_every = {log_every}
evaluate_every = 8
evaluate_batches = 2
"""


def write_recipe(folder: Path, out: str, accumulate: int, steps: int = 16, log_every: int = 4) -> Path:
    path = folder / f"{out}.toml"
    text = RECIPE.format(accumulate=accumulate, out=(folder / out).as_posix(), log_every=log_every)
    path.write_text(text.replace("steps = 16", f"steps = {steps}"))
    return path


def launch(recipe: Path, *options: str) -> None:
    done = torchrun("-m", "redraft.train", str(recipe), "--device", "cpu", *options)
    assert done.returncode == 0, done.stderr[-2000:]


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


LIMITED = """
import resource, runpy, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
runpy.run_module("redraft.train", run_name="__main__", alter_sys=True)
"""


def launch_in_vain(folder: Path, recipe: Path, *, room: int = 1_000_000) -> list[str]:
    """What each of two processes, whose files may have `room` bytes, says at the end of a run that fails."""
    (folder / "limited.py").write_text(LIMITED.format(room=room))
    logs = ("--redirects", "3", "--log-dir", str(folder / "logs"))
    done = torchrun(*logs, str(folder / "limited.py"), str(recipe), "--device", "cpu")
    said = [file.read_text() for file in sorted((folder / "logs").rglob("stderr.log"))]
    assert done.returncode == 1, done.stderr[-2000:]
    assert not any("Traceback" in text for text in said), said
    return [text.splitlines()[-1] for text in said]


def column(folder: Path, name: str) -> list[float]:
    return [float(row[name]) for row in read_log(folder / "log.csv") if row[name]]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder)["weights"]["masters"]


def test_two_processes_equal_one_and_resume_as_one(tmp_path: Path) -> None:
    """Also where they learn from different numbers of tokens in a step."""
    one, two = (write_recipe(tmp_path, out, n, log_every=1) for out, n in (("one", 2), ("two", 1)))
    packer = Packer(read_recipe(one))
    for name in ("canvas_weight", "encoder_weight"):
        sums = [float(packer.batch(index)[name].sum()) for index in range(16)]
        assert any(a > 1.2 * b for a, b in zip(sums[::2], sums[1::2], strict=True)), sums
    train(read_recipe(one), device="cpu", quiet=True)
    launch(two, "--max-seconds", "0.001")
    stopped = load_checkpoint(tmp_path / "two")
    assert (stopped["step"], stopped["batches"]) == (1, 2)
    # One process takes both batches of the next step, and two take the rest.
    resumed = changed(read_recipe(write_recipe(tmp_path, "two", 2, log_every=1)), max_seconds=0.001)
    assert train(resumed, device="cpu", quiet=True, resume=True).step == 2
    launch(write_recipe(tmp_path, "two", 1, log_every=1), "--resume")
    for name in ("loss", "decoder", "encoder", "norm", "loss_replaced", "heldout_decoder"):
        assert column(tmp_path / "two", name) == pytest.approx(column(tmp_path / "one", name), rel=1e-4), name
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "two")[name], rtol=1e-3, atol=2e-5)


def test_half_an_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert World.from_environment() == World()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SettingError, match="RANK, WORLD_SIZE, LOCAL_RANK must all be set"):
        World.from_environment()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert World.from_environment() == World(rank=1, size=2, local_rank=1)


@pytest.mark.parametrize(("rank", "size", "local_rank"), [(2, 2, 0), (-1, 2, 0), (0, 0, 0), (0, 2, -1)])
def test_a_process_that_cannot_be_is_named(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, local_rank: int
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", local_rank)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SettingError, match=f"RANK is {rank} of WORLD_SIZE {size}, LOCAL_RANK {local_rank}"):
        World.from_environment()


def test_processes_that_do_not_know_where_to_meet_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(SettingError, match=r"cannot meet: .*MASTER_ADDR"),
        World.from_environment().joined(torch.device("cpu")),
    ):
        pass


def test_every_process_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert World().device("auto") == World().device("cpu") == torch.device("cpu")
    with pytest.raises(SettingError, match="device is 'cuda', but no CUDA device"):
        World().device("cuda")
    with pytest.raises(SettingError, match="device is 'mps'; it must be one of auto, cpu, cuda"):
        World().device("mps")
    advice = r"it must be one of auto, cpu, cuda\. Set CUDA_VISIBLE_DEVICES=1 to train on that GPU\."
    with pytest.raises(SettingError, match=advice):
        World().device("cuda:1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert World(local_rank=1).device("auto") == torch.device("cuda", 1)
    assert World(local_rank=1).device("cpu") == torch.device("cpu")
    with pytest.raises(SettingError, match="Process 2 of this host has no GPU; there are 2"):
        World(local_rank=2).device("cuda")


@pytest.mark.parametrize(("compiling", "steps"), [(0.0, 40), (1.5, 25)])
def test_steps_are_fitted_to_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiling: float, steps: int
) -> None:
    """A tenth of a second a step leaves room for 40 steps in four seconds, at the end of which the rate has fallen.

    What the first step takes longer is lost, and tells nothing of the others.
    """
    recipe = write_recipe(tmp_path, "fit", 1, steps=100_000)
    recipe.write_text(recipe.read_text() + "fit_seconds = 4.0\n")
    trainer = Trainer(read_recipe(recipe), device="cpu", quiet=True)

    def clock() -> float:
        return 0.1 * trainer.step + compiling * (trainer.step > 0)

    used: list[float] = []
    train_step = trainer.train_step

    def watched(*batches: Batch) -> torch.Tensor:
        loss = train_step(*batches)
        used.append(trainer.masters.optimizer.param_groups[0]["lr"])
        return loss

    monkeypatch.setattr(trainer, "train_step", watched)
    monkeypatch.setattr("redraft.train.limits.time.perf_counter", clock)
    trainer.limits = RunLimits(trainer.run_settings, trainer.world)
    result = trainer.run()
    assert result.finished
    assert steps - 2 <= result.step <= steps + 1
    rates = column(tmp_path / "fit", "learning_rate")
    assert rates[-1] == pytest.approx(3e-4, rel=0.1)
    assert rates == [used[int(step) - 1] for step in column(tmp_path / "fit", "step")]
    again = train(read_recipe(recipe), device="cpu", quiet=True, resume=True)
    assert (again.step, again.losses) == (result.step, [])


def test_steps_are_fitted_to_the_time_that_checkpoints_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A tenth of a second a step and a checkpoint of half a second every 10 leave room for 40 steps in six seconds."""
    recipe = write_recipe(tmp_path, "fit", 1, steps=100_000)
    recipe.write_text(recipe.read_text() + "fit_seconds = 6.0\ncheckpoint_every = 10\n")
    trainer = Trainer(read_recipe(recipe), device="cpu", quiet=True)
    saved, save = [], trainer.save

    def slow_save() -> None:
        save()
        saved.append(trainer.step)

    monkeypatch.setattr(trainer, "save", slow_save)
    monkeypatch.setattr("redraft.train.limits.time.perf_counter", lambda: 0.1 * trainer.step + 0.5 * len(saved))
    trainer.limits = RunLimits(trainer.run_settings, trainer.world)
    result = trainer.run()
    assert 38 <= result.step <= 41
    assert result.tokens_per_second == pytest.approx(2 * 32 / 0.1)
    assert column(tmp_path / "fit", "tokens_per_second") == pytest.approx([2 * 32 / 0.1] * 10, rel=0.01)


def test_a_curve_is_not_measured_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    recipe = read_recipe(write_recipe(tmp_path, "curve", 1))
    Trainer(recipe, device="cpu", quiet=True)
    data = dataclasses.replace(recipe.data, tokenizer="tiny")
    run = dataclasses.replace(recipe.run, curve_every=4)
    with pytest.raises(SettingError, match=r"run\.curve_every cannot be combined with several processes"):
        Trainer(dataclasses.replace(recipe, data=data, run=run), device="cpu", quiet=True)


def test_a_resumed_run_has_what_is_left_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second a step, and four seconds: 20 steps before it is stopped, 20 behind."""
    recipe = write_recipe(tmp_path, "fit", 1, steps=100_000)
    recipe.write_text(recipe.read_text() + "fit_seconds = 4.0\n")

    def run_from(step: int, **limit: float) -> TrainingResult:
        settings = read_recipe(recipe)
        settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, **limit))
        trainer = Trainer(settings, device="cpu", quiet=True)

        def clock() -> float:
            return 0.1 * max(0, trainer.step - step)

        monkeypatch.setattr("redraft.train.limits.time.perf_counter", clock)
        trainer.limits = RunLimits(trainer.run_settings, trainer.world)
        return trainer.run(resume=step > 0)

    stopped = run_from(0, max_seconds=1.95)
    assert (stopped.step, stopped.finished) == (20, False)
    result = run_from(20)
    assert result.finished
    assert 38 <= result.step <= 41
    rates = column(tmp_path / "fit", "learning_rate")
    assert rates == sorted(rates, reverse=True)
    older = load_checkpoint(tmp_path / "fit")
    assert older.pop("seconds") == pytest.approx(0.1 * result.step)
    save_checkpoint(tmp_path / "fit", older)
    assert run_from(result.step).step >= result.step


def sharded(folder: Path, out: str, accumulate: int, log_every: int = 4) -> Path:
    path = write_recipe(folder, out, accumulate, log_every=log_every)
    path.write_text(path.read_text() + "shard = true\nrecompute = true\n")
    return path


def test_sharded_processes_equal_one_and_resume_in_another_number(tmp_path: Path) -> None:
    one = write_recipe(tmp_path, "one", 2, log_every=1)
    whole = train(read_recipe(one), device="cpu", quiet=True)
    launch(sharded(tmp_path, "two", 1, log_every=1), "--max-seconds", "0.001")
    assert sorted(p.name for p in (tmp_path / "two").iterdir() if "checkpoint" in p.name) == ["checkpoint.sharded"]
    # One process takes both batches of the next step, from the sharded checkpoint of two, and two take the rest.
    alone = changed(read_recipe(sharded(tmp_path, "two", 2, log_every=1)), max_seconds=0.001)
    result = train(alone, device="cpu", quiet=True, resume=True)
    assert (result.step, result.finished) == (2, False)
    launch(sharded(tmp_path, "two", 1, log_every=1), "--resume")
    for name in ("loss", "decoder", "norm", "heldout_decoder"):
        assert column(tmp_path / "two", name) == pytest.approx(column(tmp_path / "one", name), rel=1e-4), name
    ours, theirs = (load_model(r.model_folder, "cpu", "float32") for r in (result, whole))
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_sharded_processes_may_differ_in_conditioned_rows_and_heldout_batches(tmp_path: Path) -> None:
    """One row each, which one process conditions on a first pass and the other does not; one held-out batch for two."""
    one = write_recipe(tmp_path, "one", 2)
    two = sharded(tmp_path, "two", 1)
    for path in (one, two):
        text = path.read_text().replace("rows = 2", "rows = 1")
        path.write_text(text.replace("evaluate_batches = 2", "evaluate_batches = 1"))
    stream = Trainer(read_recipe(one), device="cpu", quiet=True)
    stream.build()
    conditioned = [stream.stream.conditioned_rows(1, 5, index) for index in range(32)]
    assert any(conditioned[i] != conditioned[i + 1] for i in range(0, 32, 2))
    train(read_recipe(one), device="cpu", quiet=True)
    launch(two)
    for name in ("loss", "norm", "heldout_decoder"):
        assert column(tmp_path / "two", name) == pytest.approx(column(tmp_path / "one", name), rel=1e-4), name


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of file sizes")
def test_a_checkpoint_that_cannot_be_written_ends_every_process_with_a_sentence(tmp_path: Path) -> None:
    said = launch_in_vain(tmp_path, write_recipe(tmp_path, "run", 1, steps=2), room=50_000)
    begun = f"error: The checkpoint {str(tmp_path / 'run' / 'checkpoint.pt')!r} could not be written: "
    assert said == [f"{begun}File too large.", f"{begun}another process failed."]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of file sizes")
@pytest.mark.parametrize(
    ("what", "folder", "file", "steps"),
    [("The model", "run/model", "run/model/config.json", 2), ("The log of", "run", "run/log.csv", None)],
)
def test_what_cannot_be_written_ends_every_process_with_a_sentence(
    tmp_path: Path, what: str, folder: str, file: str, steps: int | None
) -> None:
    """A folder is in the place of a file; the log is opened before the first of two steps."""
    (tmp_path / file).mkdir(parents=True)
    said = launch_in_vain(tmp_path, write_recipe(tmp_path, "run", 1, steps=2))
    begun = f"error: {what} {str(tmp_path / folder)!r} could not be written: "
    assert said == [f"{begun}Is a directory.", f"{begun}another process failed."]
    saved = tmp_path / "run" / "checkpoint.pt"
    assert (load_checkpoint(saved.parent)["step"] if saved.exists() else None) == steps


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of file sizes")
@pytest.mark.parametrize("failing", ["folder", "parts"])
def test_a_sharded_checkpoint_that_cannot_be_written_ends_every_process_with_a_sentence(
    tmp_path: Path, failing: str
) -> None:
    """The main process alone makes the folder, in whose place a file is; the parts are too large for both."""
    recipe = sharded(tmp_path, "run", 1)
    partial = tmp_path / "run" / "checkpoint.sharded.partial"
    if failing == "folder":
        partial.parent.mkdir()
        partial.touch()
    said = launch_in_vain(tmp_path, recipe, room=1_000_000 if failing == "folder" else 50_000)
    begun = f"error: The checkpoint {str(partial.with_suffix(''))!r} could not be written: "
    reasons = ["File exists", "another process failed"] if failing == "folder" else ["File too large"] * 2
    assert said == [f"{begun}{reason}." for reason in reasons]
    assert failing == "folder" or not partial.exists()


AGREEING = """
import json, sys, torch
from pathlib import Path
from types import SimpleNamespace
from redraft.errors import TrainingError
from redraft.train import limits as module
from redraft.train.distributed import World
from redraft.train.history import StepLosses
from redraft.train.limits import RunLimits
from redraft.train.recipe import RunSettings
world = World.from_environment()
module.time = SimpleNamespace(perf_counter=lambda: 0.0)  # they may wait for each other for any time
limits = RunLimits(RunSettings(out=sys.argv[1], max_seconds=60.0, fit_seconds=1000.0), world)
limits._started -= 100 * world.rank  # the second process began earlier
losses = StepLosses(3, world)
with world.joined(torch.device("cpu")):
    said = {"late": limits.reached()}
    said["fitted"] = limits.fitted_steps(5, 10_000, pace=1.0 + world.rank)
    said["largest"] = world.largest(1.0 - world.rank)
    said["sum"] = world.sum_(torch.tensor([1.0, 2.0 + world.rank])).tolist()
    said["any"] = [world.any(world.rank == 1), world.any(False)]
    losses.add(torch.tensor(1.0 + world.rank))
    losses.settle()
    losses.add(torch.tensor(float("nan") if world.rank else 1.0))
    try:
        losses.settle()
    except TrainingError as error:
        said["error"] = str(error)
said["losses"] = losses.values
Path(sys.argv[1], f"{world.rank}.json").write_text(json.dumps(said))
"""


def test_processes_come_to_the_same_decisions(tmp_path: Path) -> None:
    """One is late, slower and has the loss that is not a number."""
    (tmp_path / "agreeing.py").write_text(AGREEING)
    done = torchrun(str(tmp_path / "agreeing.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first == {
        "late": True, "fitted": 5 + 450, "largest": 1.0, "sum": [2.0, 5.0],
        "any": [True, False], "losses": [1.5],
        "error": "The loss of step 4 (counted from 0) is nan; the last checkpoint was kept.",
    }  # fmt: skip


def test_no_process_saves_weights_that_are_not_finite_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """They would wait for it; a sharded checkpoint would miss its part."""
    trainer = Trainer(read_recipe(write_recipe(tmp_path, "run", 1)), device="cpu", quiet=True)
    trainer.build()
    assert trainer.masters.finite()
    monkeypatch.setattr(World, "any", lambda world, flag: True)
    with pytest.raises(TrainingError, match=r"Step -1 .* left weights that are not finite; they were not saved"):
        trainer.save()
