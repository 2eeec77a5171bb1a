"""The table [optimizer]: how weights follow their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from redraft.train.recipe.checks import Checks

MAX_RATE = 1000.0
"""Far above any learning rate that trains; float32, in which AdamW's steps are, ends at 3.4e38."""
Schedule = Literal["cosine", "wsd"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW, its learning-rate schedule, clipping, and an optional running average of the weights."""

    steps: int
    learning_rate: float
    schedule: Schedule = "cosine"
    """`cosine` falls from the peak to the end; `wsd` holds the peak and falls linearly over the last `decay_share`."""
    warmup: int = 0
    decay_share: float = 0.2
    final_share: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Applied to matrices only."""
    clip: float = 1.0
    """The largest norm of all gradients together; 0 turns clipping off."""
    average: float = 0.0
    """Decay of a running average of the weights, which is evaluated and exported in their place; 0 turns it off."""

    def __post_init__(self) -> None:
        checks = Checks(self, "optimizer.")
        checks.at_least(1, "steps")
        checks.that(0 < self.learning_rate <= MAX_RATE, "learning_rate", f"above 0 and at most {MAX_RATE:g}")
        checks.above_zero("eps")
        checks.one_of(SCHEDULES, "schedule")
        checks.that(0 <= self.warmup <= self.steps, "warmup", "between 0 and steps")
        checks.positive_shares("decay_share")
        checks.has_effect(self.schedule == "wsd", "decay_share", f"with schedule {self.schedule!r}")
        checks.shares("final_share")
        betas = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        checks.that(betas, "betas", "two numbers of at least 0 and below 1")
        checks.below_one("average")
        checks.at_least(0, "weight_decay", "clip")
