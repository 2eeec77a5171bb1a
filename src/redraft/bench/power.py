"""What a GPU draws while it does the same thing again and again, by the energy counter of NVIDIA's management library.

`bench.clock` samples clock and power of work that runs once; here work goes on until the card is in a steady state.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from redraft.bench.gpu import milliseconds
from redraft.errors import SettingError

WARM_SECONDS = 0.3
"""How long work goes on before it is measured: the driver takes some tenths of a second to settle on a clock."""
REPLAY_MS = 10.0
"""About how long one graph of launches takes: longer than a read of the counter, which takes the host milliseconds."""
MOST_LAUNCHES = 2000
SM_CLOCK = 1
"""NVML_CLOCK_SM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One launch among many: seconds, joules, and the clock of the card's multiprocessors at the end."""

    seconds: float
    joules: float
    mhz: int = 0

    @property
    def watts(self) -> float:
        return self.joules / self.seconds

    def without(self, other: Draw) -> Draw:
        """What is left of this work when a part of it, measured by itself, is taken away."""
        return Draw(seconds=self.seconds - other.seconds, joules=self.joules - other.joules, mhz=self.mhz)


class PowerMeter:
    """A card's energy counter. Raises `SettingError` if the library or the counter is not there."""

    def __init__(self, device: torch.device) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise SettingError(
                "Energy is measured by NVIDIA's management library (libnvidia-ml), and this machine has none."
            ) from None
        self._card = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self._card))
        self.joules()

    def joules(self) -> float:
        """Energy since the driver was loaded; the counter moves every tenth of a second or so."""
        return self._read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong()) / 1e3

    def mhz(self) -> int:
        """The present clock of the multiprocessors."""
        return self._read("nvmlDeviceGetClockInfo", ctypes.c_uint(), SM_CLOCK)

    def limit_watts(self) -> float:
        """The power limit in force."""
        return self._read("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint()) / 1e3

    def watts_during(self, work: Callable[[], object], seconds: float) -> float:
        """The mean power while `work` is repeated for some seconds, from one move of the counter to another."""
        started, first = now, joules = self._next_move(work)
        while now - started < seconds:
            now, joules = self._next_move(work)
        return (joules - first) / (now - started)

    def _next_move(self, work: Callable[[], object]) -> tuple[float, float]:
        """Repeat `work` until the counter moves: when, in seconds, and to how many joules."""
        before = self.joules()
        while True:
            work()
            joules = self.joules()
            if joules != before:
                return time.perf_counter(), joules

    def _read(self, function: str, value: ctypes.c_uint | ctypes.c_ulonglong, *arguments: int) -> int:
        self._call(function, self._card, *arguments, ctypes.byref(value))
        return value.value

    def _call(self, function: str, *arguments: object) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise SettingError(f"This card's energy cannot be measured: {function} returned {code}.")


def idle_watts(meter: PowerMeter, seconds: float) -> float:
    """The mean power of a card that has just worked and does nothing for some seconds."""
    torch.cuda.synchronize()
    return meter.watts_during(lambda: time.sleep(REPLAY_MS / 1e3), seconds)


def steady_draw(meter: PowerMeter, run: Callable[[], object], seconds: float) -> Draw:
    """The draw of one `run` on the device, launched from a CUDA graph for some seconds after a warm-up.

    The next replay is queued before the last one is waited for, so that the device never is without work.
    """
    for _ in range(2):  # compiles and chooses what it needs outside a capture
        run()
    few = 8
    one = milliseconds(_captured(run, few).replay, count=3, warm=1) / few
    launches = max(1, min(MOST_LAUNCHES, round(REPLAY_MS / one)))
    graph, queued, replays = _captured(run, launches), [torch.cuda.Event(), torch.cuda.Event()], 0

    def replay() -> None:
        nonlocal replays
        graph.replay()
        queued[replays % 2].record()
        replays += 1
        queued[replays % 2].synchronize()

    meter.watts_during(replay, WARM_SECONDS)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    replays = 0
    watts, mhz = meter.watts_during(replay, seconds), meter.mhz()
    end.record()
    end.synchronize()
    each = begin.elapsed_time(end) / 1e3 / (replays * launches)
    return Draw(seconds=each, joules=watts * each, mhz=mhz)


def _captured(run: Callable[[], object], launches: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()
    return graph
