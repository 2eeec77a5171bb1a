"""The ASGI application: endpoints, error bodies, CORS, and the gate around all of it."""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

import redraft
from redraft.errors import RedraftError
from redraft.serve import plain_routes, routes, two_sided_routes
from redraft.serve.faults import Fault, fault_of, validation_fault
from redraft.serve.gate import Gate, fault_response, with_cors
from redraft.serve.http import CLIENT_GONE, ClientGone
from redraft.serve.logs import client_fault
from redraft.serve.openapi import Document
from redraft.serve.service import POOLS, Pool, Service

_ROUTERS = (routes.router, two_sided_routes.router, plain_routes.router)


def create_app(service: Service) -> ASGIApp:
    """Build the whole application. The caller loads the model into `service`, before or while it runs."""
    # FastAPI's documentation pages load scripts from other hosts, and its document holds up all requests: both are off.
    # A redirect to a path without its slash would name whatever host the client did, without TLS behind a proxy.
    app = FastAPI(
        title="Redraft", version=redraft.__version__, openapi_url=None, redirect_slashes=False
    )  # fmt: skip
    app.state.service, app.state.document = service, Document(app, service.settings)
    for router in _ROUTERS:
        app.include_router(router)
    for kind in (Fault, RedraftError):
        app.add_exception_handler(kind, _fault)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(Exception, _fault)
    app.add_exception_handler(HTTPException, _http)
    # The gate's own errors can be read elsewhere too.
    return with_cors(Gate(app, service, _pools()), service.settings.origins)


def _pools() -> dict[str, Pool]:
    """Map each path that belongs to a pool to it; the pool is the tag of its route."""
    found = [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {route.path: pool for route in found for pool in POOLS if pool in route.tags}


async def _fault(request: Request, error: Exception) -> Response:
    error = request.app.state.service.explained(error)
    if isinstance(error, RedraftError):
        return _respond(request, client_fault(request.state.context.id, error))
    return _respond(request, fault_of(error))  # the gate logs it


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _respond(request, validation_fault(error.errors(), error.body))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: f"There is no {request.url.path} on this server{_instead(request.url.path)}.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    message = sentences.get(error.status_code, str(error.detail))
    return _respond(request, Fault(error.status_code, message, headers=error.headers or {}))


def _instead(path: str) -> str:
    """The path that was probably meant: OpenAI's clients expect `/v1` in their base URL, Anthropic's add it, and who
    joins a URL by hand may write a slash too many."""
    paths = {route.path for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)}
    path = re.sub("/+", "/", path).removesuffix("/")
    likely = (path, f"/v1{path}", path.removeprefix("/v1"))  # so a second /v1 is left out, too
    meant = next((other for other in likely if other in paths), None)
    return "" if meant is None else f"; there is {meant}"


def _respond(request: Request, fault: Fault) -> Response:
    request.app.state.service.count_refusal(fault)
    return fault_response(fault, request.url.path, request.state.context.id)
