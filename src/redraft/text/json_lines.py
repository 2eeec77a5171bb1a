"""JSON lines, one object per line: errors name the file and the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from redraft.errors import InputError, why
from redraft.text.strict_json import loads, no_json


def read_objects(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every non-blank line, with one line in memory at a time. Raises `InputError`."""
    try:
        with Path(path).open(encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                _check_text(path, number, line)
                if line.strip():
                    yield number, _object(path, number, line.rstrip())
    except FileNotFoundError:
        raise InputError(f"{path} cannot be read: it does not exist.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {why(error)}.") from error


def fail(path: str | Path, line: int, reason: str) -> NoReturn:
    """Raise an error about one line."""
    raise InputError(f"{path}, line {line}: {reason}.")


def _check_text(path: str | Path, number: int, line: str) -> None:
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:  # for the surrogates that stand for undecodable bytes
        fail(path, number, "not UTF-8")


def _object(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = loads(line)
    except (ValueError, RecursionError) as error:
        fail(path, number, f"not valid JSON ({no_json(error)})")
    if not isinstance(found, dict):
        fail(path, number, "not a JSON object")
    return found
