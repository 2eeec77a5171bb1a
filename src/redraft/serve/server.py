"""A server's life: it listens, loads and serves; when told to stop, it lets open requests finish."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from redraft.errors import RedraftError, why
from redraft.llm import LLM
from redraft.serve import logs
from redraft.serve.app import create_app
from redraft.serve.gate import with_whole_urls
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings

CLOSING_SECONDS = 5
"""Time after the grace period for sending the last bytes of streams that were ended."""
KEEP_SECONDS = 30
"""How long a connection stays open without a request."""
TICK_SECONDS = 0.05
_LONGEST_MILLISECONDS = 2**31 - 1
_SWITCH_SECONDS = 5e-4
"""How long a thread may wait for the interpreter; the model's thread needs it back after every operation."""


class ListenError(RedraftError):
    """The server cannot listen on this address."""


def listen(settings: ServeSettings) -> socket.socket:
    """Return a listening socket; port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends short answers at once (TCP_NODELAY) only on sockets whose protocol is given as TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # its connections inherit it
        # One whose client takes nothing for so long breaks, though there is something to send. Closing it would wait.
        milliseconds = min(int(1000 * settings.reading_limit), _LONGEST_MILLISECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ListenError(f"Cannot listen on {settings.host}:{settings.port}: {why(error)}.") from error
    listener.set_inheritable(True)
    return listener


def serve(
    settings: ServeSettings,
    load: Callable[[], LLM],
    listener: socket.socket,
    *,
    ready: Callable[[str], None] = lambda device: None,
) -> bool:
    """Serve until SIGINT or SIGTERM. Once the server takes requests, `ready` is called with the device.

    Raises any error of `load`, and `EngineError` when the engine has stopped after repeated failures: a process that
    can no longer answer should be restarted by a supervisor.

    Returns whether all threads have ended: if not, one is still loading or warming up the model, or reading an
    abandoned request.
    """
    service = Service(settings)

    async def run() -> None:
        await service.load(load)
        # What has been loaded stays. Looking through it again and again would hold up all requests, a third of a second
        # each time, whenever one has many small parts.
        gc.collect()
        gc.freeze()
        ready(str(service.llm.model.device))
        await service.rehearse()
        await service.watch()

    logs.configure(settings.replica)
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        run_server(create_app(service), run, service.stop, settings, listener)
    finally:
        gc.unfreeze()  # what is frozen is not freed when the process ends, of which libraries complain
    return not service.busy


def run_server(
    app: ASGIApp,
    run: Callable[[], Coroutine[Any, Any, None]],
    stop: Callable[[float], Coroutine[Any, Any, None]],
    settings: ServeSettings,
    listener: socket.socket,
) -> None:
    """Answer with `app` until SIGINT or SIGTERM, while `run` loads and watches; raises any error of `run`.

    Then `stop` gets the seconds of grace, or none after a second SIGINT, before connections are closed.
    """
    _allow_open_files()
    server = _Server(with_whole_urls(app), run, stop, settings)
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure


def _allow_open_files() -> None:
    """Allow as many connections, each of which is an open file, as the system lets a process have."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit, macOS no such number
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Connection(H11Protocol):
    """Closes when no whole head of a request has come for a while: a connection is a file, of which there are few."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for another request; it may have come already and begins here."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore a wish for another protocol without uvicorn's advice to install one: there is none here on purpose."""

    def _wait(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(KEEP_SECONDS, self._close_after, self.cycle)

    def _close_after(self, last: RequestResponseCycle | None) -> None:
        """Close, unless a request has begun since the `last` one."""
        if self.cycle is last:
            self.transport.close()


class _Server(uvicorn.Server):
    def __init__(
        self,
        app: ASGIApp,
        run: Callable[[], Coroutine[Any, Any, None]],
        stop: Callable[[float], Coroutine[Any, Any, None]],
        settings: ServeSettings,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                http=_Connection,
                timeout_keep_alive=KEEP_SECONDS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )
        self._run, self._stop, self._grace = run, stop, settings.grace
        self._is_replica = settings.replica is not None
        self.failure: BaseException | None = None
        self._running: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second Ctrl-C does not wait for open requests. Stopping on a signal is not a failure.

        The router sends SIGINT to a replica only after a second one. Python may handle it before a SIGTERM before it.
        """
        self.force_exit |= sig == signal.SIGINT and (self.should_exit or self._is_replica)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen first, so that health checks get an answer; then load."""
        await super().startup(sockets)
        self._running = asyncio.create_task(self._run_or_fail())

    async def _run_or_fail(self) -> None:
        try:
            await self._run()
        except Exception as error:
            if not self.should_exit:
                self.failure = error
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish and refuse new ones; only then close the connections."""
        stopping = asyncio.create_task(self._stop(self._grace))
        while not stopping.done() and not self.force_exit:
            await asyncio.sleep(TICK_SECONDS)
        if not stopping.done():
            stopping.cancel()
            await self._stop(0)
        await super().shutdown(sockets)
        if self._running is not None:
            with suppress(asyncio.CancelledError):
                self._running.cancel()
                await self._running
