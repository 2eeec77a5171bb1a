"""Rows in the forms of other trainers, read as the conversations that they are.

    {"conversations": [{"from": "human", "value": "..."}, ...]}    ShareGPT; with "system" and "tools" or without
    {"instruction": "...", "input": "...", "output": "..."}        Alpaca; with "input" and "system" or without
    {"prompt": [messages], "completion": [messages]}               TRL: only the completion is learned

Sources: TRL's pages "Dataset formats" and "SFT Trainer", its `maybe_convert_to_chatml` (turns of `role` and `content`
under `conversations`) and its tools as a string of JSON; LLaMA-Factory's data/README.md (tool turns, and how
`instruction` and `input` are joined).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.text.strict_json import loads, no_json

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
          "system": "system"}  # fmt: skip
_CALL, _RESULTS = "function_call", ("observation", "tool")
_PLACE = re.compile(r"\bmessages\[(\d+)\]")


class RowError(Exception):
    """What is wrong with a row."""


@dataclass(frozen=True)
class Conversation:
    """Unchecked messages, tools and `thinking` of a row, and the places of its messages, where the row names others."""

    messages: Any
    tools: Any
    thinking: Any
    places: Sequence[str] = ()

    def in_its_words(self, sentence: str) -> str:
        """A sentence about `messages[i]` with the place in the row instead."""

        def place(found: re.Match[str]) -> str:
            index = int(found[1])
            return self.places[index] if index < len(self.places) else found[0]

        return _PLACE.sub(place, sentence, count=1)


def conversation_of(record: Mapping[str, Any]) -> Conversation | None:
    """The conversation of a row, whatever its form, or None if it is plain text. Raises `RowError`."""
    tools, thinking = _tools(record), record.get("thinking", False)
    if "messages" in record:
        return Conversation(record["messages"], tools, thinking)
    if "conversations" in record:
        messages, places = _share_gpt(record)
        return Conversation(messages, _declared(tools), thinking, places)
    if "instruction" in record:
        return Conversation(*_alpaca(record))
    if isinstance(record.get("prompt"), list) or isinstance(record.get("completion"), list):
        messages, places = _prompt_completion(record)
        return Conversation(messages, tools, thinking, places)
    return None


def _share_gpt(record: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    turns, messages = _messages(record, "conversations"), list[Any]()
    for index, turn in enumerate(turns):
        before = turns[index - 1] if index else None
        called = isinstance(before, dict) and before.get("from") == _CALL
        messages.append(_message(turn, f"conversations[{index}]", messages[-1]["tool_calls"] if called else []))
    places = [f"conversations[{index}]" for index in range(len(turns))]
    if not (system := _text(record, "system")):
        return messages, places
    if any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        raise RowError("the system message is given twice, under system and in conversations")
    return [{"role": "system", "content": system}, *messages], ["system", *places]


def _message(turn: Any, where: str, calls: list[dict[str, Any]]) -> Any:
    """A turn as a message; `calls` are those of the turn before it. A turn that has no `from` is one already."""
    if not isinstance(turn, dict):
        return turn
    more = {key: value for key, value in turn.items() if key not in ("from", "value")}
    speaker, value = turn.get("from"), turn.get("value")
    if speaker is None and value is None:
        return more
    if not isinstance(speaker, str) or not isinstance(value, str):
        raise RowError(f"{where} must have strings under both from and value")
    if more.pop("role", None) is not None or more.pop("content", None) is not None:
        raise RowError(f"{where} has from and value, so it can have neither role nor content")
    if speaker in _ROLES:
        return {"role": _ROLES[speaker], "content": value, **more}
    if speaker == _CALL:
        return {"role": "assistant", "content": "", "tool_calls": _calls(value, where), **more}
    if speaker not in _RESULTS:
        known = ", ".join((*_ROLES, _CALL, *_RESULTS))
        raise RowError(f"{where} is from {speaker!r:.80}; known are {known}")
    if len(calls) != 1:
        raise RowError(f"{where} is a tool's result; it must follow a {_CALL} with a single call")
    return {"role": "tool", "name": calls[0]["function"]["name"], "content": value, **more}


def _calls(value: str, where: str) -> list[dict[str, Any]]:
    found = _json(value, f"{where} is a {_CALL} that")
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) and set(call) == {"name", "arguments"} for call in calls):
        raise RowError(f"{where} is a {_CALL}; it must be a JSON object of name and arguments, or a list of them")
    return [{"type": "function", "function": call} for call in calls]


def _alpaca(record: Mapping[str, Any]) -> tuple[list[Any], None, bool, list[str]]:
    """The user asks the instruction and, on the next line, the input, unless that is empty.

    The published rows also have all of it as `text`, as another model's prompt, which says nothing new.
    """
    if record.get("history"):
        raise RowError("history must be empty; give several turns as messages")
    asked = [part for name in ("instruction", "input") if (part := _text(record, name))]
    if not asked:
        raise RowError("instruction is empty")
    messages = [
        ("system", "system", _text(record, "system")),
        ("instruction", "user", "\n".join(asked)),
        ("output", "assistant", _text(record, "output")),
    ]
    given = messages if messages[0][2] else messages[1:]
    return [{"role": role, "content": text} for _, role, text in given], None, False, [place for place, _, _ in given]


def _prompt_completion(record: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """All messages, those of the assistant in the prompt with weight 0."""
    if not isinstance(record["prompt"], list) or not isinstance(record["completion"], list):
        raise RowError("prompt and completion must both be strings, or both be lists of messages")
    prompt, completion = _messages(record, "prompt"), _messages(record, "completion")
    given = []
    for index, message in enumerate(prompt):
        answers = isinstance(message, dict) and message.get("role") == "assistant"
        if answers and message.get("weight") not in (None, 0):
            raise RowError(f"prompt[{index}] has the weight {message['weight']!r:.80}; only the completion is learned")
        given.append({**message, "weight": 0} if answers else message)
    places = [f"{name}[{index}]" for name in ("prompt", "completion") for index in range(len(record[name]))]
    return given + completion, places


def _messages(record: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(record[name], list) or not record[name]:
        raise RowError(f"{name} must be a list with at least one message")
    return record[name]


def _text(record: Mapping[str, Any], name: str) -> str:
    """A string, empty if there is none."""
    value = record.get(name)
    if not isinstance(value, str | None):
        raise RowError(f"{name} must be a string")
    return value or ""


def _tools(record: Mapping[str, Any]) -> Any:
    """Tools may be a string of JSON, because tables need the same columns in every row."""
    tools = record.get("tools")
    return (_json(tools, "tools") if tools.strip() else None) if isinstance(tools, str) else tools


def _declared(tools: Any) -> Any:
    """Functions as tools of the OpenAI API; ShareGPT rows may leave out what is around them."""
    if not isinstance(tools, list):
        return tools
    bare = [isinstance(tool, dict) and "name" in tool and "function" not in tool for tool in tools]
    return [{"type": "function", "function": t} if is_bare else t for t, is_bare in zip(tools, bare, strict=True)]


def _json(text: str, what: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{what} is not JSON ({no_json(error)})") from error
