"""What a run remembers of its steps: the loss of each, and how long they took."""

from __future__ import annotations

import math
import time
from statistics import median_low

import torch
from torch import Tensor

from redraft.errors import TrainingError
from redraft.train.distributed import World


class StepLosses:
    """The losses of all steps from step `first` on. New ones stay on the device, so that steps never wait for it."""

    def __init__(self, first: int, world: World) -> None:
        self._first, self._world = first, world
        self._waiting: list[Tensor] = []
        self.values: list[float] = []
        """Those that are numbers already, means of all processes."""

    def add(self, loss: Tensor) -> None:
        """Remember the loss [] of the next step."""
        self._waiting.append(loss)

    def settle(self) -> None:
        """Make numbers of the new losses. Every process has to ask; waits for the device.

        Raises `TrainingError` at the first that is not finite.
        """
        if not self._waiting:
            return
        values = self._world.mean_(torch.stack(self._waiting)).tolist()
        self._waiting.clear()
        for value in values:
            if not math.isfinite(value):
                step = self._first + len(self.values)
                raise TrainingError(f"The loss of step {step} (from 0) is {value}; the last checkpoint was kept.")
            self.values.append(value)


class Pace:
    """Seconds per step from one report to the next, without what the reports themselves take."""

    def __init__(self, step: int) -> None:
        self._laps: list[float] = []
        self.restart(step)

    def restart(self, step: int) -> None:
        """Measure from here, where step `step` is over, on."""
        self._step, self._since = step, time.perf_counter()

    def lap(self, step: int) -> float:
        """Seconds per step from `restart` to here, where the later step `step` is over."""
        self._laps.append((time.perf_counter() - self._since) / (step - self._step))
        return self._laps[-1]

    @property
    def is_steady(self) -> bool:
        """Whether a lap is over behind the first one, which compiling is part of."""
        return len(self._laps) > 1

    @property
    def median(self) -> float:
        """Of all laps; infinite before the first."""
        return median_low(self._laps) if self._laps else math.inf
