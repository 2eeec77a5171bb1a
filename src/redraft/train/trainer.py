"""The training loop: packed batches in, a model folder out, with exact resume.

The loop never waits for the GPU except when a report, an evaluation or a checkpoint is due. Started by `torchrun` it is
one of several processes with a device each: every process packs batches of its own, and gradients are averaged.
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
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.errors import CheckpointError, SettingError, TrainingError
from redraft.eval.curve import append_curve, draw, of_folder, read_curve
from redraft.model import Transformer
from redraft.model.adapters import save_adapter
from redraft.model.initialise import initialise
from redraft.model.weights import load_model
from redraft.train.batch import Batch
from redraft.train.checkpoint import load_checkpoint, save_checkpoint
from redraft.train.distributed import World
from redraft.train.export import export_model
from redraft.train.flops import peak, step_flops
from redraft.train.loader import Loader
from redraft.train.lora import adapt, collect
from redraft.train.meters import Meters
from redraft.train.optimizer import Masters, learning_rate
from redraft.train.packing import Packer
from redraft.train.progress import Board, CsvLog, Reporter, draw_losses
from redraft.train.quantized import load_quantized
from redraft.train.recipe import Recipe
from redraft.train.sharding import FOLDER as SHARDED
from redraft.train.sharding import ShardedWeights, load_meta, load_sharded, save_sharded
from redraft.train.two_stream import TwoStream

LOG, PICTURE, CURVE, EXPORT, ADAPTER = "log.csv", "losses.png", "curve.csv", "model", "adapter"
_HELDOUT_STEP = 1 << 40
_AGREE_EVERY = 8
"""Several processes ask each other whether to stop this often, in steps."""
_FIT_FROM, _FIT_UNTIL = 100, 0.8
"""The number of steps is fitted to the time from this step on, and until this share of them is over."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run left behind: how far it came, the loss of every step of this run, and its files.

    `model_folder` holds the model, or the adapter if that is what was trained.
    """

    step: int
    finished: bool
    losses: list[float]
    folder: Path
    model_folder: Path
    tokens_per_second: float


def _tensor_shapes(config: ModelConfig) -> ModelConfig:
    """A config reduced to what decides the weights' shapes."""
    return dataclasses.replace(config, canvas_length=256, eos_token_id=(1,), max_position_embeddings=1, extra={})


