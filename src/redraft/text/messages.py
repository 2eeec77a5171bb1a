"""What a conversation may look like, with one clear sentence for each kind of mistake.

Chat templates skip or misprint what they do not expect (an unknown part type, an unrequested tool result), and the
model then answers a conversation that the caller did not write. So the shape is checked here, before any template sees
it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from redraft.errors import PromptError, about, check_utf8
from redraft.text.tools import is_tool_name

ROLES = ("system", "developer", "user", "assistant", "tool")
MEDIA_PARTS = ("image", "image_url", "audio", "input_audio", "video")
PART_TYPES = ("text", *MEDIA_PARTS)
REASONING_KEYS = ("reasoning", "reasoning_content", "thinking")
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "tool_responses", *REASONING_KEYS)
"""What is read of a message, here or by chat templates."""
MAX_DEPTH = 64


def check_messages(messages: Any) -> None:
    """Raise PromptError unless `messages` is a conversation whose every part can be rendered."""
    if not _is_list(messages) or not messages:
        raise PromptError("messages must be a list with at least one message.")
    answering = False  # whether a tool message may come here
    waiting: list[Any] = []  # ids of calls that have no result yet
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _check_message(message, where)
        if message["role"] != "tool":
            answering = bool(message.get("tool_calls")) and not message.get("tool_responses")
            waiting = [call.get("id") for call in message["tool_calls"]] if answering else []
        elif not answering:
            _fail(where, "is a tool's result, which must follow an assistant message that calls tools")
        else:
            _answer_one(message, waiting, where)


@about("tools")
def check_tools(tools: Any) -> None:
    """Raise PromptError unless `tools` is None or a list of function declarations."""
    if tools is None:
        return
    if not _is_list(tools):
        raise PromptError("tools must be a list of function declarations.")
    names = set[str]()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
            _fail(where, "must be a mapping with the key 'function'")
        if tool.get("type", "function") != "function":
            _fail(where, f"has type {tool['type']!r}, but only 'function' is known")
        _check_declaration(tool["function"], f"{where}.function")
        if (name := tool["function"]["name"]) in names:
            _fail(where, f"is the second tool named {name!r:.80}")
        names.add(name)


def _answer_one(message: Mapping[str, Any], waiting: list[Any], where: str) -> None:
    """Remove the call that a tool message answers from `waiting`; a message without an id may give its tool's name."""
    answered = message.get("tool_call_id")
    if answered in waiting:
        waiting.remove(answered)
    elif answered is not None:
        _fail(where, f"is the result of the call {answered!r:.80}, but no call with this id waits for a result")
    elif not message.get("name"):
        _fail(where, "is a tool message with neither a name nor the id of a call that waits for a result")


