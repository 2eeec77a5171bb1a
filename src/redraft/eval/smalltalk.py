"""Small talk and simple questions: solved if the answer contains one of the expected words or phrases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.eval.files import read_items
from redraft.eval.phrases import holds, read_phrases
from redraft.eval.task import Task
from redraft.text.messages import check_messages


@dataclass(frozen=True, kw_only=True, slots=True)
class SmalltalkItem:
    """A chat, and the words or phrases of which a right answer contains at least one."""

    id: str
    messages: list[dict[str, Any]]
    expected: tuple[str, ...]


def read_smalltalk_jsonl(path: str | Path) -> list[SmalltalkItem]:
    """Reads items with ``id``, ``messages`` and ``expected`` (a list of strings).

    Raises :class:`InputError` that names file and line.
    """
    return read_items(path, {"id": str, "messages": list, "expected": list}, _item)


def _item(record: Mapping[str, Any]) -> SmalltalkItem:
    check_messages(record["messages"])
    expected = read_phrases(record["expected"], "expected")
    return SmalltalkItem(id=record["id"], messages=record["messages"], expected=expected)


def is_solved(item: SmalltalkItem, text: str) -> bool:
    """Whether ``text`` contains one of the expected phrases as whole words, ignoring case."""
    return any(holds(text, phrase) for phrase in item.expected)


TASK = Task(
    file="smalltalk.jsonl",
    read=read_smalltalk_jsonl,
    chat=lambda item: (item.messages, None),
    solved=is_solved,
    expected=lambda item: " | ".join(item.expected),
    id=lambda item: item.id,
)
