"""One copy of the model: a whole server in its own process, listening on a socket file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

from redraft.errors import EngineError, RedraftError
from redraft.llm import LLM
from redraft.serve.server import serve
from redraft.serve.settings import ServeSettings

_SPAWN = multiprocessing.get_context("spawn")
"""A new interpreter: CUDA does not survive a fork."""
_IDLE_SECONDS = 10
"""How long a connection stays open without a request; the server would close it after three times as long."""
PROBE = httpx.Timeout(5.0).as_dict()
"""How long a replica may take to report its health."""


class Replica:
    """A replica's process and the connection to it. The fleet keeps `ready` up to date, the router `opened`."""

    def __init__(self, settings: ServeSettings, load: Callable[[], LLM], path: Path, environment: Mapping[str, str]):
        """Start the process, with `environment` added to this one's, listening on a socket file at `path`."""
        self._settings, self._load, self._path, self._environment = settings, load, path, environment
        self.ready = False
        """Whether it takes requests, according to its latest report."""
        self.opened = 0
        """Number of requests it is working on."""
        self.transport = httpx.AsyncHTTPTransport(
            uds=str(path), limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS)
        )
        self.start()

    def start(self) -> None:
        """Start a process; any previous one has ended."""
        self.ready = False
        # The socket file exists before the process does, so that no connection comes too early.
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        listener.listen(self._settings.max_open)
        self._report, theirs = _SPAWN.Pipe()
        given = (self._settings, self._load, listener, theirs)
        self._process = _SPAWN.Process(target=_run, args=given, daemon=True)
        with _with_environment(self._environment), _without_ctrl_c():
            self._process.start()
        # Close our copies, so that anyone waiting on them notices when the process ends.
        listener.close()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.is_alive()

    def reported(self) -> str | Exception | None:
        """Return its next report: the device of the model, or why it has ended; None if there is nothing new."""
        try:
            return self._report.recv() if self._report.poll() else None
        except EOFError:
            return EngineError("A replica's process has ended; its last output says why.")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count one more request while the context is open."""
        self.opened += 1
        try:
            yield
        finally:
            self.opened -= 1

    async def takes_requests(self) -> bool:
        """Ask whether it takes requests. If it is too busy to reply, its last answer stands."""
        request = httpx.Request("GET", "http://localhost/ready", extensions={"timeout": PROBE})
        try:
            answer = await self.transport.handle_async_request(request)
            await answer.aread()
            return answer.status_code == 200
        except httpx.TimeoutException:
            return self.ready
        except httpx.TransportError:
            return False

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal: SIGTERM lets open requests finish, SIGINT does not."""
        if self.alive and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()


def _run(settings: ServeSettings, load: Callable[[], LLM], listener: socket.socket, report: Connection) -> None:
    """Run in the new process."""
    os.setpgrp()  # a terminal's Ctrl-C goes to the router only, which decides what to do
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that came before is forgotten; the server will have a handler
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_leave_with_router, args=(report,), daemon=True).start()
    try:
        ended = serve(settings, load, listener, ready=report.send)
    except RedraftError as error:
        report.send(error)
    else:
        if not ended:
            os._exit(0)  # Python's normal exit would abort in the middle of a thread


def _leave_with_router(report: Connection) -> None:
    """Stop when the router ends. It never sends anything here, so `recv` returns only then."""
    try:
        report.recv()
    except EOFError:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A process that is started inside does not get Ctrl-C until it says so: it would write how far its imports are."""
    resource_tracker.ensure_running()  # starting it later would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _with_environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
