"""The OpenAPI document: FastAPI's, with this server's own error bodies and statuses added."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERRORS = {
    "400": "A field is unknown, missing, or cannot be honoured; the message names it.",
    "401": "The API key is missing or wrong.",
    "403": "The Host header does not name an address of this server.",
    "404": "There is no such model.",
    "408": "The time limit passed.",
    "413": "The body is too large.",
    "429": "Too many requests are open; Retry-After says when to come back.",
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


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document, which is built once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = made["components"]["schemas"]
        schemas |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for path, operations in made["paths"].items():
            for operation in operations.values():
                _describe(operation["responses"], path)
        app.openapi_schema = made
    return app.openapi_schema


def _describe(responses: dict[str, Any], path: str) -> None:
    responses.pop("422", None)
    responses["200"].pop("content", None)
    name = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    responses |= {status: {"description": text, "content": content} for status, text in _ERRORS.items()}