def pick_device(name: str, number: int = 0) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device, GPU `number`. Raises `SettingError` for other names or an absent GPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise SettingError(f"device is {name!r}; it must be one of auto, cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("device is 'cuda', but no CUDA device is available.")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if number >= torch.cuda.device_count():
        raise SettingError(f"Process {number} of this host has no GPU; there are {torch.cuda.device_count()}.")
    return torch.device("cuda", number)


class Trainer:
    """One run of a recipe. Build it, optionally `resume`, then `run`."""

    def __init__(self, recipe: Recipe, *, device: str = "auto", quiet: bool = False) -> None:
        self.started = time.perf_counter()
        self.recipe, self.run_settings = recipe, recipe.run
        self.world = World.from_environment()
        self.device = pick_device(device, self.world.local_rank)
        self.quiet = quiet or not self.world.is_main
        self.folder = Path(recipe.run.out)
        self.packer = Packer(recipe)
        self.step = 0
        self.batches = 0
        """Batches that all processes have trained on; the next one of this process is `batches + rank`."""
        self._stop = False
        # Longer than the compiled graphs of two layer kinds, two phases and two gradient modes together.
        torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]

    def build(self) -> None:
        """Make the model and its optimizer on the device; separate from `__init__` so that workers fork first."""
        model = self._first_model().to(self.device)
        settings, dtype = self.run_settings, getattr(torch, self.run_settings.dtype)
        if not settings.shard:
            self.masters: Masters | ShardedWeights = Masters(model, dtype, self.recipe.optimizer, self.world)
        self.model = model
        self.forward = TwoStream(
            model, self.recipe.objective, compiled=settings.compile, recompute=settings.recompute, dtype=dtype
        )
        if settings.shard:
            self.masters = ShardedWeights(self.forward, dtype, self.recipe.optimizer, self.world)
        self.meters = Meters([source.name for source in self.recipe.data.sources], self.device)

    def _first_model(self) -> Transformer:
        """Fresh weights, or those of the folder that the recipe begins with; what is trained of them is fp32."""
        if not self.run_settings.init:
            model = Transformer(self.recipe.model)
            initialise(model, self.run_settings.seed)
            return model
        lora, settings = self.recipe.lora, self.run_settings
        if lora is not None and lora.quantization:
            dtype = getattr(torch, settings.dtype)
            model = load_quantized(settings.init, lora.quantization, device=self.device, dtype=dtype)
        else:
            model = load_model(settings.init, device="cpu", dtype=settings.dtype if lora else "float32")
            for parameter in model.parameters():  # loading may have laid them out for products on a CPU
                parameter.data = parameter.data.contiguous()
        if _tensor_shapes(model.config) != _tensor_shapes(self.recipe.model):
            raise SettingError(f"run.init: the model in {settings.init!r} has another shape than the recipe's.")
        if lora is not None:
            adapt(model, lora, settings.seed)
        return model

    def train_step(self, *batches: Batch) -> Tensor:
        """One update from the mean loss of batches on the device; returns that loss without waiting for it."""
        self.masters.refresh()
        losses = [self._gather(batch, 1.0 / len(batches)) for batch in batches]
        self.meters.add_norm(self.masters.step(self.step))
        self.step += 1
        return torch.stack(losses).mean()

    def _gather(self, batch: Batch, share: float) -> Tensor:
        """Forward and backward of one batch, whose gradients count for `share`."""
        index = self.batches + self.world.rank
        if self.recipe.lora is not None and self.recipe.lora.dropout:  # dropout draws from the global generator
            torch.manual_seed(self.run_settings.seed << 32 | index)
        outcome = self.forward(batch, self.run_settings.seed, index)
        outcome.loss.backward()
        self.masters.gather(share=share)
        self.meters.add(outcome, batch)
        self.batches += self.world.size
        return outcome.loss.detach()

    def run(self, *, resume: bool = False) -> TrainingResult:
        """Train until the recipe's steps, or its time, are over; then write checkpoint, picture and model."""
        state = self._begin(resume)
        self.step = first = int(state["step"]) if state else 0
        self.batches = int(state.get("batches", first)) if state else 0
        with Loader(self.packer, self._indices(), self.recipe.data.workers) as loader:
            batches = iter(loader)
            with self.world.joined(self.device, always=self.run_settings.shard):
                self.build()
                if state:
                    self._restore(state)
                return self._run(batches, first)

    def _run(self, batches: Iterator[Batch], first: int) -> TrainingResult:
        self.log = CsvLog(self.folder / LOG, self._columns(), first) if self.world.is_main else None
        wanted = self.world.is_main and self.run_settings.tensorboard
        self.board = Board(self.folder / "board") if wanted else None
        with Reporter(self.total_steps, first, quiet=self.quiet) as reporter:
            with self._interruptible():
                losses, speed = self._loop(batches, reporter)
            return self._end(losses, speed, reporter)

    def _indices(self) -> range:
        """The batches of this process, from where the run stands to its last possible step."""
        count = (self.recipe.optimizer.steps - self.step) * self.recipe.data.accumulate * self.world.size
        return range(self.batches + self.world.rank, self.batches + count, self.world.size)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run; fewer than the recipe's once they have been fitted to the time."""
        return self.masters.settings.steps

    def _set_total_steps(self, steps: int) -> None:
        steps = min(self.recipe.optimizer.steps, max(steps, self.recipe.optimizer.warmup, self.step))
        self.masters.settings = dataclasses.replace(self.recipe.optimizer, steps=steps)

    def _restore(self, state: dict[str, Any]) -> None:
        if isinstance(self.masters, ShardedWeights):
            load_sharded(self.folder, self.masters)
        else:
            self.masters.load_state(state["weights"])
        if self.run_settings.fit_seconds:
            self._set_total_steps(int(state.get("steps", self.recipe.optimizer.steps)))

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
            shard = self.run_settings.shard
            state = load_meta(self.folder) if shard else load_checkpoint(self.folder, torch.device("cpu"))
            self._check_resumable(state)
            return state
        if (self.folder / "checkpoint.pt").exists() or (self.folder / SHARDED).exists():
            raise SettingError(f"{str(self.folder)!r} holds a run already; resume it or choose another folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        return None

    def _check_resumable(self, state: dict[str, Any]) -> None:
        if state.get("model") != _shape(self.recipe) or state.get("seed") != self.run_settings.seed:
            raise CheckpointError(f"The checkpoint in {str(self.folder)!r} is of a run with another model or seed.")

    def _loop(self, batches: Iterator[Batch], reporter: Reporter) -> tuple[list[float], float]:
        """All steps that steps and time allow: their losses, and the median tokens/s of the reports."""
        losses: list[float] = []
        waiting: list[Tensor] = []
        speeds: list[float] = []
        if self.run_settings.curve_every and self.step == 0:
            self._measure_curve(reporter)
        tick, last = time.perf_counter(), self.step
        while self.step < self.total_steps:
            group = [batch.to(self.device) for batch in islice(batches, self.recipe.data.accumulate)]
            waiting.append(self.train_step(*group))
            late = self._is_late()
            if self._due(self.run_settings.log_every) or late or self.step == self.total_steps:
                losses += self._collect(waiting)
                now = time.perf_counter()
                speeds.append((self.step - last) * self._tokens_per_step / (now - tick))
                waiting = []
                self._fit_steps((now - tick) / (self.step - last))
                self._report(reporter, speeds[-1])
                tick, last = time.perf_counter(), self.step
            if self._due(self.run_settings.curve_every):
                self._measure_curve(reporter)
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

    @property
    def _tokens_per_step(self) -> int:
        """Clean tokens of all processes."""
        data = self.recipe.data
        return data.rows * data.tokens * data.accumulate * self.world.size

    @property
    def _flops(self) -> float:
        """Operations of one step of all processes."""
        return step_flops(self.recipe) * self.world.size

    def _is_late(self) -> bool:
        """Whether to stop behind this step; all processes say the same."""
        limit = self.run_settings.max_seconds
        late = self._stop or (bool(limit) and time.perf_counter() - self.started > limit)
        if self.world.size == 1:
            return late
        return self._due(_AGREE_EVERY) and self.world.any(late)

    def _fit_steps(self, pace: float) -> None:
        """Set the number of steps to what the recipe's `fit_seconds` leave room for at `pace` seconds per step."""
        seconds = self.run_settings.fit_seconds
        if not seconds or self.step < _FIT_FROM or self.step > _FIT_UNTIL * self.total_steps:
            return
        left = seconds - (time.perf_counter() - self.started)
        # The slowest process decides, and every process decides alike.
        self._set_total_steps(self.step - int(self.world.largest(-int(left / pace))))

    def _collect(self, waiting: list[Tensor]) -> list[float]:
        """The losses of the last steps as numbers. Raises `TrainingError` at the first that is not finite."""
        values = self.world.mean_(torch.stack(waiting)).tolist() if waiting else []
        for index, value in enumerate(values):
            if not math.isfinite(value):
                batch = self.step - len(values) + index
                raise TrainingError(f"The loss of batch {batch} is {value}; the last checkpoint was kept.")
        return values

    def _report(self, reporter: Reporter, speed: float) -> None:
        values = self.meters.report(self.world)
        row: dict[str, object] = {"step": self.step, "tokens_per_second": round(speed)}
        row["learning_rate"] = learning_rate(self.masters.settings, self.step - 1)
        row |= {name: f"{value:.6g}" for name, value in values.items()}
        if self._due(self.run_settings.evaluate_every):
            row |= {f"heldout_{name}": f"{value:.6g}" for name, value in self.evaluate().items()}
        for log in (self.log, self.board):
            if log is not None:
                log.add(row)
        ceiling = peak(self.device)
        share = None if ceiling is None else self._flops * speed / self._tokens_per_step / self.world.size / ceiling
        reporter.update(self.step, values, speed, steps=self.total_steps, peak=share)

    def evaluate(self) -> dict[str, float]:
        """Mean losses on held-out batches, the same ones every time, with the averaged weights if there are any.

        Runs with gradients enabled so that compiled training graphs are used again; nothing is kept.
        """
        self.masters.refresh(averaged=True)
        self._set_dropout(False)
        meters = Meters(self.meters.sources, self.device)
        for index in range(self.world.rank, self.run_settings.evaluate_batches, self.world.size):
            batch = Batch.from_arrays(self.packer.batch(index, "heldout")).to(self.device)
            outcome = self.forward(batch, self.run_settings.seed, _HELDOUT_STEP + index)
            meters.add(outcome, batch)
        self._set_dropout(True)
        return meters.report(self.world)

    def _set_dropout(self, on: bool) -> None:
        """Only where there is any, because changing the mode of a model compiles it again."""
        if self.recipe.lora is not None and self.recipe.lora.dropout:
            self.model.train(on)

    def save(self) -> None:
        """Write the checkpoint: one process does, or each its part of sharded weights."""
        meta = {
            "step": self.step,
            "batches": self.batches,
            "steps": self.total_steps,
            "seed": self.run_settings.seed,
            "model": _shape(self.recipe),
        }
        if isinstance(self.masters, ShardedWeights):
            save_sharded(self.folder, meta, self.masters.state(), self.world)
        elif self.world.is_main:
            save_checkpoint(self.folder, meta | {"weights": self.masters.state()})

    def _end(self, losses: list[float], speed: float, reporter: Reporter) -> TrainingResult:
        self.save()
        if self.run_settings.curve_every and not self._due(self.run_settings.curve_every):
            self._measure_curve(reporter)
        self.masters.refresh(averaged=True)
        self._export()
        if self.world.is_main:
            self._draw(reporter)
        self.world.wait()
        return TrainingResult(
            step=self.step, finished=self.step >= self.total_steps, losses=losses, folder=self.folder,
            model_folder=self.folder / (EXPORT if self.recipe.lora is None else ADAPTER), tokens_per_second=speed,
        )  # fmt: skip

    def _measure_curve(self, reporter: Reporter) -> None:
        """Score and steps at several step budgets, of the weights as they are now; added to the run's curve file."""
        self.masters.refresh(averaged=True)
        if not self.world.is_main:
            return
        settings, lora = self.run_settings, self.recipe.lora
        folder, adapter = self.folder / "curve", None
        if lora is None:
            export_model(self.model, folder, self.recipe.data.tokenizer)
        else:
            save_adapter(collect(self.masters.trained(), lora), folder, base_model=settings.init)
            folder, adapter = Path(settings.init), folder
        points = of_folder(
            folder, settings.curve_task, settings.curve_items, settings.curve_budgets,
            device=self.device.type, adapter=adapter,
        )  # fmt: skip
        append_curve(self.folder / CURVE, self.step, points)
        best = points[-1]
        reporter.say(
            f"step {self.step}: {best.share:.0%} of {best.total} solved at {best.mean_steps:.1f} steps a canvas"
        )

    def _export(self) -> None:
        """Write a model folder, or the folder of an adapter. Every process takes part, one writes."""
        lora = self.recipe.lora
        if lora is not None:
            adapter = collect(self.masters.trained(), lora)
            if self.world.is_main:
                base = self.run_settings.init
                save_adapter(adapter, self.folder / ADAPTER, base_model=base, dropout=lora.dropout)
            return
        model = self.model
        if isinstance(self.masters, ShardedWeights):
            whole = self.masters.whole(torch.bfloat16)
            if not self.world.is_main:
                return
            model = Transformer(self.recipe.model).to(torch.bfloat16)
            model.load_state_dict(whole)
        if self.world.is_main:
            export_model(model, self.folder / EXPORT, self.recipe.data.tokenizer)

    def _draw(self, reporter: Reporter) -> None:
        """The run's pictures."""
        try:
            draw_losses(self.folder / LOG, self.folder / PICTURE)
            if (self.folder / CURVE).exists():
                first, last = read_curve(self.folder / CURVE)
                draw({"before": first, "after": last}, self.folder / "curve.png", title=self.run_settings.curve_task)
        except SettingError as error:
            reporter.say(str(error))

    def _columns(self) -> list[str]:
        names = self.meters.names()
        return ["step", "tokens_per_second", "learning_rate", *names, *(f"heldout_{name}" for name in names)]


def _shape(recipe: Recipe) -> dict[str, Any]:
    """The numbers of model and adapter as plain values, for comparing a checkpoint with a recipe."""
    shape = dataclasses.asdict(recipe.model)
    del shape["extra"]
    if recipe.lora is not None:
        shape |= {"lora_rank": recipe.lora.rank, "lora_targets": recipe.lora.targets}
        if recipe.lora.quantization:
            shape["lora_quantization"] = recipe.lora.quantization
    return {name: list(value) if isinstance(value, tuple) else value for name, value in shape.items()}


def train(recipe: Recipe, *, resume: bool = False, device: str = "auto", quiet: bool = False) -> TrainingResult:
    """Run a recipe. Raises `SettingError`, `CheckpointError` for a wrong folder to resume, and `TrainingError`."""
    return Trainer(recipe, device=device, quiet=quiet).run(resume=resume)
