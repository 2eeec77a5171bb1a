"""The application in front of the replicas: it passes each request on to one, and streams the answer back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from redraft.serve.auth import Keys
from redraft.serve.body import read_body
from redraft.serve.faults import Fault, busy, stopping
from redraft.serve.gate import fault_response, request_id, with_cors, with_id
from redraft.serve.http import ClientGone, until_disconnect
from redraft.serve.logs import log_request
from redraft.serve.metrics import CONTENT_TYPE, Metrics
from redraft.serve.replicas.choosing import Chooser
from redraft.serve.replicas.merging import merged
from redraft.serve.replicas.replica import PROBE, Replica
from redraft.serve.settings import ServeSettings

_NOT_PASSED_ON = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
                  b"upgrade", b"expect", b"date"}  # fmt: skip
"""Headers that concern one connection, or that every sender adds itself."""
_OWN_NAME = "router"
"""Label of the router's own metrics, in place of a replica's number: they count the requests it refuses itself."""


class Router:
    """ASGI application. Reading requests, and refusing what they ask for, is left to the replicas."""

    def __init__(self, replicas: Sequence[Replica], settings: ServeSettings) -> None:
        self._replicas, self._limit, self._keys = replicas, settings.max_body, Keys(settings.keys)
        self._origins, self._reading_limit = settings.origins, settings.reading_limit
        self._chooser = Chooser()
        self._own = Metrics(lambda: None)
        # As many as may be open at the replicas, plus the same number of health checks and the like.
        self._held, self._most = 0, 2 * settings.max_open * len(replicas)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers, began = dict(scope["headers"]), time.perf_counter()
        try:
            with self._admit():
                # No body is kept for a client that the replica will turn away.
                body = await read_body(headers, receive, self._limit) if self._keys.accept(headers) else b""
                await until_disconnect(Request(scope, receive), self._answer(scope, receive, send, body))
        except ClientGone:
            pass
        except Fault as fault:  # only raised before an answer begins
            id = request_id(headers)
            await self._tell(fault_response(fault, scope["path"], id), id, scope, receive, send)
            self._own.refused.labels(fault.reason).inc()
            log_request(id, scope["method"], scope["path"], fault.status, time.perf_counter() - began, {})

    async def _tell(self, answer: Response, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer of the router's own, with the headers that a replica's gate adds."""

        async def sent(message: Message) -> None:
            await send(with_id(message, id) if message["type"] == "http.response.start" else message)

        await with_cors(answer, self._origins)(scope, receive, sent)

    @contextmanager
    def _admit(self) -> Iterator[None]:
        """Hold a request while the context is open; raises a `Fault` if as many as may be are held."""
        if self._held >= self._most:
            raise busy(f"{self._held} requests are open, as many as this server takes; try again later.")
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        request = _request(scope, body)
        if scope["path"] == "/metrics":
            id = request_id(dict(scope["headers"]))
            await self._tell(await self._metrics(request), id, scope, receive, send)
            return
        async with self._asked(request, body) as answer:
            await _pass_on(answer, send, self._reading_limit)

    @asynccontextmanager
    async def _asked(self, request: httpx.Request, body: bytes) -> AsyncIterator[httpx.Response]:
        """Get the answer of the chosen replica, or of another if that one cannot be reached."""
        able = self._able()
        while able:
            number = self._chooser.choose(body, [replica.opened for replica in self._replicas], able)
            replica = self._replicas[number]
            with replica.working():
                try:
                    answer = await replica.transport.handle_async_request(request)
                except httpx.ConnectError:
                    replica.ready = False
                    able.remove(number)
                    continue
                except httpx.TransportError:
                    raise Fault(502, "The replica working on this request has ended.", code="replica_ended") from None
                try:
                    yield answer
                finally:
                    await answer.aclose()
                return
        raise stopping()

    def _able(self) -> list[int]:
        """The replicas that take requests; if there are none, those that can say why."""
        ready = [number for number, replica in enumerate(self._replicas) if replica.ready]
        return ready or [number for number, replica in enumerate(self._replicas) if replica.alive]

    async def _metrics(self, request: httpx.Request) -> Response:
        """Merge the metrics of the router and all replicas that answer in time, or return the first refusal."""
        request.extensions["timeout"] = PROBE
        texts = {_OWN_NAME: self._own.text().decode()}
        answers = await asyncio.gather(*(_whole(replica, request) for replica in self._replicas))
        for number, answer in enumerate(answers):
            if answer is None:
                continue
            if answer.status_code != 200:
                return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
            texts[str(number)] = answer.text
        up = {str(number): answer is not None for number, answer in enumerate(answers)}
        return Response(merged(texts, up), media_type=CONTENT_TYPE)


async def _whole(replica: Replica, request: httpx.Request) -> httpx.Response | None:
    """Read a replica's whole answer; None if the replica has ended, is still starting, or takes too long."""
    try:
        answer = await replica.transport.handle_async_request(request)
        await answer.aread()
    except httpx.TransportError:
        return None
    return answer


def _request(scope: Scope, body: bytes) -> httpx.Request:
    """Build the request that goes to a replica. Raises a `Fault` for a target that is no path."""
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    headers = [pair for pair in scope["headers"] if pair[0] not in (*_NOT_PASSED_ON, b"content-length")]
    if not any(name == b"host" for name, _ in headers):  # as HTTP/1.0 has it
        headers.append((b"host", b"localhost"))
    try:
        url = httpx.URL(scheme="http", host="replica", raw_path=target)
    except httpx.InvalidURL as error:
        raise Fault(404, f"There is no {scope['path']} on this server.") from error
    return httpx.Request(scope["method"], url, headers=headers, content=body)


async def _pass_on(answer: httpx.Response, send: Send, limit: float) -> None:
    """Stream a replica's answer. If it breaks off, or the client does not read it in `limit` seconds, this one breaks
    off too."""
    headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _NOT_PASSED_ON]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    with suppress(httpx.TransportError, TimeoutError):
        async with asyncio.timeout(limit):
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