def _plain_text(value: str, where: str) -> str:
    text = str.__str__(value)  # a subclass may override methods; such calls return the plain base type
    check_utf8(text, where)
    return text


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A copy of a checked conversation as `plain_data`.

    Payloads of media parts (decoded images, arrays) become a placeholder: templates only check whether they are there.
    """
    return plain_data([_without_payloads(message) for message in messages], "messages")


def _without_payloads(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Any = message.get("content")
    return {**message, "content": [_described(part) for part in content]} if _is_list(content) else message


def _described(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part["type"] not in MEDIA_PARTS:
        return part
    return {key: value if isinstance(value, str) else f"<{type(value).__name__}>" for key, value in part.items()}


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of `value` made of plain JSON types only, the only types that a template may touch."""
    if depth > MAX_DEPTH:
        _fail(where, f"is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _plain_text(value, where)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return _finite(float.__float__(value), where)
    if isinstance(value, Mapping):
        return {_plain_key(key, where): plain_data(value[key], f"{where}.{key}", depth + 1) for key in value}
    if _is_list(value):
        return [plain_data(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    _fail(where, f"holds a {type(value).__name__}, which is not a JSON value")


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        _fail(where, f"holds {value}, which is not a JSON number")
    return value


def _plain_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        _fail(where, f"has the key {key!r}, but keys must be strings")
    return _plain_text(key, where)


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        _fail(where, f"must be a mapping with 'role' and 'content', not {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        _fail(where, f"has the role {role!r}; known roles are {', '.join(ROLES)}")
    if role == "tool":
        _check_tool_content(message, where)
    else:
        _check_content(message, where)
    for name in REASONING_KEYS:
        if not isinstance(message.get(name), str | None):
            _fail(where, f"has a {name!r} that is not a string")
    if role != "assistant" and (message.get("tool_calls") or message.get("tool_responses")):
        _fail(where, f"has tool calls or responses, which belong to the assistant, not to the role {role!r}")
    _check_calls(message.get("tool_calls"), f"{where}.tool_calls")
    _check_responses(message.get("tool_responses"), f"{where}.tool_responses")


def _check_content(message: Mapping[str, Any], where: str) -> None:
    role, content = message["role"], message.get("content")
    if content is None:
        if role != "assistant":
            _fail(where, "has no content")
    elif _is_list(content):
        _check_parts(content, f"{where}.content", text_only=role in ("system", "developer"))
    elif not isinstance(content, str):
        _fail(where, f"has content of type {type(content).__name__}; it must be a string or a list of parts")


def _check_tool_content(message: Mapping[str, Any], where: str) -> None:
    if "content" not in message:
        _fail(where, "has no content")
    if _is_list(message["content"]):
        _check_parts(message["content"], f"{where}.content", text_only=False)


def _check_parts(parts: Sequence[Any], where: str, *, text_only: bool) -> None:
    for index, part in enumerate(parts):
        here = f"{where}[{index}]"
        if not isinstance(part, Mapping):
            _fail(here, "must be a mapping with the key 'type'")
        if part.get("type") not in PART_TYPES:
            _fail(here, f"has the type {part.get('type')!r}; known types are {', '.join(PART_TYPES)}")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            _fail(here, "is a text part without a string under 'text'")
        if text_only and part["type"] != "text":
            _fail(here, "must be text: a system message cannot hold media")


def _check_calls(calls: Any, where: str) -> None:
    if calls is None:
        return
    if not _is_list(calls):
        _fail(where, "must be a list")
    for index, call in enumerate(calls):
        here = f"{where}[{index}]"
        if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
            _fail(here, "must be a mapping with the key 'function'")
        _check_name(call["function"].get("name"), f"{here}.function")
        if not isinstance(call["function"].get("arguments"), Mapping | str | None):
            _fail(f"{here}.function", "has arguments that are not a mapping")


def _check_responses(responses: Any, where: str) -> None:
    if responses is None:
        return
    if not _is_list(responses):
        _fail(where, "must be a list")
    for index, response in enumerate(responses):
        if not isinstance(response, Mapping) or "response" not in response:
            _fail(f"{where}[{index}]", "must be a mapping with the keys 'name' and 'response'")


def _check_declaration(function: Mapping[str, Any], where: str) -> None:
    _check_name(function.get("name"), where)
    if not is_tool_name(function["name"]):
        _fail(
            where,
            f"has the name {function['name']!r}, which a call cannot contain: white space and {{}}<> would end it",
        )
    if not isinstance(function.get("description"), str | None):
        _fail(where, "has a description that is not a string")
    if not isinstance(function.get("strict"), bool | None):
        _fail(where, "has a 'strict' that is neither true nor false")
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping | None):
        _fail(where, "has parameters that are not a mapping (a JSON schema)")
    properties = (parameters or {}).get("properties", {})
    if not isinstance(properties, Mapping) or not all(isinstance(schema, Mapping) for schema in properties.values()):
        _fail(where, "must map every parameter name under 'properties' to a JSON schema")


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name:
        _fail(where, "must have a name")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _fail(where: str, sentence: str) -> NoReturn:
    raise PromptError(f"{where} {sentence}.", where)
