"""What ends a run early (time, Ctrl-C or SIGTERM), and how many steps fit into its time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from redraft.interruption import handling
from redraft.train.distributed import World
from redraft.train.recipe import RunSettings

_MOST_STEPS = 8
"""The most steps after which several processes agree on whether to stop."""
_FIT_UNTIL = 0.8
"""The number of steps is fitted to the time until this share of them is done."""


class RunLimits:
    """The limits of one run. Its time starts now; all processes always get the same answers.

    `max_seconds` is the time since this start of the run, `fit_seconds` the time of all its starts.
    """

    def __init__(self, settings: RunSettings, world: World) -> None:
        self._settings, self._world = settings, world
        self._started = time.perf_counter()
        self._interrupted = False
        self._steps, self._agree_after, self._agreed = 0, 1, 0.0
        self.earlier = 0.0
        """Seconds of earlier starts, as far as a checkpoint records them."""

    @property
    def seconds(self) -> float:
        """Seconds since this start of the run."""
        return time.perf_counter() - self._started

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, Ctrl-C and SIGTERM count as reaching a limit, so the checkpoint comes after a whole number of steps.

        A second Ctrl-C does not wait for that: it raises `KeyboardInterrupt`, as it would outside. A second SIGTERM
        waits, since clusters send it to `torchrun`, which passes it on, and to its processes.
        """
        with handling(signal.SIGINT, self._interrupt), handling(signal.SIGTERM, self._interrupt):
            yield

    def _interrupt(self, number: int, _: object) -> None:
        if self._interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._interrupted = True

    def reached(self) -> bool:
        """Whether to stop after this step. Every process has to ask after every step.

        Several agree once a second, and after every step that takes longer: `torchrun` gives them 30 seconds after
        Ctrl-C, in which a checkpoint and an export have to be written, too. More often would keep GPUs waiting.
        """
        limit = self._settings.max_seconds
        late = self._interrupted or (bool(limit) and self.seconds > limit)
        if self._world.size == 1:
            return late
        self._steps += 1  # since they agreed
        if self._steps < self._agree_after:
            return False
        pace = self._world.largest(self.seconds - self._agreed) / self._steps
        self._agree_after = max(1, int(1 / max(pace, 1 / _MOST_STEPS)))
        self._steps, self._agreed = 0, self.seconds
        return self._world.any(late)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM came."""
        return self._interrupted

    @property
    def reason(self) -> str:
        """Which limit was reached."""
        return "by interrupt" if self._interrupted else "by the time limit"

    def fitted_steps(self, step: int, total: int, pace: float) -> int:
        """How many steps fit into the run's `fit_seconds` if those after `step` take `pace` seconds each.

        Returns `total` unchanged if the recipe does not ask for it, and near the end of a run.
        """
        if not self._settings.fit_seconds or step > _FIT_UNTIL * total:
            return total
        left = int((self._settings.fit_seconds - self.earlier - self.seconds) / pace)
        return step + int(-self._world.largest(-left))  # the slowest process decides
