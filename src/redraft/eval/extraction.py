"""Extraction: a text becomes JSON under a schema; solved if every property has an accepted value.

The schema constrains the answer, so its form is right by construction and only its content is judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import InputError
from redraft.eval.files import read_items
from redraft.eval.task import Task
from redraft.eval.values import canonical
from redraft.text.messages import check_messages


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractionItem:
    """A chat, the JSON schema of the answer (an object), and the accepted values of each of its properties."""

    id: str
    messages: list[dict[str, Any]]
    schema: dict[str, Any]
    expected: dict[str, list[Any]]


def read_extraction_jsonl(path: str | Path) -> list[ExtractionItem]:
    """Reads items with ``id``, ``messages``, ``schema`` and ``expected`` (a list of accepted values per property).

    Raises :class:`InputError` that names file and line, also if ``schema`` and ``expected`` name different properties.
    """
    return read_items(path, {"id": str, "messages": list, "schema": dict, "expected": dict}, _item)


def _item(record: Mapping[str, Any]) -> ExtractionItem:
    check_messages(record["messages"])
    schema, expected = record["schema"], record["expected"]
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict) or not schema["properties"]:
        raise InputError("the schema must be of the type 'object' and have properties")
    for name in sorted(schema["properties"].keys() ^ expected.keys()):
        raise InputError(f"the property {name!r} is in only one of 'schema' and 'expected'")
    for name, values in expected.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"the property {name!r} must have a list of accepted values")
    return ExtractionItem(id=record["id"], messages=record["messages"], schema=schema, expected=expected)


def is_solved(item: ExtractionItem, text: str) -> bool:
    """Whether ``text`` is an object with exactly the expected properties, each of an accepted value.

    Strings are compared without case, spaces around them and a final full stop, numbers by value.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or found.keys() != item.expected.keys():
        return False
    return all(_is_one_of(found[name], values) for name, values in item.expected.items())


def _is_one_of(value: Any, accepted: list[Any]) -> bool:
    return canonical(value, _bare) in {canonical(other, _bare) for other in accepted}


def _bare(text: str) -> str:
    return text.strip().removesuffix(".").rstrip().casefold()


def _told(item: ExtractionItem) -> str:
    return "; ".join(f"{name}: {' | '.join(map(canonical, values))}" for name, values in item.expected.items())


TASK = Task(
    file="extraction.jsonl",
    read=read_extraction_jsonl,
    chat=lambda item: (item.messages, None),
    own=lambda item: {"json_schema": item.schema},
    solved=is_solved,
    expected=_told,
    id=lambda item: item.id,
)
