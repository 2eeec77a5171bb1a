"""The training loop: packed batches in, a model folder out, with exact resume.

The loop never waits for the GPU except when a report, an evaluation or a checkpoint is due. Started by `torchrun`, it
is one of several processes, each with a device: every process packs its own batches, and gradients are averaged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.diffusion.corruption import seed_for
from redraft.errors import SettingError, TrainingError
from redraft.model import Transformer
from redraft.outputs import alone_in
from redraft.train import curve
from redraft.train.batch import Batch, in_one_step
from redraft.train.distributed import World
from redraft.train.export import CURVE, check_apart, export_trained, exported
from redraft.train.flops import share_of_peak
from redraft.train.history import Pace, StepLosses
from redraft.train.initial import initial_model
from redraft.train.limits import RunLimits
from redraft.train.loader import Loader
from redraft.train.meters import Meters
from redraft.train.optimizer import Masters, learning_rate
from redraft.train.packing import Packer
from redraft.train.passes import Pass, pass_for
from redraft.train.progress import LOG, PICTURE, Reporter, RunLog, check_tensorboard, draw_losses
from redraft.train.recipe import Recipe
from redraft.train.resuming import RunCheckpoint
from redraft.train.sharding import ShardedWeights, TrainedWeights
from redraft.train.two_stream import TwoStream

_HELDOUT_STEP = 1 << 40


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run left behind: how far it got, the loss of every step of this run, and its files.

    `model_folder` contains the model, or the adapter if that was trained; `interrupted`: by Ctrl-C or SIGTERM.
    """

    step: int
    finished: bool
    interrupted: bool
    losses: list[float]
    folder: Path
    model_folder: Path
    tokens_per_second: float


