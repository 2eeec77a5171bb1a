"""How a run presents itself: a progress bar in a terminal, plain lines elsewhere, a CSV log, a plot of the losses."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from redraft.errors import SettingError
from redraft.train.distributed import World
from redraft.train.meters import NORM
from redraft.train.recipe import RunSettings
from redraft.train.recipe.data import BUCKET_NAMES, BUCKETS

LOG, BOARD, PICTURE = "log.csv", "board", "losses.png"
"""Names within a run's folder."""


class Reporter:
    """Prints the progress of `steps` steps, of which `done` were completed earlier."""

    def __init__(self, steps: int, done: int, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._steps, self._progress, self._task = steps, None, TaskID(0)
        self._started, self._first = time.perf_counter(), done
        if self._console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
                       TimeRemainingColumn())  # fmt: skip
            self._progress = Progress(*columns, console=self._console)
            self._task = self._progress.add_task("training", total=steps, completed=done)

    def __enter__(self) -> Reporter:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print one line verbatim: brackets are not markup, and a long line is not wrapped."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(
        self, step: int, values: Mapping[str, float], tokens_per_second: float, *, steps: int, peak: float | None
    ) -> None:
        """Show the state after `step` of `steps` steps; `peak` is the share of the device's peak, if it is known."""
        self._steps = steps
        share = "" if peak is None else f" ({peak:.0%} of peak)"
        text = f"loss {values['loss']:.4f} decoder {values['decoder']:.4f} {_speed(tokens_per_second)}{share}"
        if self._progress is not None:
            self._progress.update(self._task, completed=step, total=steps, description=text)
        else:
            self.say(f"step {step}/{self._steps} {text} left {self._left(step)}")

    def _left(self, step: int) -> str:
        pace = (time.perf_counter() - self._started) / max(1, step - self._first)
        minutes, seconds = divmod(int(pace * (self._steps - step)), 60)
        return f"{minutes}:{seconds:02d}"


def _speed(tokens_per_second: float) -> str:
    if tokens_per_second >= 1e6:
        return f"{tokens_per_second / 1e6:.2f} M tokens/s"
    if tokens_per_second >= 1e3:
        return f"{tokens_per_second / 1e3:.1f} k tokens/s"
    return f"{tokens_per_second:.0f} tokens/s"


class CsvLog:
    """Appends rows to a CSV file; an earlier run's rows after the current step are dropped first."""

    def __init__(self, path: Path, columns: Sequence[str], done: int) -> None:
        self._columns = list(columns)
        kept = read_log(path) if path.is_file() else []
        partial = path.with_name(path.name + ".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row for row in kept if _step(row) <= done)
        partial.replace(path)  # only now, so that a full disk or a kill does not lose the earlier rows
        self._path = path

    def add(self, row: Mapping[str, object]) -> None:
        """Append one row; columns without a value stay empty."""
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(dict(row))


def check_tensorboard() -> None:
    """Raise `SettingError` if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise SettingError("run.tensorboard needs TensorBoard: pip install tensorboard.")


class TensorBoardLog:
    """Writes every logged number to TensorBoard's format, into a folder of the run.

    When it reads them, TensorBoard drops what an earlier run wrote after step `done`. Its own writer is not used: that
    has a thread, which prints a traceback when the disk is full.
    """

    def __init__(self, folder: Path, done: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._records = Event, RecordWriter
        folder.mkdir(exist_ok=True)
        self._file = folder / f"events.out.tfevents.{time.time():017.6f}"  # they are read in the order of their names
        self._write(file_version="brain.Event:2")
        self._write(step=done + 1, session_log={"status": "START"})

    def add(self, row: Mapping[str, object]) -> None:
        """Write one row of the log."""
        numbers = {name: float(str(value)) for name, value in row.items() if name != "step" and value not in ("", None)}
        values = [{"tag": name.replace("_", "/", 1), "simple_value": number} for name, number in numbers.items()]
        self._write(step=int(str(row["step"])), summary={"value": values})

    def _write(self, **event: Any) -> None:
        with self._file.open("ab") as file:
            self._records(file).write(self._event(wall_time=time.time(), **event).SerializeToString())


class RunLog:
    """A run's log: one row per report, in CSV and, if the recipe asks for it, for TensorBoard. One process writes."""

    def __init__(self, run: RunSettings, names: Sequence[str], done: int, world: World) -> None:
        """`names` are those of all losses; anything logged after step `done` is dropped."""
        self._logs: list[CsvLog | TensorBoardLog] = []
        if not world.is_main:
            return
        heldout = [f"heldout_{name}" for name in names if name != NORM]  # evaluations have no gradients
        columns = ["step", "steps", "tokens_per_second", "learning_rate", *names, *heldout]
        self._logs.append(CsvLog(Path(run.out) / LOG, columns, done))
        if run.tensorboard:
            self._logs.append(TensorBoardLog(Path(run.out) / BOARD, done))

    def add(
        self, step: int, *, steps: int, tokens_per_second: float, learning_rate: float, losses: Mapping[str, float],
        heldout: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Write the row of step `step`, whose losses are means over the last `steps` steps: as many as since the row
        before, or since the checkpoint at which a killed run was resumed. `heldout` is empty unless an evaluation was
        due."""
        row: dict[str, object] = {"step": step, "steps": steps, "tokens_per_second": round(tokens_per_second)}
        row["learning_rate"] = learning_rate
        row |= {name: f"{value:.6g}" for name, value in losses.items()}
        row |= {f"heldout_{name}": f"{value:.6g}" for name, value in heldout.items()}
        for log in self._logs:
            log.add(row)


def _step(row: Mapping[str, str]) -> float:
    """The step of a row; infinite if a killed machine left something else."""
    return int(row["step"]) if row.get("step", "").isdecimal() else math.inf


def read_log(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV log."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return list(csv.DictReader(file))


def draw_losses(log: Path, picture: Path) -> None:
    """Draw the loss curves of a CSV log. Raises `SettingError` if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("The loss picture needs matplotlib: pip install 'redraft[train]'.") from None
    rows = read_log(log)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots(1, 2)
    for name in ("decoder", "encoder", "heldout_decoder"):
        points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
        if points:
            axes[0].plot(*zip(*points, strict=True), label=name.replace("_", " "))
    axes[0].set(xlabel="step", ylabel="nats per token", yscale="log", title="loss")
    for row, label in ((rows[len(rows) // 4], "a quarter in"), (rows[-1], "at the end")) if rows else ():
        buckets = [(row.get(f"loss_{name}"), (index + 0.5) / BUCKETS) for index, name in enumerate(BUCKET_NAMES)]
        levels = [(level, float(loss)) for loss, level in buckets if loss]
        if levels:
            axes[1].plot(*zip(*levels, strict=True), marker="o", label=label)
    axes[1].set(xlabel="noise level t", ylabel="nats per token", title="by noise level")
    for axis in axes:
        if axis.lines:
            axis.legend()
    figure.savefig(picture, dpi=120)
