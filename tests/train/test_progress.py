"""What a run tells: its log, its picture, its lines in the terminal, TensorBoard."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from runs import changed, run

from redraft.errors import SettingError
from redraft.train.distributed import World
from redraft.train.progress import CsvLog, Reporter, RunLog, draw_losses, read_log
from redraft.train.recipe import Recipe
from redraft.train.trainer import Trainer, train


@pytest.mark.parametrize("buckets", [{}, {"loss_t0.0": 0.5, "loss_t0.9": 3.0}])
def test_the_picture_tells_sources_from_noise_levels(tmp_path: Path, buckets: dict[str, float]) -> None:
    log, picture = tmp_path / "log.csv", tmp_path / "losses.png"
    row = {"step": 1, "decoder": 2.5, "encoder": 3.0, **buckets, "loss_tools": 1.5, "loss_t": 1.0, "loss_text": 2.0}
    CsvLog(log, list(row), 0).add(row)
    draw_losses(log, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_log_has_a_row_a_report_and_one_process_writes_it(recipe: Recipe, tmp_path: Path) -> None:
    settings = dataclasses.replace(recipe.run, out=str(tmp_path))
    RunLog(settings, ["loss"], 0, World(rank=1, size=2)).add(
        1, steps=1, tokens_per_second=1.0, learning_rate=1.0, losses={}, heldout={}
    )
    assert not list(tmp_path.iterdir())
    log = RunLog(settings, ["loss"], 0, World())
    log.add(5, steps=5, tokens_per_second=10.4, learning_rate=0.1, losses={"loss": 1 / 3}, heldout={})
    log.add(10, steps=5, tokens_per_second=10.6, learning_rate=0.2, losses={"loss": 0.25}, heldout={"loss": 0.5})
    first, second = read_log(tmp_path / "log.csv")
    assert first == {
        "step": "5", "steps": "5", "tokens_per_second": "10", "learning_rate": "0.1", "loss": "0.333333",
        "heldout_loss": "",
    }  # fmt: skip
    assert second == {
        "step": "10", "steps": "5", "tokens_per_second": "11", "learning_rate": "0.2", "loss": "0.25",
        "heldout_loss": "0.5",
    }  # fmt: skip
    with (tmp_path / "log.csv").open("ab") as file:
        file.write(b"\xff\0\n")  # what a machine that lost its power may leave
    RunLog(settings, ["loss"], 5, World())  # goes on behind step 5
    assert read_log(tmp_path / "log.csv") == [first]


def test_a_log_that_cannot_be_copied_stays_as_it_was(tmp_path: Path, monkeypatch) -> None:
    log = tmp_path / "log.csv"
    CsvLog(log, ["step"], 0).add({"step": 1})
    before = log.read_bytes()

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("csv.DictWriter.writerows", full)
    with pytest.raises(OSError, match="No space"):
        CsvLog(log, ["step"], 1)
    assert log.read_bytes() == before


def test_held_out_losses_are_taken_between_reports_too(recipe: Recipe) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=5, warmup=0))
    run(changed(recipe, log_every=3, evaluate_every=2))
    rows = read_log(Path(recipe.run.out) / "log.csv")
    assert [row["step"] for row in rows] == ["2", "3", "4", "5"]
    assert [row["step"] for row in rows if row["heldout_loss"]] == ["2", "4"]
    assert float(rows[0]["norm"]) > 0
    assert "heldout_norm" not in rows[0]  # evaluations have no gradients


def test_what_a_run_says_keeps_its_brackets_and_its_lines(recipe: Recipe, capsys) -> None:
    with patch.dict(sys.modules, {"matplotlib.figure": None}):
        train(changed(recipe, log_every=10), device="cpu")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "20 steps of 192 clean tokens on cpu; a report every 10 steps."
    assert shown[1].startswith("step 10/20 loss ")
    assert shown[-1] == "The loss picture needs matplotlib: pip install 'redraft[train]'."
    Reporter(1, 0).say("word " * 100)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("speed", "shown"), [(2.4e6, "2.40 M tokens/s"), (1234.0, "1.2 k tokens/s"), (37.6, " 38 tokens/s")]
)
def test_a_speed_is_shown_in_its_unit(speed: float, shown: str, capsys) -> None:
    Reporter(2, 0).update(1, {"loss": 1.0, "decoder": 1.0}, speed, steps=2, peak=None)
    assert shown in capsys.readouterr().err


def test_the_time_that_is_left_is_that_of_the_steps_to_come(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run resumed behind step 4 of 10: three steps in 90 seconds; then its steps are fitted to fewer."""
    now = 100.0
    monkeypatch.setattr("redraft.train.progress.time.perf_counter", lambda: now)
    reporter = Reporter(10, 4)
    now += 90.0
    for steps in (10, 8):
        reporter.update(7, {"loss": 1.0, "decoder": 1.0}, 1.0, steps=steps, peak=0.36)
    shown = [line.partition(" decoder 1.0000 ")[2] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["1 tokens/s (36% of peak) left 1:30", "1 tokens/s (36% of peak) left 0:30"]


def test_a_resumed_run_says_which_settings_have_changed(recipe: Recipe, capsys) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=1, warmup=0))
    run(recipe)
    more = dataclasses.replace(recipe.optimizer, steps=2, learning_rate=1e-3)
    train(dataclasses.replace(recipe, optimizer=more), resume=True, device="cpu")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "Different from when the checkpoint was written: optimizer.steps, optimizer.learning_rate."
    assert shown[1].startswith("Resumed after step 1: 1 steps of")


def test_a_run_that_is_finished_says_so_when_it_is_resumed(recipe: Recipe, capsys) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=1, warmup=0))
    run(recipe)
    train(recipe, resume=True, device="cpu")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "The run is already finished, at step 1; its files are written again."


def test_a_missing_tensorboard_is_named_before_anything_is_loaded(recipe: Recipe) -> None:
    missing = patch.dict(sys.modules, {"tensorboard": None})
    with missing, pytest.raises(SettingError, match=r"run\.tensorboard needs TensorBoard: pip install tensorboard\."):
        Trainer(changed(recipe, tensorboard=True), device="cpu", quiet=True)


def test_tensorboard_gets_every_number(recipe: Recipe) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(changed(recipe, tensorboard=True), device="cpu", quiet=True)
    events = EventAccumulator(str(result.folder / "board"))
    events.Reload()
    assert [event.step for event in events.Scalars("decoder")] == [5, 10, 15, 20]
    assert {"loss/replaced", "hit/kept", "learning/rate"} <= set(events.Tags()["scalars"])


def test_tensorboard_drops_what_a_resumed_run_does_again(recipe: Recipe, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = dataclasses.replace(recipe.run, out=str(tmp_path), tensorboard=True)
    for number, (done, steps) in enumerate([(0, (10, 20, 30)), (20, (30,))]):
        log = RunLog(settings, ["loss"], done, World())
        for step in steps:
            losses = {"loss": float(number)}
            log.add(step, steps=10, tokens_per_second=1.0, learning_rate=1.0, losses=losses, heldout={})
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(10, 0.0), (20, 0.0), (30, 1.0)]


def test_tensorboard_on_a_full_disk_fails_without_a_traceback_of_a_thread(tmp_path: Path) -> None:
    lines = """
import resource, sys
from pathlib import Path
from redraft.train.progress import TensorBoardLog
board = TensorBoardLog(Path(sys.argv[1]), 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    for step in range(1, 40):
        board.add({"step": step, "loss": 1.5})
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", lines, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("File too large\n", "")
