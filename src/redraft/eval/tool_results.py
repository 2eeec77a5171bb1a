"""Tool results: solved if the answer tells everything that a result says and calls nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import InputError
from redraft.eval.files import read_items
from redraft.eval.phrases import holds, read_phrases
from redraft.eval.task import Task
from redraft.text.messages import check_messages, check_tools
from redraft.text.reply import parse_reply


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultItem:
    """Declared tools, and a chat whose last messages are the results of calls.

    A right answer contains at least one phrase of each tuple in `expected`.
    """

    id: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    expected: tuple[tuple[str, ...], ...]


def read_results_jsonl(path: str | Path) -> list[ResultItem]:
    """Reads items with ``id``, ``tools``, ``messages`` and ``expected`` (a list of lists of strings).

    Raises :class:`InputError` that names file and line.
    """
    return read_items(path, {"id": str, "tools": list, "messages": list, "expected": list}, _item)


def _item(record: Mapping[str, Any]) -> ResultItem:
    check_messages(record["messages"])
    check_tools(record["tools"])
    if record["messages"][-1]["role"] != "tool":
        raise InputError("the last message must be the result of a tool")
    if not record["expected"]:
        raise InputError("the field 'expected' must hold at least one list of strings")
    expected = tuple(read_phrases(phrases, "expected") for phrases in record["expected"])
    return ResultItem(id=record["id"], tools=record["tools"], messages=record["messages"], expected=expected)


def is_solved(item: ResultItem, text: str) -> bool:
    """Whether ``text`` contains a phrase of each tuple, as whole words and ignoring case, and makes no call."""
    reply = parse_reply(text)
    told = all(any(holds(reply.content, phrase) for phrase in phrases) for phrases in item.expected)
    return told and not reply.tool_calls and not reply.malformed


TASK = Task(
    file="results.jsonl",
    read=read_results_jsonl,
    chat=lambda item: (item.messages, item.tools),
    solved=is_solved,
    expected=lambda item: "; ".join(" | ".join(phrases) for phrases in item.expected),
    id=lambda item: item.id,
)
