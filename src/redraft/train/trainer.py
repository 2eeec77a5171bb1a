"""The training loop: packed batches in, a model folder out, with exact resume.

The loop never waits for the GPU except when a report, an evaluation or a checkpoint is due.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.errors import CheckpointError, SettingError, TrainingError
from redraft.model import Transformer
from redraft.model.initialise import initialise
from redraft.model.weights import load_model
from redraft.train.batch import Batch
from redraft.train.checkpoint import load_checkpoint, save_checkpoint
from redraft.train.export import export_model
from redraft.train.loader import Loader
from redraft.train.meters import Meters
from redraft.train.optimizer import Masters, learning_rate
from redraft.train.packing import Packer
from redraft.train.progress import CsvLog, Reporter, draw_losses
from redraft.train.recipe import Recipe
from redraft.train.two_stream import TwoStream

LOG, PICTURE, EXPORT = "log.csv", "losses.png", "model"
_HELDOUT_STEP = 1 << 40


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run left behind: how far it came, the loss of every step of this run, and its files."""

    step: int
    finished: bool
    losses: list[float]
    folder: Path
    model_folder: Path | None
    tokens_per_second: float


def _tensor_shapes(config: ModelConfig) -> ModelConfig:
    """A config reduced to what decides the weights' shapes."""
    return dataclasses.replace(config, canvas_length=256, eos_token_id=(1,), max_position_embeddings=1, extra={})


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device. Raises `SettingError` for other names or an absent GPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise SettingError(f"device is {name!r}; it must be one of auto, cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("device is 'cuda', but no CUDA device is available.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Trainer:
    """One run of a recipe. Build it, optionally `resume`, then `run`."""

    def __init__(self, recipe: Recipe, *, device: str = "auto", quiet: bool = False) -> None:
        self.recipe, self.run_settings = recipe, recipe.run
        self.device, self.quiet = pick_device(device), quiet
        self.folder = Path(recipe.run.out)
        self.packer = Packer(recipe)
        self.step = 0
        self._stop = False
        # Longer than the compiled graphs of two layer kinds, two phases and two gradient modes together.
        torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]

    def build(self) -> None:
        """Make the model and its optimizer on the device; separate from `__init__` so that workers fork first."""
        model = self._first_model().to(self.device)
        self.masters = Masters(model, getattr(torch, self.run_settings.dtype), self.recipe.optimizer)
        self.model = model
        self.forward = TwoStream(model, self.recipe.objective, compiled=self.run_settings.compile)
        self.meters = Meters([source.name for source in self.recipe.data.sources], self.device)

    def _first_model(self) -> Transformer:
        """Fresh fp32 weights, or those of the folder that the recipe begins with."""
        if not self.run_settings.init:
            model = Transformer(self.recipe.model)
            initialise(model, self.run_settings.seed)
            return model
        model = load_model(self.run_settings.init, device="cpu", dtype="float32")
        if _tensor_shapes(model.config) != _tensor_shapes(self.recipe.model):
            where = repr(self.run_settings.init)
            raise SettingError(f"run.init: the model in {where} has another shape than the recipe's.")
        return model

    def train_step(self, batch: Batch) -> Tensor:
        """One update from a batch on the device; returns the loss without waiting for it."""
        self.masters.refresh()
        outcome = self.forward(batch, self.run_settings.seed, self.step)
        outcome.loss.backward()
        norm = self.masters.step(self.step)
        self.meters.add(outcome, batch, norm)
        self.step += 1
        return outcome.loss.detach()

    def run(self, *, resume: bool = False) -> TrainingResult:
        """Train until the recipe's steps, or its time, are over; then write checkpoint, picture and model."""
        state = self._begin(resume)
        self.step = first = int(state["step"]) if state else 0
        started = time.perf_counter()
        with Loader(self.packer, first, self.recipe.optimizer.steps, self.recipe.data.workers) as loader:
            batches = iter(loader)
            self.build()
            if state:
                self.masters.load_state(state["weights"])
            self.log = CsvLog(self.folder / LOG, self._columns(), first)
            with Reporter(self.recipe.optimizer.steps, first, quiet=self.quiet) as reporter:
                with self._interruptible():
                    losses, speed = self._loop(batches, reporter, started)
                return self._end(losses, speed, reporter)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C end the loop behind the current step, so that the checkpoint is a whole number of steps."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda *_: setattr(self, "_stop", True))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _begin(self, resume: bool) -> dict[str, Any] | None:
        if resume:
            state = load_checkpoint(self.folder, self.device)
            self._check_resumable(state)
            return state
        if (self.folder / "checkpoint.pt").exists():
            raise SettingError(f"{str(self.folder)!r} holds a run already; resume it or choose another folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        return None

    def _check_resumable(self, state: dict[str, Any]) -> None:
        if state.get("model") != _shape(self.recipe) or state.get("seed") != self.run_settings.seed:
            raise CheckpointError(f"The checkpoint in {str(self.folder)!r} is of a run with another model or seed.")

    def _loop(self, batches: Iterator[Batch], reporter: Reporter, started: float) -> tuple[list[float], float]:
        """All steps that steps and time allow: their losses, and the median tokens/s of the reports."""
        losses: list[float] = []
        waiting: list[Tensor] = []
        speeds: list[float] = []
        tick, last = time.perf_counter(), self.step
        for batch in batches:
            waiting.append(self.train_step(batch.to(self.device)))
            late = self._stop or self._out_of_time(started)
            if self._due(self.run_settings.log_every) or late or self.step == self.recipe.optimizer.steps:
                losses += self._collect(waiting)
                now = time.perf_counter()
                speeds.append((self.step - last) * batch.clean_tokens / (now - tick))
                tick, last, waiting = now, self.step, []
                self._report(reporter, speeds[-1])
            if self._due(self.run_settings.checkpoint_every):
                losses += self._collect(waiting)
                waiting = []
                self.save()
            if late:
                reporter.say(f"Stopped {'by interrupt' if self._stop else 'by the time limit'} at step {self.step}.")
                break
        return losses, sorted(speeds)[len(speeds) // 2] if speeds else 0.0

    def _due(self, every: float) -> bool:
        return bool(every) and self.step % int(every) == 0

    def _out_of_time(self, started: float) -> bool:
        limit = self.run_settings.max_seconds
        return bool(limit) and time.perf_counter() - started > limit

    def _collect(self, waiting: list[Tensor]) -> list[float]:
        """The losses of the last steps as numbers. Raises `TrainingError` at the first that is not finite."""
        values = torch.stack(waiting).tolist() if waiting else []
        for index, value in enumerate(values):
            if not math.isfinite(value):
                batch = self.step - len(values) + index
                raise TrainingError(f"The loss of batch {batch} is {value}; the last checkpoint was kept.")
        return values

    def _report(self, reporter: Reporter, speed: float) -> None:
        values = self.meters.report()
        row: dict[str, object] = {"step": self.step, "tokens_per_second": round(speed)}
        row["learning_rate"] = learning_rate(self.recipe.optimizer, self.step - 1)
        row |= {name: f"{value:.6g}" for name, value in values.items()}
        if self._due(self.run_settings.evaluate_every):
            row |= {f"heldout_{name}": f"{value:.6g}" for name, value in self.evaluate().items()}
        self.log.add(row)
        reporter.update(self.step, values, speed)

    def evaluate(self) -> dict[str, float]:
        """Mean losses on held-out batches, the same ones every time, with the averaged weights if there are any.

        Runs with gradients enabled so that compiled training graphs are used again; nothing is kept.
        """
        self.masters.refresh(averaged=True)
        meters = Meters(self.meters.sources, self.device)
        for index in range(self.run_settings.evaluate_batches):
            batch = Batch.from_arrays(self.packer.batch(index, "heldout")).to(self.device)
            outcome = self.forward(batch, self.run_settings.seed, _HELDOUT_STEP + index)
            meters.add(outcome, batch, torch.zeros((), device=self.device))
        return meters.report()

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(
            self.folder,
            {
                "step": self.step,
                "seed": self.run_settings.seed,
                "model": _shape(self.recipe),
                "weights": self.masters.state(),
            },
        )

    def _end(self, losses: list[float], speed: float, reporter: Reporter) -> TrainingResult:
        self.save()
        finished = self.step >= self.recipe.optimizer.steps
        self.masters.refresh(averaged=True)
        model_folder = export_model(self.model, self.folder / EXPORT, self.recipe.data.tokenizer)
        try:
            draw_losses(self.folder / LOG, self.folder / PICTURE)
        except SettingError as error:
            reporter.say(str(error))
        return TrainingResult(
            step=self.step, finished=finished, losses=losses, folder=self.folder, model_folder=model_folder,
            tokens_per_second=speed,
        )  # fmt: skip

    def _columns(self) -> list[str]:
        names = self.meters.names()
        return ["step", "tokens_per_second", "learning_rate", *names, *(f"heldout_{name}" for name in names)]


def _shape(recipe: Recipe) -> dict[str, Any]:
    """The model's numbers as plain values, for comparing a checkpoint with a recipe."""
    shape = dataclasses.asdict(recipe.model)
    del shape["extra"]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in shape.items()}


def train(recipe: Recipe, *, resume: bool = False, device: str = "auto", quiet: bool = False) -> TrainingResult:
    """Run a recipe. Raises `SettingError`, `CheckpointError` for a wrong folder to resume, and `TrainingError`."""
    return Trainer(recipe, device=device, quiet=quiet).run(resume=resume)
