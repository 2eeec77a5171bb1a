"""Errors as clients see them: one class, OpenAI's and Anthropic's bodies, and the fault for each exception."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redraft.errors import InputError, QueueFullError

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
RETRY_SECONDS = 1
MOST_CHARACTERS = 1000
"""Longest error message."""


@dataclass(eq=False)
class Fault(Exception):
    """An HTTP error. `param` names the field at fault; `code` is for programs."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Shorten the message and `param`: both may quote what the client sent."""
        self.message = f"{self.message[:MOST_CHARACTERS]} ..." if len(self.message) > MOST_CHARACTERS else self.message
        self.param = self.param and self.param[:MOST_CHARACTERS]

    @property
    def kind(self) -> str:
        """The error `type` that both families of clients read."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")

    @property
    def reason(self) -> str:
        """What the log and the metrics call it."""
        return self.code or self.kind

    def openai(self) -> dict[str, Any]:
        """OpenAI's error body, which has no `type` of its own for 'not found'."""
        kind = "invalid_request_error" if self.status == 404 else self.kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self, request_id: str) -> dict[str, Any]:
        """Anthropic's error body, in which only the message can name the field at fault."""
        details = {"details": {"error_code": self.code}} if self.code else {}
        named = self.param is None or self.param in self.message
        message = self.message if named else f"{self.param}: {self.message}"
        error = {"type": self.kind, "message": message} | details
        return {"type": "error", "error": error, "request_id": request_id}


def loading() -> Fault:
    """The model is not loaded yet."""
    return Fault(503, "The model is still loading.", code="loading", headers={"Retry-After": str(RETRY_SECONDS)})


def stopping() -> Fault:
    """The server is shutting down."""
    return Fault(503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": str(RETRY_SECONDS)})


def busy(message: str, retry_after: float = RETRY_SECONDS) -> Fault:
    """The queue is full; it may have room in `retry_after` seconds."""
    return Fault(429, message, code="queue_full", headers={"Retry-After": str(max(1, math.ceil(retry_after)))})


def too_large(limit: int) -> Fault:
    """The body has more than `limit` bytes."""
    return Fault(413, f"The body is larger than the {limit} bytes that this server takes.", code="body_too_large")


def compressed(coding: str) -> Fault:
    """The body has a Content-Encoding."""
    sentence = f"The body has Content-Encoding {coding!r}; this server takes only bodies that are not compressed."
    return Fault(415, sentence, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})


def timed_out(seconds: float) -> Fault:
    """The request's own time limit, or the server's, has passed."""
    # Clients retry a 408 unless told not to; another try would take just as long.
    headers = {"x-should-retry": "false"}
    return Fault(408, f"The answer was not finished within {seconds:g} seconds.", code="timeout", headers=headers)


def fault_of(error: Exception) -> Fault:
    """Return the fault for an exception. Only messages of `InputError`s are written for users; others stay private."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, QueueFullError):
        return busy(str(error), error.retry_after)
    if isinstance(error, InputError):
        return Fault(400, str(error), error.field, error.code or "invalid_value")
    return Fault(500, "The server failed while working on this request; its log has the request id.", code="internal")


def validation_fault(errors: Sequence[Mapping[str, Any]], body: Any) -> Fault:
    """Return the clearest of Pydantic's errors about `body`, as one sentence that names the field."""
    # An unknown field is the clearest error. Of a union's other errors, one per member, it is the furthest one.
    unknown = (error for error in errors if error["type"] == "extra_forbidden")
    worst = next(unknown, None) or max(errors, key=lambda error: _progress(error, body))
    path = _path(worst, body)
    if "union_tag" in worst["type"]:  # what is wrong is the field that says which member it is
        path.append(worst["ctx"]["discriminator"].strip("'"))
    name = _field(path)
    match worst["type"]:
        case "extra_forbidden":
            return Fault(400, f"Unknown field {name!r}.", name, "unknown_field")
        case "missing" | "union_tag_not_found":
            sentence = f"The field {name!r} is required." if name else "A JSON body is required."
            return Fault(400, sentence, name, "missing_field")
        case "union_tag_invalid":
            tag, allowed = worst["ctx"]["tag"], worst["ctx"]["expected_tags"]
            return Fault(400, f"{name} is {tag[:80]!r}; it must be one of {allowed}.", name, "invalid_value")
        case _ if name is None and not isinstance(body, Mapping):
            sentence = "The body must be a JSON object, sent with Content-Type: application/json."
            return Fault(400, sentence, code="invalid_json")
        case kind:
            code = kind if "unsupported" in kind else "invalid_value"
            inside = (worst.get("ctx") or {}).get("field")  # which of the contradicting fields is at fault
            param = _field([*path, inside]) if inside else name
            return Fault(400, f"{name or 'The body'}: {worst['msg']}.", param, code)


def _progress(error: Mapping[str, Any], body: Any) -> tuple[bool, int, list[int]]:
    """How far a member of a union got: whether the value is of its kind, how deep it got, and past how many items."""
    path, kind = _path(error, body), error["type"]
    of_kind = kind != "literal_error" and not kind.endswith("_type")
    return of_kind, len(path), [part for part in path if isinstance(part, int)]


def _path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    """Where in `body` an error lies: Pydantic's location without the names of union members."""
    path: list[str | int] = []
    loc = [part for i, part in enumerate(error["loc"]) if not (i == 0 and part == "body")]
    for i, part in enumerate(loc):
        last = i == len(loc) - 1
        if isinstance(body, Mapping):
            absent = part not in body and not (last and error["type"] == "missing")
            if absent or _is_tag(error, body, *loc[i : i + 2]):
                continue
            path.append(str(part))
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            path.append(part)
            body = body[part]
    return path


def _is_tag(error: Mapping[str, Any], body: Mapping[Any, Any], part: str | int, following: str | int = "") -> bool:
    """Whether `part` of a location names the union member that `body` was read as, not a field of it."""
    if part not in (body.get("type"), body.get("role")):
        return False
    if following == "":  # either the whole member is wrong, or its field of the same name
        return error["type"] not in ("missing", "extra_forbidden") and error["input"] == body
    inside = body.get(part)
    return not isinstance(inside, Mapping) or (following in body and following not in inside)


def _field(path: Sequence[str | int]) -> str | None:
    """Turn a path into a name like `messages[0].content`; None if it is the whole body's."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text if path else None