class Trainer:
    """One run of a recipe: create it, then `run` it; or `build` it and call `train_step` yourself."""

    # Made by `build`:
    model: Transformer
    stream: TwoStream
    batch_pass: Pass
    masters: TrainedWeights
    meters: Meters
    # Made by `run`, once it is known at which step the run begins:
    log: RunLog
    reporter: Reporter
    losses: StepLosses
    pace: Pace

    def __init__(self, recipe: Recipe, *, device: str = "auto", quiet: bool = False) -> None:
        """Opens the recipe's data.

        Raises `SettingError` for a missing device or TensorBoard and for data that the recipe cannot use, `InputError`
        for data that cannot be read, and `CheckpointError` if the model under an adapter cannot be.
        """
        self.recipe, self.run_settings = recipe, recipe.run
        self.world = World.from_environment()
        if recipe.run.curve_every and self.world.size > 1:
            raise SettingError(
                "run.curve_every cannot be combined with several processes; use `redraft eval curve` afterwards."
            )
        if recipe.run.tensorboard:
            check_tensorboard()
        self.limits = RunLimits(recipe.run, self.world)
        self.device = self.world.device(device)
        self.quiet = quiet or not self.world.is_main
        self.folder = Path(recipe.run.out)
        self.packer = Packer(recipe)
        self.checkpoint = RunCheckpoint(recipe, self.world)
        self.step = 0
        self.batches = 0
        """Batches that all processes have trained on; this process' next one is `batches + rank`."""

    def build(self) -> None:
        """Create the model and its optimizer on the device; separate from `__init__` so that workers fork first."""
        settings, dtype = self.run_settings, getattr(torch, self.run_settings.dtype)
        self.model = initial_model(self.recipe, self.device)
        self.stream = TwoStream(
            self.model, self.recipe.objective, compiled=settings.compile, recompute=settings.recompute, dtype=dtype
        )
        self.batch_pass = pass_for(self.stream, self.recipe)
        if settings.shard:
            self.masters = ShardedWeights(self.stream, dtype, self.recipe.optimizer, self.world)
        else:
            self.masters = Masters(self.model, dtype, self.recipe.optimizer, self.world)
        self.meters = Meters([source.name for source in self.recipe.data.sources], self.device)

    def train_step(self, *batches: Batch) -> Tensor:
        """One update from the loss of all batches on the device; returns that loss without waiting for it.

        With several processes it is this process' part, and the loss is their mean.
        """
        self.masters.refresh()
        self.stream.mark("refresh")
        losses = [self._accumulate(batch) for batch in in_one_step(batches, self.world)]
        self.meters.add_norm(self.masters.step(self.step, len(batches)))
        self.stream.mark("optimizer")
        self.step += 1
        return torch.stack(losses).mean()

    def _accumulate(self, batch: Batch) -> Tensor:
        """Forward and backward of one batch."""
        index = self.batches + self.world.rank
        if self.stream.has_dropout:  # it draws from the global generator
            torch.manual_seed(seed_for(self.run_settings.seed, index, 2))  # on a CPU only its low half counts
        outcome = self.batch_pass.gradients(batch, self.run_settings.seed, index)
        self.masters.accumulate()
        self.stream.mark("backward")
        self.meters.add(outcome, batch)
        self.stream.mark("meters")
        self.batches += self.world.size
        return outcome.loss.clone()  # the next captured pass overwrites it

    def evaluate(self) -> dict[str, float]:
        """Mean losses of held-out batches, the same ones every time, with the averaged weights if there are any.

        Runs with gradients enabled so that compiled training graphs are reused; nothing is kept.
        """
        self.masters.refresh(averaged=True)
        self._set_dropout(False)
        meters = Meters(self.meters.sources, self.device)
        count = self.run_settings.evaluate_batches
        for first in range(0, count, self.world.size):
            index = first + self.world.rank  # also past the last one: processes gather sharded weights together
            batch = Batch.from_arrays(self.packer.batch(index, "heldout")).to(self.device)
            [batch] = in_one_step([batch], World())  # each on its own, with all the tensors of a captured batch
            outcome = self.batch_pass.losses(batch, self.run_settings.seed, _HELDOUT_STEP + index)
            if index < count:
                meters.add(outcome, batch)
        self._set_dropout(True)
        return meters.report(self.world)

    def _set_dropout(self, on: bool) -> None:
        """Only if there is any, because changing the mode of a model recompiles it."""
        if self.stream.has_dropout:
            self.model.train(on)

    def save(self) -> None:
        """Write the run's current checkpoint. Every process waits for the one that writes.

        Raises `TrainingError` in all of them if that fails, or if weights are not finite, which no loss has shown yet.
        """
        if self.world.any(not self.masters.finite()):
            raise TrainingError(
                f"Step {self.step - 1} (counted from 0) left weights that are not finite; they were not saved."
            )
        progress = {"step": self.step, "batches": self.batches, "steps": self.total_steps}
        self.checkpoint.save(self.masters, **progress, seconds=self.limits.earlier + self.limits.seconds)

    def run(self, *, resume: bool = False) -> TrainingResult:
        """Train until the recipe's steps or its time are over; then write checkpoint, plot and model."""
        check_apart(self.recipe)
        if not resume:
            self.checkpoint.begin()
        with alone_in(self.folder) if self.world.is_main else nullcontext():
            return self._run(resume)

    def _run(self, resume: bool) -> TrainingResult:
        state = self._resumed() if resume else {}
        with Loader(self.packer, self._indices(), self.recipe.data.workers) as loader:
            batches = iter(loader)
            with self.world.joined(self.device, always=self.run_settings.shard):
                self.build()
                changed = self.checkpoint.changed(state)
                if state:
                    self._restore(state)
                    state = {}  # as large as the weights and their optimizer together
                with self._writing_log():
                    self.log = RunLog(self.run_settings, self.meters.names(), self.step, self.world)
                with Reporter(self.total_steps, self.step, quiet=self.quiet) as self.reporter:
                    if changed:
                        self.reporter.say(f"Different from when the checkpoint was written: {', '.join(changed)}.")
                    self._announce()
                    with self.limits.interruptible():
                        self._loop(batches)
                    return self._end()

    def _announce(self) -> None:
        """Announce what comes next: the first step, and the first report, may take long."""
        if self.step >= self.total_steps:
            self.reporter.say(f"The run is already finished, at step {self.step}; its files are written again.")
            return
        begun = f"Resumed after step {self.step}: " if self.step else ""
        ahead = f"{self.total_steps - self.step} steps of {self._tokens_per_step} clean tokens on {self.device}"
        self.reporter.say(f"{begun}{ahead}; a report every {self.run_settings.log_every} steps.")

    def _resumed(self) -> dict[str, Any]:
        """Find out where the run stands; returns the state from its checkpoint."""
        state = self.checkpoint.load()
        self.step = int(state["step"])
        self.batches = int(state.get("batches", self.step))
        self.limits.earlier = float(state.get("seconds", 0.0))  # older checkpoints do not say
        return state

    def _indices(self) -> range:
        """This process' batches, from the current position to the last possible step."""
        count = (self.recipe.optimizer.steps - self.step) * self.recipe.data.accumulate * self.world.size
        return range(self.batches + self.world.rank, self.batches + count, self.world.size)

    def _restore(self, state: dict[str, Any]) -> None:
        self.checkpoint.restore(state, self.masters)
        if self.run_settings.fit_seconds:
            self._set_total_steps(int(state.get("steps", self.recipe.optimizer.steps)))

    @property
    def total_steps(self) -> int:
        """Steps of the whole run; fewer than the recipe's once they have been fitted to the time."""
        return self.masters.settings.steps

    def _set_total_steps(self, steps: int) -> None:
        steps = min(self.recipe.optimizer.steps, max(steps, self.recipe.optimizer.warmup, self.step))
        self.masters.settings = dataclasses.replace(self.recipe.optimizer, steps=steps)

    def _loop(self, batches: Iterator[Batch]) -> None:
        """All steps that the recipe and the limits allow, and after each whatever is due."""
        settings = self.run_settings
        self.losses, self.pace = StepLosses(self.step, self.world), Pace(self.step)
        if settings.curve_every and self.step == 0:
            with self.pace.aside("curve", settings.curve_every):
                self._measure_curve()
        late = False
        while self.step < self.total_steps and not late:
            group = [batch.to(self.device) for batch in islice(batches, self.recipe.data.accumulate)]
            self.losses.add(self.train_step(*group))
            late = self.limits.reached()
            if self._report_due() or late or self.step == self.total_steps:
                self._report()
            if self._due(settings.curve_every):
                self.losses.settle()  # the device is done with the steps
                with self.pace.aside("curve", settings.curve_every):
                    self._measure_curve()
            if self._due(settings.checkpoint_every):
                self.losses.settle()  # a non-finite loss keeps the last checkpoint
                with self.pace.aside("checkpoint", settings.checkpoint_every):
                    self.save()
        if late:
            self.reporter.say(f"Stopped {self.limits.reason} at step {self.step}.")

    def _report_due(self) -> bool:
        """An evaluation is also a reason to report."""
        return self._due(self.run_settings.log_every) or self._due(self.run_settings.evaluate_every)

    def _due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def _report(self) -> None:
        """Settle the losses, fit the steps, and report the state of the run."""
        settings = self.run_settings
        self.losses.settle()
        steps, seconds = self.step - self.pace.step, self.pace.lap(self.step)
        rate = learning_rate(self.masters.settings, self.step - 1)  # as it was, before the steps are fitted anew
        if self.pace.is_steady:
            self._set_total_steps(self.limits.fitted_steps(self.step, self.total_steps, self.pace.expected))
        heldout: dict[str, float] = {}
        if self._due(settings.evaluate_every):
            with self.pace.aside("evaluation", settings.evaluate_every):
                heldout = self.evaluate()
        with self.pace.aside("report", settings.log_every):
            losses, speed = self.meters.report(self.world), self._tokens_per_step / seconds
            with self._writing_log():
                self.log.add(
                    self.step, steps=steps, tokens_per_second=speed, learning_rate=rate, losses=losses, heldout=heldout
                )
            share = share_of_peak(self.recipe, seconds, self.device)
            self.reporter.update(self.step, losses, speed, steps=self.total_steps, peak=share)

    def _writing_log(self) -> AbstractContextManager[None]:
        return self.world.writing(f"The log of {str(self.folder)!r}")

    @property
    def _tokens_per_step(self) -> int:
        """Clean tokens per step over all processes."""
        data = self.recipe.data
        return data.rows * data.tokens * data.accumulate * self.world.size

    def _measure_curve(self) -> None:
        """Score and steps at several step budgets with the current weights."""
        folder = self.folder / CURVE
        self._export(folder)
        if self.world.is_main:
            self.reporter.say(curve.measure_curve(self.recipe, folder, self.step, self.device))

    def _export(self, folder: Path) -> None:
        self.masters.refresh(averaged=True)
        export_trained(self.recipe, self.model, self.masters, folder, self.world)

    def _end(self) -> TrainingResult:
        """Write checkpoint, model and plots."""
        self.save()
        if self.run_settings.curve_every and not self._due(self.run_settings.curve_every):
            self._measure_curve()
        self._export(exported(self.recipe))
        with self.world.writing(f"The plots of {str(self.folder)!r}"):
            if self.world.is_main:
                self._draw()
        return TrainingResult(
            step=self.step, finished=self.step >= self.total_steps, interrupted=self.limits.interrupted,
            losses=self.losses.values, folder=self.folder, model_folder=exported(self.recipe),
            tokens_per_second=self._tokens_per_step / self.pace.median,
        )  # fmt: skip

    def _draw(self) -> None:
        """Draw the run's plots, or explain that matplotlib is missing."""
        try:
            draw_losses(self.folder / LOG, self.folder / PICTURE)
            curve.draw_curve(self.recipe)
        except SettingError as error:
            self.reporter.say(str(error))


def train(recipe: Recipe, *, resume: bool = False, device: str = "auto", quiet: bool = False) -> TrainingResult:
    """Run a recipe. Raises `SettingError`, `InputError` for data that cannot be read, `CheckpointError` for a wrong
    folder to resume, and `TrainingError`.
    """
    return Trainer(recipe, device=device, quiet=quiet).run(resume=resume)
