"""The OpenAPI document: FastAPI's, with this server's own error bodies, statuses and keys added."""

from __future__ import annotations

import threading
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from redraft.serve.gate import OPEN_PATHS
from redraft.serve.http import dumps
from redraft.serve.settings import ServeSettings

_ERRORS = {
    "400": "A field is unknown, missing, or cannot be honoured; the message names it.",
    "401": "The API key is missing or wrong.",
    "403": "The Host header does not name an address of this server.",
    "404": "There is no such model.",
    "408": "The time limit passed.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "429": "Too many requests are open; Retry-After says when to come back.",
    "500": "The server failed; its log says why.",
    "502": "The copy of the model that worked on this request has ended.",
    "503": "The model is loading, or the server is shutting down.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object", "properties": {"error_code": {"type": "string"}}},
            },
        },
    },
}


_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class Document:
    """The document as JSON. It is made once, when first asked for, as that takes half a second."""

    def __init__(self, app: FastAPI, settings: ServeSettings) -> None:
        self._app, self._settings = app, settings
        self._lock = threading.Lock()
        self._text: bytes | None = None

    def text(self) -> bytes:
        """Return the document; any thread may call this."""
        with self._lock:
            if self._text is None:
                self._text = dumps(_made(self._app, self._settings)).encode()
            return self._text


def _made(app: FastAPI, settings: ServeSettings) -> dict[str, Any]:
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = made["components"]["schemas"]
    schemas |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if settings.keys:
        made["components"]["securitySchemes"] = _KEYS
    for path, operations in made["paths"].items():
        for operation in operations.values():
            if settings.keys and path not in OPEN_PATHS:
                operation["security"] = [{name: []} for name in _KEYS]
            _describe(operation["responses"], path, _errors(path, operation, settings))
    return made


def _errors(path: str, operation: dict[str, Any], settings: ServeSettings) -> set[str]:
    """The statuses with which an operation may fail."""
    found: set[str] = set()
    if settings.keys:
        found |= set() if path in OPEN_PATHS else {"401"}
    elif settings.is_local:
        found |= {"403"}
    if settings.replica is not None:  # the router's own
        found |= {"429", "502", "503"}
    if "requestBody" in operation:  # all of these name a model
        return found | {"400", "404", "408", "413", "415", "429", "500", "503"}
    if path.startswith("/v1/models"):
        return found | {"503"} | ({"404"} if "{" in path else set())
    return found | ({"503"} if path == "/ready" else set())


def _describe(responses: dict[str, Any], path: str, errors: set[str]) -> None:
    responses.pop("422", None)
    responses["200"].pop("content", None)
    name = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    responses |= {status: {"description": _ERRORS[status], "content": content} for status in sorted(errors)}
