"""Reads a request's whole body, up to a size limit."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from redraft.serve.faults import Fault, compressed, too_large
from redraft.serve.http import ClientGone

BODY_SECONDS = 30.0
"""How long a client may take to send a body."""
_DRAIN = 64 * 2**20
"""Bytes beyond the limit that are still read from a body, so that its client gets to see the error."""


async def read_body(headers: dict[bytes, bytes], receive: Receive, limit: int, *, keep: bool = True) -> bytes:
    """Read a body of at most `limit` bytes; return it, or nothing unless `keep`.

    Raises a `Fault` if it is compressed, too large or too slow, and `ClientGone` if the client disconnects.
    """
    length = headers.get(b"content-length", b"")
    announced = int(length) if length.isdigit() and len(length) < 20 else 0
    if announced > limit + _DRAIN:
        raise too_large(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read(receive, limit, keep)
    except TimeoutError:
        raise Fault(408, "The request's body did not arrive in time.", code="timeout") from None
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if body and coding not in (b"", b"identity"):
        raise compressed(coding.decode("latin-1"))
    return body


async def _read(receive: Receive, limit: int, keep: bool) -> bytes:
    data, size = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        size += len(message.get("body", b""))
        if keep and size <= limit:
            data += message.get("body", b"")
        # The rest is read and dropped, but not forever.
        if not message.get("more_body") or size > limit + _DRAIN:
            break
    if size > limit:
        raise too_large(limit)
    return bytes(data)
