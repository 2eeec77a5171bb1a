"""The table [run]: where a run begins and writes, how it computes, what it measures, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from redraft.errors import SettingError
from redraft.eval.curve import TASKS
from redraft.train.recipe.checks import Checks

TrainingDtype = Literal["float32", "bfloat16"]
DTYPES: tuple[TrainingDtype, ...] = get_args(TrainingDtype)
_SHORT: dict[str, TrainingDtype] = {"fp32": "float32", "bf16": "bfloat16"}
"""Their short names, which `redraft.load` takes, too."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How the run is carried out."""

    out: str
    """Folder for checkpoint, log, picture and the exported model."""
    init: str = ""
    """Model folder with the weights that the run begins with; empty draws fresh ones."""
    seed: int = 0
    dtype: TrainingDtype = "float32"
    compile: bool = False
    capture: bool = True
    """With `compile` on a GPU: launch the passes of a step as one CUDA graph, if the recipe allows it."""
    shard: bool = False
    """Spread weights, gradients and optimizer state over the processes (`fully_shard`) instead of copying them."""
    recompute: bool = False
    """Keep only each layer's input for the backward pass and rerun the layer: less memory, a third more work."""
    log_every: int = 10
    tensorboard: bool = False
    """Log for TensorBoard as well, into the folder `board`."""
    evaluate_every: int = 0
    """0 never evaluates on held-out batches; otherwise every source has to hold out documents."""
    evaluate_batches: int = 1
    curve_every: int = 0
    """Measure score and steps of `curve_task` at each of `curve_budgets` before training, at this interval, and at the
    end; 0 means never."""
    curve_task: str = "sudoku"
    """A task that `redraft eval curve` knows, on items that come with Redraft."""
    curve_items: int = 16
    curve_budgets: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 32, 48)
    checkpoint_every: int = 0
    """0 writes a checkpoint only when the run ends."""
    max_seconds: float = 0.0
    """Stop cleanly, with a checkpoint, after this time; 0 means no limit. It starts again when a run is resumed."""
    fit_seconds: float = 0.0
    """Reduce the optimizer's steps to what fits into this time, so that the learning rate falls to its end; 0 keeps
    them. A resumed run has as much time as its checkpoint left."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _SHORT.get(str(self.dtype), self.dtype))
        checks = Checks(self, "run.")
        checks.that(bool(self.out), "out", "a folder")
        checks.that(0 <= self.seed < 2**31, "seed", "between 0 and 2^31 - 1")
        checks.one_of(DTYPES, "dtype")
        checks.one_of(TASKS, "curve_task")
        budgets = self.curve_budgets
        rising = len(budgets) > 0 and budgets[0] >= 1 and sorted(set(budgets)) == list(budgets)
        checks.that(rising, "curve_budgets", "increasing numbers of at least 1")
        if self.curve_every and self.shard:
            raise SettingError(
                "run.curve_every cannot be combined with run.shard; use `redraft eval curve` afterwards."
            )
        checks.at_least(1, "log_every", "evaluate_batches", "curve_items")
        checks.at_least(0, "evaluate_every", "curve_every", "checkpoint_every", "max_seconds", "fit_seconds")
        checks.has_effect(self.compile, "capture", "without compile")
        checks.has_effect(self.evaluate_every > 0, "evaluate_batches", "without evaluate_every")
        for name in ("curve_task", "curve_items", "curve_budgets"):
            checks.has_effect(self.curve_every > 0, name, "without curve_every")
