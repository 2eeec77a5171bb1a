"""What ends a run before its steps are over, time or Ctrl-C, and how many steps its time leaves room for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from redraft.train.distributed import World
from redraft.train.recipe import RunSettings

_AGREE_EVERY = 8
"""Several processes ask each other whether to stop this often, in steps."""
_FIT_UNTIL = 0.8
"""The number of steps is fitted to the time until this share of them is over."""


class RunLimits:
    """The limits of one run. Its time runs from here; several processes always get the same answers.

    `max_seconds` is the time since this start of the run, `fit_seconds` that of all its starts.
    """

    def __init__(self, settings: RunSettings, world: World) -> None:
        self._settings, self._world = settings, world
        self._started = time.perf_counter()
        self._interrupted = False
        self.earlier = 0.0
        """Seconds of earlier starts, as far as a checkpoint tells of them."""

    @property
    def seconds(self) -> float:
        """Since this start of the run."""
        return time.perf_counter() - self._started

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, Ctrl-C is a limit that is reached, so that the checkpoint is a whole number of steps.

        Who presses it again does not want to wait for that: it raises `KeyboardInterrupt`, as outside.
        Python tells only its main thread of Ctrl-C; in others nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def reached(self, step: int) -> bool:
        """Whether to stop behind step `step`. Every process has to ask behind every step."""
        limit = self._settings.max_seconds
        late = self._interrupted or (bool(limit) and self.seconds > limit)
        if self._world.size == 1:
            return late
        return step % _AGREE_EVERY == 0 and self._world.any(late)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupted

    @property
    def reason(self) -> str:
        """What a limit that is reached was reached by."""
        return "by interrupt" if self._interrupted else "by the time limit"

    def fitted_steps(self, step: int, total: int, pace: float) -> int:
        """How many steps the run's `fit_seconds` leave room for if those behind `step` take `pace` seconds each.

        They stay `total` if the recipe does not ask for it, and near the end of a run.
        """
        if not self._settings.fit_seconds or step > _FIT_UNTIL * total:
            return total
        left = int((self._settings.fit_seconds - self.earlier - self.seconds) / pace)
        return step + int(-self._world.largest(-left))  # the slowest process decides
