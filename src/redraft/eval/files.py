"""Reading evaluation files: every error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from redraft.errors import InputError, why
from redraft.text.json_lines import fail, read_objects

T = TypeVar("T")

DATA = Path(__file__).parent / "data"
"""The evaluation sets that come with the package."""


def read_text(path: str | Path) -> str:
    """The text of an evaluation file; :class:`InputError` when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {why(error)}.") from error


def read_items(path: str | Path, fields: Mapping[str, type], item: Callable[[dict[str, Any]], T]) -> list[T]:
    """The items of a JSON lines file: ``item`` turns each object that has ``fields`` of these types into one.

    Raises :class:`InputError` for a bad line, including one that ``item`` refuses with that error, and for no items.
    """
    path, items = Path(path), list[T]()
    for number, record in read_objects(path):
        _check(path, number, record, fields)
        try:
            items.append(item(record))
        except InputError as error:
            fail(path, number, str(error).rstrip("."))
    if not items:
        raise InputError(f"{path} holds no items.")
    return items


def _check(path: Path, number: int, record: dict[str, Any], fields: Mapping[str, type]) -> None:
    try:
        json.dumps(record, ensure_ascii=False).encode()  # "\ud800" is JSON, but can be neither asked nor written
    except UnicodeEncodeError:
        fail(path, number, "it holds half of a surrogate pair, which is not a character")
    for name, kind in fields.items():
        if name not in record:
            fail(path, number, f"the field {name!r} is missing")
        if not isinstance(record[name], kind):
            fail(path, number, f"the field {name!r} must be {_JSON_NAMES[kind]}")


_JSON_NAMES = {str: "a string", list: "a list", dict: "an object"}
