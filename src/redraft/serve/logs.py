"""Structured logs: one JSON object a line, on standard error. No prompt and no answer unless that was asked for."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from redraft.serve.faults import Fault, fault_of

logger = logging.getLogger("redraft.serve")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The record's facts behind time and level."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", None) or {"message": record.getMessage()}
        return json.dumps({"time": time, "level": record.levelname.lower(), **facts}, ensure_ascii=True, default=str)


def configure(level: str = "info") -> None:
    """Send log lines to standard error; uvicorn's own go the same way."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("redraft.serve", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers, target.propagate = [handler], False
        target.setLevel(level.upper() if name == "redraft.serve" else "WARNING")


def log_request(request_id: str, method: str, path: str, status: int, seconds: float, facts: Mapping[str, Any]) -> None:
    """One line per request; probes are shown to the curious only."""
    quiet = path in ("/health", "/ready", "/metrics")
    line = {"event": "request", "id": request_id, "method": method, "path": path, "status": status}
    logger.log(
        logging.DEBUG if quiet else logging.INFO, "", extra={"facts": {**line, "seconds": round(seconds, 4), **facts}}
    )


def told_fault(request_id: str, error: Exception) -> Fault:
    """What a request's client is told of an error; what it is not told goes to the log."""
    fault = fault_of(error)
    if fault.status >= 500 and not isinstance(error, Fault):
        log_failure(request_id, error)
    return fault


def log_failure(request_id: str, error: Exception) -> None:
    """Where an unexpected error came from: places in the code, and no values that a user sent."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    facts = {"event": "failure", "id": request_id, "error": type(error).__name__, "places": places}
    logger.error("", extra={"facts": facts})
