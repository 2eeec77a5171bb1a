"""The gate every request passes: its id, key, size, place among the open requests, and log line."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redraft.serve.auth import Keys
from redraft.serve.body import read_body
from redraft.serve.faults import Fault, fault_of
from redraft.serve.http import CLIENT_GONE, ClientGone, Json
from redraft.serve.logs import log_failure, log_request
from redraft.serve.service import Pool, Service

OPEN_PATHS = ("/", "/health", "/ready", "/openapi.json")
"""Paths that need no key; the page asks for one itself."""


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service, pools: Mapping[str, Pool]) -> None:
        """`pools` says, for each path that takes a body, in which pool of open requests it counts."""
        self._app, self._service, self._pools = app, service, pools
        self._keys = Keys(service.settings.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # handled as GET; the server leaves the body out when it writes to the socket
            scope = {**scope, "method": "GET"}
        context = _RequestContext(scope, receive, send)
        scope.setdefault("state", {})["context"] = context
        try:
            await self._enter(context, scope)
        except ClientGone:
            context.status = CLIENT_GONE
        except Fault as fault:
            self._service.count_refusal(fault)
            await context.answer(fault)
        except Exception as error:
            log_failure(context.id, error)
            await context.answer(fault_of(error))
        finally:
            self._record(context, scope, method)

    async def _enter(self, context: _RequestContext, scope: Scope) -> None:
        path = scope["path"]
        self._check_host(context.headers)
        if path not in OPEN_PATHS and not self._keys.accept(context.headers):
            raise Fault(
                401, "The API key is missing or wrong.", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
            )
        pool = self._pools.get(path)
        if pool is None or scope["method"] != "POST":
            await self._answer(context, scope, keep=False)
            return
        async with self._service.admit(pool):
            await self._answer(context, scope, keep=True)

    async def _answer(self, context: _RequestContext, scope: Scope, *, keep: bool) -> None:
        """Read the body, then answer; `keep` the body only for requests that a pool has admitted."""
        await self._service.until_shutdown(context.read(self._service.settings.max_body, keep=keep))
        await self._app(scope, context.receive, context.send)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Check the Host header: without keys, any web site could reach a local server by DNS rebinding."""
        settings = self._service.settings
        if self._keys.required or not settings.is_local:
            return
        names = settings.local_names
        if host_name(headers.get(b"host", b"localhost").decode("latin-1")) not in names:
            raise Fault(403, f"This server answers to {', '.join(names)} only.", code="wrong_host")

    def _record(self, context: _RequestContext, scope: Scope, method: str) -> None:
        if context.gone:
            context.status = CLIENT_GONE
            self._service.metrics.cancelled.inc()
        # Only existing paths become labels, since clients can make up any others.
        known = scope["path"] if scope["path"] in (*OPEN_PATHS, *self._pools) else "other"
        endpoint = getattr(scope.get("route"), "path", known)
        self._service.metrics.requests.labels(endpoint, str(context.status)).inc()
        self._service.metrics.seconds.labels(endpoint).observe(context.seconds)
        log_request(context.id, method, scope["path"], context.status, context.seconds, context.facts)


class _RequestContext:
    """What is known of one request: its id, body, status and the facts of its log line."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = request_id(self.headers)
        self.status = CLIENT_GONE
        self.facts: dict[str, Any] = {}
        self.size = 0
        """Bytes of the body, once read."""
        self._scope, self._receive, self._send = scope, receive, send
        self._body: bytes | None = None
        self._ended = False
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self._started

    @property
    def gone(self) -> bool:
        """Whether the client left before the answer was complete."""
        return self.status == CLIENT_GONE or not self._ended

    async def read(self, limit: int, *, keep: bool) -> None:
        """Read the body, at most `limit` bytes; keep it only if `keep`."""
        self._body = await read_body(self.headers, self._receive, limit, keep=keep)
        self.size = len(self._body)

    async def receive(self) -> Message:
        """Give the application the body that was read, then the client's further messages."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send the application's message, adding the request's id to the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = with_id(message, self.id)
        elif not message.get("more_body"):
            self._ended = True
        await self._send(message)

    async def answer(self, fault: Fault) -> None:
        """Answer with an error, unless an answer has already begun."""
        if self.status == CLIENT_GONE:
            await fault_response(fault, self._scope["path"], self.id)(self._scope, self._receive, self.send)


def fault_response(fault: Fault, path: str, id: str) -> Json:
    """Return an error in the shape that the endpoint's clients expect."""
    body = fault.anthropic(id) if path.startswith("/v1/messages") else fault.openai()
    return Json(body, fault.status, dict(fault.headers))


def with_id(message: Message, id: str) -> Message:
    """Add a request's id to the headers of the message that begins its answer."""
    # OpenAI's and Anthropic's clients read different names.
    own = [(b"x-request-id", id.encode()), (b"request-id", id.encode())]
    return {**message, "headers": [*message.get("headers", ()), *own]}


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of other web `origins` read what `app` answers (CORS)."""
    if not origins:
        return app
    cors = CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # OpenAI's and Anthropic's clients each send a dozen of their own
        expose_headers=["x-request-id", "request-id", "retry-after", "x-should-retry"],
    )
    # Browsers ask before a public page reaches a local server. Older versions of Starlette take no such argument.
    cors.allow_private_network = True
    return cors


_WHOLE_URL = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE)


def with_whole_urls(app: ASGIApp) -> ASGIApp:
    """Let `app` answer requests for whole URLs, as some proxies send them, whose host counts (RFC 9112, 3.2.2)."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if found := _WHOLE_URL.fullmatch(scope.get("raw_path", b"")):
            host, path = found.groups(b"/")
            headers = [(b"host", host), *(pair for pair in scope["headers"] if pair[0] != b"host")]
            scope = {**scope, "path": unquote(path.decode("ascii")), "raw_path": path, "headers": headers}
        await app(scope, receive, send)

    return answer


def host_name(host: str) -> str:
    """The name in a Host header, in lower case, without brackets, port or trailing dot."""
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    elif host.count(":") > 1:  # an IPv6 address without brackets
        name = host
    else:
        name = host.partition(":")[0]
    return name.lower().removesuffix(".")


def request_id(headers: dict[bytes, bytes]) -> str:
    """The client's own request id if it is safe to log, else a new one."""
    text = headers.get(b"x-request-id", b"").decode("latin-1")
    return text if 0 < len(text) <= 128 and text.isascii() and text.isprintable() else f"req_{secrets.token_hex(12)}"
