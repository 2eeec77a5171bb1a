"""A server's life: it listens, loads, serves, and when it is told to stop it lets open requests end."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from redraft.errors import RedraftError, why
from redraft.llm import LLM
from redraft.serve import logs
from redraft.serve.app import create_app
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings

_CLOSING_SECONDS = 5
"""For the last bytes of streams that were ended, after the grace period."""
_TICK_SECONDS = 0.05
_SWITCH_SECONDS = 5e-4
"""How long a thread may have to wait for the interpreter; the model's needs it back after every operation."""


class ListenError(RedraftError):
    """The address cannot be listened on."""


def listen(settings: ServeSettings) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends short answers at once (TCP_NODELAY) only on sockets whose protocol is said to be TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
    ready: Callable[[LLM], None] = lambda llm: None,
) -> bool:
    """Serve until SIGINT or SIGTERM. Calls `ready` once requests are taken; raises what `load` raised.

    Returns whether its threads have ended: if not, one still loads the model or reads a request that was given up.
    """
    logs.configure()
    sys.setswitchinterval(_SWITCH_SECONDS)
    service = Service(settings)
    server = _Server(service, load, ready)
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
    return not service.threads.busy


class _Server(uvicorn.Server):
    def __init__(self, service: Service, load: Callable[[], LLM], ready: Callable[[LLM], None]) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_CLOSING_SECONDS,
            )
        )
        self._service, self._load, self._ready = service, load, ready
        self.failure: BaseException | None = None
        self._loading: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second Ctrl-C does not wait for open requests. A server that was told to stop has not failed."""
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen first, so that health checks are answered, then load."""
        await super().startup(sockets)
        self._loading = asyncio.create_task(self._load_model())

    async def _load_model(self) -> None:
        try:
            await self._service.load(self._load)
            self._ready(self._service.llm)
            await self._service.rehearse()
        except Exception as error:
            self.failure = error
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests end while new ones hear a clear no; only then close the connections."""
        stopping = asyncio.create_task(self._service.stop(self._service.settings.grace))
        while not stopping.done() and not self.force_exit:
            await asyncio.sleep(_TICK_SECONDS)
        if not stopping.done():
            stopping.cancel()
            await self._service.stop(0)
        await super().shutdown(sockets)
        if self._loading is not None:
            with suppress(asyncio.CancelledError):
                self._loading.cancel()
                await self._loading
