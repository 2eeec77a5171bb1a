"""All replicas of a server: how many GPUs there are for them, their beginning, their health and their end."""

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


def environments(device: str, count: int) -> list[dict[str, str]]:
    """What each of `count` replicas finds in its environment: a GPU of its own, or its share of the processors.

    Raises `SettingError` if `device` is one GPU or nothing that is here, or if there are too few.
    """
    if device not in ("auto", "cuda") and resolve_device(device).type == "cuda":
        raise SettingError(f"--device {device} is one GPU, and each of {count} replicas takes its own; give cuda.")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        share = max(1, (os.cpu_count() or 1) // count)
        return [{} if _THREADS in os.environ else {_THREADS: str(share)} for _ in range(count)]
    there = torch.cuda.device_count()
    if there < count:
        raise SettingError(f"--replicas is {count}; this machine has {there} CUDA devices, and each replica needs one.")
    visible = os.environ.get(_VISIBLE, ",".join(map(str, range(there)))).split(",")
    return [{_VISIBLE: name.strip()} for name in visible[:count]]


def serve_replicas(
    settings: ServeSettings,
    load: Callable[[], LLM],
    listener: socket.socket,
    places: Sequence[Mapping[str, str]],
    *,
    ready: Callable[[str], None] = lambda device: None,
) -> None:
    """Serve a replica in each of `places`, which are environments, until SIGINT or SIGTERM; else as `serve`."""
    with TemporaryDirectory(prefix="redraft-") as directory:  # nobody else may enter it
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
            run_server(Router(fleet.replicas, settings), run, fleet.stop, settings.grace, listener)
        finally:
            fleet.kill()


class _Fleet:
    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self._stopping = False

    async def loaded(self) -> str:
        """Wait until every replica has its model, and say where they are. Raises what went wrong with one."""
        devices = await asyncio.gather(*map(_loaded, self.replicas))
        return f"{len(devices)} x {devices[0]}"

    async def watch(self) -> None:
        """Look after every replica. Raises `EngineError` once none is left."""
        await asyncio.gather(*(self._look_after(number, replica) for number, replica in enumerate(self.replicas)))
        raise EngineError("Every replica has ended; the log says why.")

    async def _look_after(self, number: int, replica: Replica) -> None:
        """Ask a replica again and again whether it takes requests. One that has ended is started anew, until it does
        not load any more."""
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
        """A line in the log, unless the server was told to stop."""
        if not self._stopping:
            logs.logger.error("", extra={"facts": {"event": event, "replica": number, **facts}})

    async def stop(self, grace: float) -> None:
        """Let open requests end, `grace` seconds at most; without any, at once."""
        self._stopping = True
        for number in (signal.SIGTERM,) if grace else (signal.SIGTERM, signal.SIGINT):
            for replica in self.replicas:
                replica.tell(number)
        deadline = time.monotonic() + grace + CLOSING_SECONDS
        while any(replica.alive for replica in self.replicas) and time.monotonic() < deadline:
            await asyncio.sleep(TICK_SECONDS)

    def kill(self) -> None:
        """End what is left."""
        for replica in self.replicas:
            replica.kill()


async def _loaded(replica: Replica) -> str:
    """Wait until a replica has its model, and say where. Raises what went wrong."""
    while (said := replica.reported()) is None:
        await asyncio.sleep(TICK_SECONDS)
    if isinstance(said, Exception):
        raise said
    replica.ready = True
    return said
