"""What a run remembers of its steps: the loss of each, and how long they took."""

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
"""What is to come is expected from so many laps."""


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
    """Seconds per step from one report to the next, without what is done aside: reports, curves, checkpoints."""

    def __init__(self, step: int) -> None:
        """Measures from here, where step `step` is over, on."""
        self._laps: list[float] = []
        self._asides: dict[str, list[float]] = {}
        self._step, self._since = step, time.perf_counter()

    def lap(self, step: int) -> float:
        """Seconds per step of the lap that ends here, where the later step `step` is over; the next one begins."""
        now = time.perf_counter()
        self._laps.append((now - self._since) / (step - self._step))
        self._step, self._since = step, now
        return self._laps[-1]

    @contextmanager
    def aside(self, name: str, every: int) -> Iterator[None]:
        """What is done inside is no part of a lap; `name` is done again every so many steps."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._since += seconds
        self._asides.setdefault(name, []).append(seconds / every)

    @property
    def expected(self) -> float:
        """Seconds that a next step will take, with its share of what is done aside."""
        return median_low(self._laps[-_RECENT:]) + sum(map(median_low, self._asides.values()))

    @property
    def is_steady(self) -> bool:
        """Whether a lap is over behind the first one, which compiling is part of."""
        return len(self._laps) > 1

    @property
    def median(self) -> float:
        """Of all laps; infinite before the first."""
        return median_low(self._laps) if self._laps else math.inf
