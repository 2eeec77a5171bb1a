"""A server before it is ready: who is let in, and how it is stopped while it loads and warms up."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from redraft.engine.runner import EagerRunner
from redraft.engine.settings import EngineSettings
from redraft.llm import LLM
from redraft.serve.faults import Fault
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings


def test_nobody_is_let_in_before_the_engine_is_warm(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the model's own thread, where everything runs that touches it."""
    service = Service(ServeSettings(names=("random",), engine=EngineSettings(slots=2)))
    seen = []
    monkeypatch.setattr(
        EagerRunner, "warm_up", lambda self: seen.append((service.phase, threading.current_thread().name))
    )

    async def life() -> None:
        await service.load(lambda: llm)
        assert service.phase == "ready"
        await service.stop(0)

    asyncio.run(life())
    assert seen == [("loading", "redraft-engine")]


def test_a_stop_does_not_wait_for_the_warm_up_and_knows_that_it_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(ServeSettings(names=("random",), engine=EngineSettings(slots=2)))
    begun, over = threading.Event(), threading.Event()

    def warm_up(self: EagerRunner) -> None:
        begun.set()
        assert over.wait(120)

    monkeypatch.setattr(EagerRunner, "warm_up", warm_up)

    async def life() -> None:
        loading = asyncio.create_task(service.load(lambda: llm))
        assert await asyncio.to_thread(begun.wait, 60)
        await asyncio.wait_for(service.stop(0), 60)
        assert (service.phase, service.busy) == ("stopping", True)
        over.set()
        await loading
        assert service.phase == "stopping"  # though it has loaded now
        await service.watch()  # an end that was asked for is no failure
        await service.stop(0)
        assert (service.phase, service.busy) == ("stopping", False)

    asyncio.run(life())


def test_who_could_not_know_of_a_stop_yet_is_still_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no request is open that a stop would wait for; with no time for open ones it does not wait at all."""
    monkeypatch.setattr("redraft.serve.service.LINGER_SECONDS", 60)
    service = Service(ServeSettings(names=("random",)))

    async def life() -> None:
        waits = asyncio.create_task(service.stop(30))
        await asyncio.sleep(0.1)
        assert not waits.done()
        with pytest.raises(Fault, match="shutting down"):
            await service.admit("answers").__aenter__()
        waits.cancel()
        await asyncio.wait_for(service.stop(0), 60)

    asyncio.run(life())


LOADS_WHEN_TOLD = """
import sys
import redraft.loading

loaded = redraft.loading.load

def load(*place, **how):
    sys.stdin.readline()
    return loaded(*place, **how)

redraft.loading.load = load
from redraft.cli.main import main
sys.exit(main(["serve", "--model", sys.argv[1], "--port", "0"]))
"""


def test_it_answers_503_while_it_loads(folder: Path) -> None:
    command = [sys.executable, "-c", LOADS_WHEN_TOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            first = _ready(server.pid, until=503)
            assert (first.json()["error"]["code"], first.headers["retry-after"]) == ("loading", "1")
            assert server.stdin is not None
            server.stdin.write("load\n")
            server.stdin.flush()
            _ready(server.pid, until=200)
        finally:
            server.kill()


WARMS_UP_FOR_EVER = """
import atexit, os, sys
from redraft.engine.runner import EagerRunner

def warm_up(self):
    os.write(1, b"warming up\\n")
    while True:
        pass

EagerRunner.warm_up = warm_up
atexit.register(os._exit, 134)  # as a thread that is in the middle of CUDA then would
from redraft.cli.main import main
sys.exit(main(["serve", "--model", sys.argv[1], "--port", "0"]))
"""


LOADS_FOR_EVER = """
import sys, torch
import redraft.loading

def load(*place, **how):
    print("loading", flush=True)
    while True:
        torch.ones(300, 300) @ torch.ones(300, 300)

redraft.loading.load = load
from redraft.cli.main import main
sys.exit(main(["serve", "--port", "0"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("script", "doing"), [(LOADS_FOR_EVER, "loading"), (WARMS_UP_FOR_EVER, "warming up")])
def test_a_server_can_be_stopped_before_it_is_ready(folder: Path, script: str, doing: str, number: int) -> None:
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"{doing}\n"
            server.send_signal(number)
            _, said = server.communicate(timeout=120)
            assert (server.returncode, said) == (0, "")
        finally:
            server.kill()


def _ready(server: int, until: int) -> httpx.Response:
    """The answer of /ready once it has this status, of a process that may not listen yet."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ports = [c.laddr.port for c in psutil.Process(server).net_connections() if c.status == "LISTEN"]
        if ports and (answer := httpx.get(f"http://127.0.0.1:{ports[0]}/ready")).status_code == until:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"/ready never was {until}")
