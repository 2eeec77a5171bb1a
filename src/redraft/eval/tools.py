"""Tool calls: solved when the reply makes exactly the expected calls, with exactly the expected arguments.

The order of parallel calls does not matter. An item without expected calls asks the model to decline: solved when
nothing is called.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import InputError
from redraft.eval.files import fail, json_lines
from redraft.eval.generate import Generates, run
from redraft.eval.result import EvalResult, Progress
from redraft.text.messages import check_messages, check_tools
from redraft.text.tools import parse_reply

MAX_TOKENS = 256

_FIELDS = {"id": str, "tools": list, "messages": list, "calls": list}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolItem:
    """Declared tools and the chat in the usual shape, and the expected calls as (name, arguments)."""

    id: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    calls: tuple[tuple[str, dict[str, Any]], ...]


def read_tools_jsonl(path: str | Path, *, limit: int | None = None) -> list[ToolItem]:
    """Reads items with ``id``, ``tools``, ``messages`` and ``calls`` (a list of ``{"name", "arguments"}``); at most
    ``limit``.

    Raises :class:`InputError` that names file and line for anything malformed, a call to an undeclared tool included.
    """
    items: list[ToolItem] = []
    for line, record in json_lines(path, _FIELDS):
        if limit is not None and len(items) >= limit:
            break
        items.append(_item(Path(path), line, record))
    return items


def _item(path: Path, line: int, record: Mapping[str, Any]) -> ToolItem:
    try:
        check_messages(record["messages"])
        check_tools(record["tools"])
    except InputError as error:
        fail(path, line, str(error).rstrip("."))
    declared = {tool["function"]["name"] for tool in record["tools"]}
    calls = tuple(_call(path, line, call, declared) for call in record["calls"])
    return ToolItem(id=record["id"], tools=record["tools"], messages=record["messages"], calls=calls)


def _call(path: Path, line: int, call: Any, declared: set[str]) -> tuple[str, dict[str, Any]]:
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        fail(path, line, "a call must be an object with a 'name' and an object of 'arguments'")
    if call["name"] not in declared:
        fail(path, line, f"the call {call['name']!r} is to a tool that is not declared")
    return call["name"], call["arguments"]


def canonical_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as comparable text: keys sorted, ``2`` equal to ``2.0``, ``true`` never equal to ``1``."""
    return f"{name}{json.dumps(_plain(arguments), sort_keys=True, ensure_ascii=False)}"


def _plain(value: Any) -> Any:
    """JSON has one kind of number, so a float without a fraction is an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def is_solved(item: ToolItem, text: str) -> bool:
    """Whether ``text`` makes exactly the expected calls, in any order, and no malformed one."""
    reply = parse_reply(text)
    made = Counter(canonical_call(call.name, call.arguments) for call in reply.tool_calls)
    return made == Counter(canonical_call(*call) for call in item.calls) and not reply.malformed


def evaluate(
    llm: Generates,
    items: Sequence[ToolItem],
    *,
    steps: int | None = None,
    seed: int = 0,
    batch_size: int = 8,
    max_tokens: int = MAX_TOKENS,
    progress: Progress | None = None,
    **settings: Any,
) -> EvalResult:
    """Asks for every item; further ``settings`` go to ``generate_batch`` as they are."""
    return run(
        llm,
        items,
        prompt=lambda item: llm.encode_chat(item.messages, tools=item.tools),
        judge=lambda item, text: (
            item.id,
            is_solved(item, text),
            "; ".join(canonical_call(*call) for call in item.calls),
        ),
        batch_size=batch_size,
        steps=steps,
        progress=progress,
        settings={"seed": seed, "max_tokens": max_tokens, **settings},
    )
