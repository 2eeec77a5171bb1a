"""Reading evaluation files: every error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from redraft.errors import InputError

DATA = Path(__file__).parent / "data"
"""The evaluation sets that come with the package."""


def fail(path: Path, line: int, reason: str) -> NoReturn:
    """Raises the error of one line."""
    raise InputError(f"{path}, line {line}: {reason}.")


def read_text(path: str | Path) -> str:
    """The text of an evaluation file; :class:`InputError` when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def json_lines(path: str | Path, fields: Mapping[str, type]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) for every line that is not blank, with ``fields`` present and of their types.

    Raises :class:`InputError` for a bad line, and for a file without any item.
    """
    path, found = Path(path), False
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            found = True
            yield number, _checked_object(path, number, line, fields)
    if not found:
        raise InputError(f"{path} holds no items.")


def _checked_object(path: Path, number: int, line: str, fields: Mapping[str, type]) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        fail(path, number, f"not valid JSON ({error.msg} at column {error.colno})")
    if not isinstance(record, dict):
        fail(path, number, "not a JSON object")
    for name, kind in fields.items():
        if name not in record:
            fail(path, number, f"the field {name!r} is missing")
        if not isinstance(record[name], kind):
            fail(path, number, f"the field {name!r} must be a {_JSON_NAMES[kind]}")
    return record


_JSON_NAMES = {str: "string", list: "list", dict: "object"}
