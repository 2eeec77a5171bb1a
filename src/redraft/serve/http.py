"""Responses: JSON that can hold any text, server-sent events, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


CLIENT_GONE = 499
"""The status in logs and metrics for a request whose client went away."""


class ClientGone(Exception):
    """The client has gone, so nobody would read the answer."""


def dumps(content: Any) -> str:
    """Return compact JSON."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Json(Response):
    """A JSON body. Characters that UTF-8 cannot encode, which a request may have contained, become question marks."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the body."""
        return dumps(content).encode("utf-8", "replace")


_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters that JSON leaves unescaped but many clients, such as Python's `splitlines`, take for line ends."""


def sse_event(data: Any, name: str | None = None) -> str:
    """Format one server-sent event, whose data stays on one line for every client."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else dumps(data).translate(_LINE_ENDS)}\n\n"


class EventStream(Response):
    """Server-sent events from a generator, which is closed as soon as the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[str],
        close: Callable[[], Awaitable[None]] | None = None,
        *,
        limit: float | None = None,
    ) -> None:
        """`close` ends the work that makes the events. A client that does not read is cut off after `limit` seconds."""
        # Ask proxies not to buffer events.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._close, self._limit = events, close, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events run out or the client leaves."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            try:
                with suppress(asyncio.CancelledError, OSError):  # the socket may break while an event is being written
                    await sending
            finally:
                await self._events.aclose()
                if self._close is not None:
                    await self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for text in self._events:
            await send({"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(request: HttpRequest, work: Awaitable[T]) -> T:
    """Await `work`, after the request body was read; cancel it and raise `ClientGone` if the client goes away."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
