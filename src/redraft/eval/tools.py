"""Tool calls: solved if the reply makes exactly the expected calls, with exactly the expected arguments.

The order of parallel calls does not matter. An item without expected calls asks the model to decline: it is solved if
something is said and nothing called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import InputError
from redraft.eval.files import read_items
from redraft.eval.task import Task
from redraft.eval.values import canonical
from redraft.text.messages import check_messages, check_tools
from redraft.text.reply import parse_reply


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolItem:
    """Declared tools and the chat in the usual shape, and the expected calls as (name, arguments)."""

    id: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    calls: tuple[tuple[str, dict[str, Any]], ...]


def read_tools_jsonl(path: str | Path) -> list[ToolItem]:
    """Reads items with ``id``, ``tools``, ``messages`` and ``calls`` (a list of ``{"name", "arguments"}``).

    Raises :class:`InputError` that names file and line for anything malformed, including a call to an undeclared tool.
    """
    return read_items(path, {"id": str, "tools": list, "messages": list, "calls": list}, _item)


def _item(record: Mapping[str, Any]) -> ToolItem:
    check_messages(record["messages"])
    check_tools(record["tools"])
    declared = {tool["function"]["name"] for tool in record["tools"]}
    calls = tuple(_call(call, declared) for call in record["calls"])
    return ToolItem(id=record["id"], tools=record["tools"], messages=record["messages"], calls=calls)


def _call(call: Any, declared: set[str]) -> tuple[str, dict[str, Any]]:
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        raise InputError("a call must be an object with a 'name' and an object of 'arguments'")
    if call["name"] not in declared:
        raise InputError(f"the call {call['name']!r} is to a tool that is not declared")
    return call["name"], call["arguments"]


def canonical_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as comparable text, see `redraft.eval.values.canonical`."""
    return f"{name}{canonical(arguments)}"


def is_solved(item: ToolItem, text: str) -> bool:
    """Whether ``text`` makes exactly the expected calls, in any order, and no malformed one; if none, says anything."""
    reply = parse_reply(text)
    if not item.calls and not reply.content:
        return False
    made = Counter(canonical_call(call.name, call.arguments) for call in reply.tool_calls)
    return made == Counter(canonical_call(*call) for call in item.calls) and not reply.malformed


TASK = Task(
    file="tools.jsonl",
    read=read_tools_jsonl,
    chat=lambda item: (item.messages, item.tools),
    solved=is_solved,
    expected=lambda item: "; ".join(canonical_call(*call) for call in item.calls),
    id=lambda item: item.id,
)
