"""A run's record of its steps: the loss of each, and how long they took."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median_low

import torch
from torch import Tensor

from redraft.errors import TrainingError
from redraft.train.distributed import World

_RECENT = 5
"""The number of recent laps from which the future pace is estimated."""


class StepLosses:
    """The losses of all steps from step `first` on; new ones stay on the device, so steps never wait for it."""

    def __init__(self, first: int, world: World) -> None:
        self._first, self._world = first, world
        self._waiting: list[Tensor] = []
        self.values: list[float] = []
        """The losses that have been fetched, as means over all processes."""

    def add(self, loss: Tensor) -> None:
        """Record the loss [] of the next step."""
        self._waiting.append(loss)

    def settle(self) -> None:
        """Fetch the new losses. Every process has to call it; waits for the device.

        Raises `TrainingError` at the first loss that is not finite.
        """
        if not self._waiting:
            return
        values = self._world.mean_(torch.stack(self._waiting)).tolist()
        self._waiting.clear()
        for value in values:
            if not math.isfinite(value):
                step = self._first + len(self.values)
                raise TrainingError(
                    f"The loss of step {step} (counted from 0) is {value}; the last checkpoint was kept."
                )
            self.values.append(value)


class Pace:
    """Seconds per step from one report to the next, not counting side work: reports, curves, checkpoints."""

    def __init__(self, step: int) -> None:
        """Start measuring now, with step `step` completed; `self.step` is the one at which the present lap began."""
        self._laps: list[float] = []
        self._asides: dict[str, list[float]] = {}
        self.step, self._since = step, time.perf_counter()

    def lap(self, step: int) -> float:
        """Seconds per step of the lap that ends now, with the later step `step` completed; the next lap begins."""
        now = time.perf_counter()
        self._laps.append((now - self._since) / (step - self.step))
        self.step, self._since = step, now
        return self._laps[-1]

    @contextmanager
    def aside(self, name: str, every: int) -> Iterator[None]:
        """Side work inside this block does not count for the lap; `name` recurs after `every` steps."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._since += seconds
        self._asides.setdefault(name, []).append(seconds / every)

    @property
    def expected(self) -> float:
        """Expected seconds for the next step, including its share of side work."""
        return median_low(self._laps[-_RECENT:]) + sum(map(median_low, self._asides.values()))

    @property
    def is_steady(self) -> bool:
        """Whether a lap has been completed after the first one, which includes compiling."""
        return len(self._laps) > 1

    @property
    def median(self) -> float:
        """The median over all laps; infinite before the first."""
        return median_low(self._laps) if self._laps else math.inf
