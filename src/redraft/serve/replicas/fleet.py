"""All replicas of a server: their GPUs, start, health and end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from redraft.errors import EngineError, SettingError
from redraft.llm import LLM
from redraft.model.placement import resolve_device
from redraft.serve import logs
from redraft.serve.replicas.replica import Replica
from redraft.serve.replicas.router import Router
from redraft.serve.server import CLOSING_SECONDS, TICK_SECONDS, run_server
from redraft.serve.settings import ServeSettings

_WATCH_SECONDS = 1.0
_VISIBLE, _THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


def environments(device: str, count: int, gpus: int = 1) -> list[dict[str, str]]:
    """Return the environment of each of `count` replicas: its own `gpus` GPUs, or its share of the processors.

    Raises `SettingError` if `device` is a single GPU or is not available, or if there are too few GPUs.
    """
    if device not in ("auto", "cuda") and resolve_device(device).type == "cuda":
        raise SettingError(f"--device {device} is a single GPU, but each of {count} replicas needs its own; give cuda.")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        share = max(1, (os.cpu_count() or 1) // count)
        return [{} if _THREADS in os.environ else {_THREADS: str(share)} for _ in range(count)]
    there = torch.cuda.device_count()
    if there < count * gpus:
        each = "a GPU" if gpus == 1 else f"{gpus} GPUs"
        raise SettingError(
            f"--replicas is {count}; each replica needs {each}, but this machine has {there} CUDA devices."
        )
    visible = [name.strip() for name in os.environ.get(_VISIBLE, ",".join(map(str, range(there)))).split(",")]
    return [{_VISIBLE: ",".join(visible[first : first + gpus])} for first in range(0, count * gpus, gpus)]


def serve_replicas(
    settings: ServeSettings,
    load: Callable[[], LLM],
    listener: socket.socket,
    places: Sequence[Mapping[str, str]],
    *,
    ready: Callable[[str], None] = lambda device: None,
) -> None:
    """Like `serve`, but with a replica in each of the environments `places`."""
    with TemporaryDirectory(prefix="redraft-") as directory:  # only this user may enter it
        fleet = _Fleet(
            [
                Replica(replace(settings, replica=number), load, Path(directory) / str(number), place)
                for number, place in enumerate(places)
            ]
        )

        async def run() -> None:
            ready(await fleet.loaded())
            await fleet.watch()

        logs.configure()
        try:
            run_server(Router(fleet.replicas, settings), run, fleet.stop, settings, listener)
        finally:
            fleet.kill()


class _Fleet:
    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self._stopping = False

    async def loaded(self) -> str:
        """Wait until every replica has loaded, and return their devices. Raises the error of one that failed."""
        devices = await asyncio.gather(*map(_loaded, self.replicas))
        return f"{len(devices)} x {devices[0]}"

    async def watch(self) -> None:
        """Look after every replica. Raises `EngineError` once none is left."""
        await asyncio.gather(*(self._look_after(number, replica) for number, replica in enumerate(self.replicas)))
        raise EngineError("Every replica has ended; the log says why.")

    async def _look_after(self, number: int, replica: Replica) -> None:
        """Keep asking a replica whether it takes requests. Restart it when it ends, and give up if it fails to load."""
        while not self._stopping:
            if replica.alive:
                replica.ready = await replica.takes_requests()
                await asyncio.sleep(_WATCH_SECONDS)
                continue
            self._tell("replica_lost", number, why=str(replica.reported()))
            replica.start()
            try:
                await _loaded(replica)
            except Exception as error:
                self._tell("replica_given_up", number, why=str(error))
                return
            self._tell("replica_back", number)

    def _tell(self, event: str, number: int, **facts: str) -> None:
        """Write a line to the log, unless the server was told to stop."""
        if not self._stopping:
            logs.logger.error("", extra={"facts": {"event": event, "replica": number, **facts}})

    async def stop(self, grace: float) -> None:
        """Let open requests finish within `grace` seconds; with a grace of 0, end them at once."""
        self._stopping = True
        for number in (signal.SIGTERM,) if grace else (signal.SIGTERM, signal.SIGINT):
            for replica in self.replicas:
                replica.tell(number)
        deadline = time.monotonic() + grace + CLOSING_SECONDS
        while any(replica.alive for replica in self.replicas) and time.monotonic() < deadline:
            await asyncio.sleep(TICK_SECONDS)

    def kill(self) -> None:
        """Kill the remaining processes."""
        for replica in self.replicas:
            replica.kill()


async def _loaded(replica: Replica) -> str:
    """Wait until a replica has loaded, and return its device. Raises its error if it failed."""
    while (said := replica.reported()) is None:
        await asyncio.sleep(TICK_SECONDS)
    if isinstance(said, Exception):
        raise said
    replica.ready = True
    return said
