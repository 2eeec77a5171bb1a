"""Reading evaluation files: every error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from redraft.errors import InputError, why

T = TypeVar("T")

DATA = Path(__file__).parent / "data"
"""The evaluation sets that come with the package."""


def fail(path: Path, line: int, reason: str) -> NoReturn:
    """Raises the error of one line."""
    raise InputError(f"{path}, line {line}: {reason}.")


def read_text(path: str | Path) -> str:
    """The text of an evaluation file; :class:`InputError` when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {why(error)}.") from error


def read_items(path: str | Path, fields: Mapping[str, type], item: Callable[[dict[str, Any]], T]) -> list[T]:
    """The items of a JSON lines file: ``item`` makes one of an object that has ``fields`` of these types.

    Raises :class:`InputError` for a bad line, one that ``item`` refuses with such an error included, and for no items.
    """
    path, items = Path(path), list[T]()
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        record = _checked_object(path, number, line, fields)
        try:
            items.append(item(record))
        except InputError as error:
            fail(path, number, str(error).rstrip("."))
    if not items:
        raise InputError(f"{path} holds no items.")
    return items


def _checked_object(path: Path, number: int, line: str, fields: Mapping[str, type]) -> dict[str, Any]:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # "\ud800" is JSON, but can neither be asked nor written
    except UnicodeEncodeError:
        fail(path, number, "it holds half of a surrogate pair, which is no character")
    except json.JSONDecodeError as error:
        fail(path, number, f"not valid JSON ({error.msg} at column {error.colno})")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets in brackets
        fail(path, number, f"not valid JSON ({str(error).rstrip('.')})")
    if not isinstance(record, dict):
        fail(path, number, "not a JSON object")
    for name, kind in fields.items():
        if name not in record:
            fail(path, number, f"the field {name!r} is missing")
        if not isinstance(record[name], kind):
            fail(path, number, f"the field {name!r} must be a {_JSON_NAMES[kind]}")
    return record


_JSON_NAMES = {str: "string", list: "list", dict: "object"}
