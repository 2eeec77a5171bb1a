"""Tool calls as the model writes them.

A call is `<|tool_call>call:NAME{key:value,…}<tool_call|>`. Values look like JSON with two differences: strings are
enclosed in two `<|"|>` tokens and not escaped, and keys are bare and sorted case-insensitively. Since nothing is
escaped, a string may contain anything but the delimiter itself, even `<tool_call|>`, so calls are parsed by structure
and not by searching for their end.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from redraft.errors import PromptError

QUOTE = '<|"|>'
CALL_OPEN = "<|tool_call>"
CALL_CLOSE = "<tool_call|>"
RESPONSE_OPEN = "<|tool_response>"
RESPONSE_CLOSE = "<tool_response|>"
CHANNEL_OPEN = "<|channel>"
CHANNEL_CLOSE = "<channel|>"
THOUGHT = "thought"
EMPTY_THOUGHT = f"{CHANNEL_OPEN}{THOUGHT}\n{CHANNEL_CLOSE}"
"""What a model that is not supposed to think may still write first; never part of the answer."""
MAX_DEPTH = 64

TOOL_NAME = re.compile(r"[^\s{}<>\ud800-\udfff]+")
BARE_KEY = re.compile(r"[^\s{}\[\]<>,:](?:[^{}\[\]<>,:]*[^\s{}\[\]<>,:])?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One function call: its name, and its arguments as plain JSON values."""

    name: str
    arguments: dict[str, Any]


def is_tool_name(name: Any) -> bool:
    """Whether a call can contain this name and be read back."""
    return isinstance(name, str) and TOOL_NAME.fullmatch(name) is not None


def is_bare_key(key: Any) -> bool:
    """Whether a call can contain an argument of this name and be read back."""
    return isinstance(key, str) and BARE_KEY.fullmatch(key) is not None


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The text of one call, as chat templates render it. Raises PromptError for what the format cannot express."""
    return f"{CALL_OPEN}call:{_checked_name(name)}{_format_object(arguments, 0)}{CALL_CLOSE}"


def _format_value(value: Any, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise PromptError(f"Tool arguments are nested deeper than {MAX_DEPTH} levels.")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return _format_number(value)
    if isinstance(value, Mapping):
        return _format_object(value, depth)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "[" + ",".join(_format_value(item, depth + 1) for item in value) + "]"
    raise PromptError(f"Tool arguments hold a {type(value).__name__}, which is not a JSON value.")


def _format_object(fields: Mapping[str, Any], depth: int) -> str:
    for key in fields:
        if not is_bare_key(key):
            raise PromptError(f"The argument name {key!r} cannot be written in a tool call.")
    ordered = sorted(fields.items(), key=lambda field: field[0].lower())
    return "{" + ",".join(f"{key}:{_format_value(value, depth + 1)}" for key, value in ordered) + "}"


def _format_number(value: int | float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise PromptError(f"Tool arguments hold {value}, which is not a JSON number.")
    try:
        return str(value)
    except ValueError as error:  # Python refuses integers with thousands of digits
        raise PromptError("Tool arguments hold an integer with thousands of digits.") from error


def _quoted(value: str) -> str:
    if QUOTE in value:
        raise PromptError(f"A string in a tool call cannot contain its delimiter {QUOTE}.")
    return f"{QUOTE}{value}{QUOTE}"


def _checked_name(name: str) -> str:
    if not is_tool_name(name):
        raise PromptError(f"{name!r} is not a valid tool name.")
    return name
