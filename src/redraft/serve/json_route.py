"""Endpoints with a JSON body, which is read outside the event loop if it is large."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from redraft.serve.faults import Fault
from redraft.serve.http import ClientGone
from redraft.serve.service import parse
from redraft.text.strict_json import loads, no_json

if TYPE_CHECKING:
    from fastapi._compat import ModelField


class JsonRoute(APIRoute):
    """An endpoint whose body is read by `loads`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of its requests."""
        handle, shape = super().get_route_handler(), self.body_field

        async def strictly(request: Request) -> Response:
            try:
                return await handle(_JsonRequest(request, shape))
            except _UnreadError as error:
                raise error.reason from None

        return strictly


class _UnreadError(HTTPException):
    """Brings the reason why a body was not read through FastAPI, which takes all others for wrong JSON."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(400)
        self.reason = reason


class _JsonRequest(Request):
    def __init__(self, request: Request, shape: ModelField | None) -> None:
        super().__init__(request.scope, request.receive)
        self._shape = shape

    async def json(self) -> Any:
        """Return the body in its shape; FastAPI leaves an instance of the shape as it is."""
        assert self._shape is not None, "only an endpoint that takes a body reads it"
        try:
            return await parse(self, partial(_shaped, await self.body(), self._shape))
        except (Fault, ClientGone, RequestValidationError) as error:
            raise _UnreadError(error) from None


def _shaped(body: bytes, shape: ModelField) -> Any:
    try:
        given = loads(body)
    except (ValueError, RecursionError) as error:
        raise Fault(400, f"The body is not valid JSON: {no_json(error)}.", code="invalid_json") from error
    read, errors = shape.validate(given, {}, loc=("body",))
    if errors:
        raise RequestValidationError(errors, body=given)
    return read
