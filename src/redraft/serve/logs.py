"""Structured logs: one JSON object per line, on standard error. Prompts and answers are logged only on request."""

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
    def __init__(self, replica: int | None) -> None:
        super().__init__()
        self._common = {} if replica is None else {"replica": replica}

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as JSON: time, level and the replica's number, then its facts."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", None) or {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts = {**facts, **_whence(record.exc_info[1])}
        line = {"time": time, "level": record.levelname.lower(), **self._common, **facts}
        return json.dumps(line, ensure_ascii=True, default=str)


def configure(replica: int | None = None) -> None:
    """Send log lines to standard error, including those of the engine, uvicorn and asyncio.

    With several processes, each line holds the number of the `replica` that wrote it.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(replica))
    for name in ("redraft", "uvicorn", "asyncio"):
        target = logging.getLogger(name)
        target.handlers, target.propagate = [handler], False
        target.setLevel("WARNING")
    logger.setLevel("INFO")


def log_request(request_id: str, method: str, path: str, status: int, seconds: float, facts: Mapping[str, Any]) -> None:
    """Log one line per request; probes are logged at a level that `configure` hides."""
    quiet = path in ("/health", "/ready", "/metrics")
    line = {"event": "request", "id": request_id, "method": method, "path": path, "status": status}
    logger.log(
        logging.DEBUG if quiet else logging.INFO, "", extra={"facts": {**line, "seconds": round(seconds, 4), **facts}}
    )


def client_fault(request_id: str, error: Exception) -> Fault:
    """Return what the client is told about an error; log what it is not told."""
    fault = fault_of(error)
    if fault.status >= 500 and not isinstance(error, Fault):
        log_failure(request_id, error)
    return fault


def log_failure(request_id: str, error: Exception) -> None:
    """Log where an unexpected error came from."""
    logger.error("", extra={"facts": {"event": "failure", "id": request_id, **_whence(error)}})


def _whence(error: BaseException) -> dict[str, Any]:
    """An error's type and its places in the code, without any values that a user sent."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return {"error": type(error).__name__, "places": places}
