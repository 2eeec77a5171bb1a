"""Training documents from JSON lines, as people have them: one object per line, checked before any training.

    {"messages": [...], "tools": [...], "thinking": false}   a conversation; every assistant message is learned, unless
                                                             it has "weight": 0; for other forms see `forms`
    {"prompt": "...", "completion": "..."}                   plain text, without a chat template
    {"prefix": "...", "middle": "...", "suffix": "..."}      a hole: the middle is learned, seeing both sides
    {"prompt_ids": [...], "answer_ids": [...]}               tokens as they are, written by `redraft distill`
    {"text": "..."}                                          plain text as a whole (kind = "text")

Any line may also contain `id` and `metadata`, which are ignored. A message has the keys that the OpenAI API gives it;
others must be null or an empty list, as in answers of that API. Every error names file and line.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import InputError, PromptError, SettingError
from redraft.text.json_lines import fail, read_objects
from redraft.text.messages import MESSAGE_KEYS, REASONING_KEYS, check_messages
from redraft.text.placing import parts_of
from redraft.text.prompt import mark_chat
from redraft.text.strict_json import loads, no_json
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import TURN_END, Tokenizer
from redraft.text.tools import CHANNEL_CLOSE, CHANNEL_OPEN
from redraft.train.forms import Conversation, RowError, conversation_of
from redraft.train.shards import Shard

PROMPT_IDS, ANSWER_IDS = "prompt_ids", "answer_ids"
_HEADER = re.compile(r"(?:<turn\|>\n?)?<\|turn>model\n")
_THOUGHT = f"{CHANNEL_OPEN}thought\n"
_NO_THOUGHT = _THOUGHT + CHANNEL_CLOSE
_BESIDE = {"id", "metadata"}
_WITH_TOOLS = frozenset({"tools", "thinking"})
_ALPACA = frozenset({"instruction", "output"})
_SHAPES: dict[frozenset[str], frozenset[str]] = {
    frozenset({"messages"}): _WITH_TOOLS,
    frozenset({"conversations"}): _WITH_TOOLS | {"system"},
    _ALPACA: frozenset({"input", "system", "text", "history"}),
    frozenset({"prompt", "completion"}): _WITH_TOOLS,
    frozenset({"prefix", "middle", "suffix"}): frozenset(),
    frozenset({PROMPT_IDS, ANSWER_IDS}): frozenset(),
    frozenset({"text"}): frozenset(),
}

_ALLOWED = (
    "messages; prompt and completion; prefix, middle and suffix; conversations; instruction and output; or token ids"
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a document must fit: `tokens` of a row and, if `canvases` is above 0, that many canvases of an answer."""

    tokens: int
    canvas: int
    canvases: int


@dataclass(frozen=True)
class _Piece:
    """Token ids of one document: context, what is learned, and given text after a hole."""

    prompt: list[int]
    answer: list[int]
    suffix: list[int]


def read_jsonl(
    path: Path, *, text: bool, tokenizer: Tokenizer, template: ChatTemplate | None, limits: Limits | None
) -> Shard:
    """All documents of a file.

    With `text` every line must be {"text": ...}; otherwise none may be. Without `limits` documents may have any length.
    Raises `InputError` that names file and line.
    """
    tokens, lengths, prompts, suffixes, lines = array("i"), array("q"), array("q"), array("q"), array("q")
    for number, record in read_objects(path):
        try:
            pieces = list(_pieces(record, text, tokenizer, template, limits))
            for piece in pieces:
                _check_fits(piece, text, limits)
        except (RowError, PromptError, SettingError) as error:
            fail(path, number, str(error).rstrip("."))
        lines.append(len(lengths))
        for piece in pieces:
            whole = piece.prompt + piece.answer + piece.suffix
            tokens.extend(whole)
            lengths.append(len(whole))
            prompts.append(0 if text else len(piece.prompt))
            suffixes.append(len(piece.suffix))
    if not lengths:
        raise InputError(f"{path} holds no documents.")
    return Shard.of_file(np.array(tokens, np.int32), lengths, prompts, suffixes, lines)


def _pieces(
    record: Mapping[str, Any], text: bool, tokenizer: Tokenizer, template: ChatTemplate | None, limits: Limits | None
) -> Iterator[_Piece]:
    needed = _shape(record, text)
    if talk := conversation_of(record):
        try:
            yield from _turns(talk, tokenizer, template)
        except (RowError, PromptError) as error:
            raise RowError(talk.in_its_words(str(error))) from error
        return
    if more := record.keys() & _WITH_TOOLS:
        raise RowError(f"{', '.join(sorted(more))} can be given only if prompt and completion are lists of messages")
    if PROMPT_IDS in needed:
        yield _Piece(_ids(record, PROMPT_IDS, tokenizer), _ids(record, ANSWER_IDS, tokenizer), [])
        return
    fields = {name: _string(record, name) for name in needed}
    start, ids = [tokenizer.bos_id], {name: tokenizer.encode(value, special=False) for name, value in fields.items()}
    if text:
        yield _Piece([], start + ids["text"], [])
    elif "middle" in needed:
        middle, suffix = ids["middle"], ids["suffix"]
        yield _Piece(start + ids["prefix"], middle if suffix else _ended(middle, tokenizer, limits), suffix)
    else:
        yield _Piece(start + ids["prompt"], _ended(ids["completion"], tokenizer, limits), [])


def _shape(record: Mapping[str, Any], text: bool) -> frozenset[str]:
    """The keys that say what a row is. Raises `RowError` for any others, and for those of two rows."""
    keys = set(record) - _BESIDE
    found = [needed for needed in _SHAPES if needed <= keys and not (needed == {"text"} and keys >= _ALPACA)]
    if len(found) > 1:
        several = "; ".join(" and ".join(sorted(needed)) for needed in found)
        raise RowError(f"there is more than one document in the line: {several}; keep one of them")
    needed = found[0] if found and keys <= found[0] | _SHAPES[found[0]] else None
    if needed is None or (needed == {"text"}) != text:
        allowed = "text" if text else _ALLOWED
        raise RowError(f"the keys are {', '.join(sorted(keys)) or 'none'}; they must be {allowed}")
    return needed


def _ended(answer: list[int], tokenizer: Tokenizer, limits: Limits | None) -> list[int]:
    """Plain text that ends: if it takes up whole canvases, so that nothing fills the last one, with its end mark."""
    return [*answer, tokenizer.eos_id] if limits and len(answer) % limits.canvas == 0 else answer


def _turns(talk: Conversation, tokenizer: Tokenizer, template: ChatTemplate | None) -> Iterator[_Piece]:
    """One document per assistant message that is learned, with its prompt rendered as when the model is asked."""
    if template is None:
        raise RowError("the model folder of data.tokenizer has no chat template")
    messages, tools, thinking = talk.messages, talk.tools, talk.thinking
    if not isinstance(thinking, bool):
        raise RowError("thinking must be true or false")
    if not isinstance(messages, list) or not messages:
        raise RowError("messages must be a list with at least one message")
    for index, message in enumerate(messages):
        _check_keys(message, index)
        _read_arguments(message, index)
    check_messages(messages)
    for index, message in enumerate(messages):
        if other := [part["type"] for part in parts_of(message) if part["type"] != "text"]:
            raise RowError(f"messages[{index}] holds {other[0]}; training reads text alone")
    asked = [i for i, message in enumerate(messages) if message["role"] == "assistant" and message.get("weight") != 0]
    if not asked or asked[0] == 0:
        raise RowError("messages must have an assistant message to learn, with what it answers before it")
    for index in asked:
        mark = partial(mark_chat, template, tokenizer, tools=tools, enable_thinking=thinking)
        prompt, marks = mark(messages[:index])
        whole, spans = mark(messages[: index + 1], add_generation_prompt=False)
        start, stop = _answer(prompt, whole, messages, index)
        _check_complete(messages[index], index, whole[start:stop])
        inside = [(low - start, high - start) for low, high in spans if start <= low and high <= stop]
        answer = tokenizer.encode_marked(whole[start:stop], inside)
        yield _Piece(tokenizer.encode_marked(prompt, marks), answer, [])


def _check_keys(message: Any, index: int) -> None:
    """Refuse keys of a message that nothing reads, and a weight that is not 0 or 1 or not an assistant's.

    Anything else wrong with a message is for `check_messages` to report.
    """
    if not isinstance(message, dict):
        return
    for key, value in message.items():
        if key not in (*MESSAGE_KEYS, "weight") and value not in (None, []):
            raise RowError(f"messages[{index}] has the key {key!r:.80}; known keys are {', '.join(MESSAGE_KEYS)}")
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise RowError(f"messages[{index}] has the weight {weight!r:.80}; it must be 0 (not learned) or 1")
    if weight is not None and message.get("role") != "assistant":
        raise RowError(f"messages[{index}] has a weight; only assistant messages are learned")


def _read_arguments(message: Any, index: int) -> None:
    """Parse arguments given as JSON strings, the way the OpenAI API writes them, because no template reads those.

    Anything else wrong with a message or a call is for the template to report.
    """
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
            continue
        try:
            function["arguments"] = loads(function["arguments"] or "{}")
        except (ValueError, RecursionError) as error:
            raise RowError(f"messages[{index}] has a call whose arguments are not JSON ({no_json(error)})") from error
        if not isinstance(function["arguments"], dict):
            raise RowError(f"messages[{index}] has a call whose arguments are not a JSON object")


def _why_not_behind(prompt: str, messages: list[Any], index: int) -> str:
    """Why the rendering of messages[index] does not come after `prompt`, that of the messages before it."""
    if prompt.endswith(_THOUGHT) and not any(messages[index].get(key) for key in REASONING_KEYS):
        return f"messages[{index}] has no reasoning, which this chat template asks for; set thinking to false"
    call = index - 1
    while call > 0 and messages[call]["role"] == "tool":
        call -= 1
    if messages[index - 1]["role"] == "assistant":
        return f"messages[{index}] follows another assistant message, which this chat template cannot continue"
    if messages[call].get("content") and messages[call].get("tool_calls"):
        return f"messages[{call}] has both content and calls, whose results this chat template cannot continue after"
    return f"the chat template does not render messages[{index}] after its prompt"


def _answer(prompt: str, whole: str, messages: list[Any], index: int) -> tuple[int, int]:
    """Where the text to be written is: the end of the rendering, without the header that the prompt already has, and
    without the empty thought that templates may end a prompt with, but do not write in a conversation.
    """
    asked = prompt if whole.startswith(prompt) else prompt.removesuffix(_NO_THOUGHT)
    if not whole.startswith(asked):
        raise RowError(_why_not_behind(prompt, messages, index))
    if asked != prompt and whole.startswith(CHANNEL_OPEN, len(asked)):
        raise RowError(f"messages[{index}] has reasoning, and this chat template asks for none; set thinking to true")
    header = _HEADER.match(whole, len(asked))
    start = header.end() if header else len(asked)
    if not whole[start:].replace(TURN_END, "").strip():
        raise RowError(f"messages[{index}] is empty")
    return start, len(whole) - whole.endswith(TURN_END + "\n")


def _check_complete(message: Mapping[str, Any], index: int, answer: str) -> None:
    """Raise `RowError` if the template leaves out text of a message that is to be learned, as some do with thoughts."""
    texts = [message.get("content"), *(part["text"] for part in parts_of(message))]
    named = [("content", text) for text in texts] + [("reasoning", message.get(key)) for key in REASONING_KEYS]
    for name, text in named:
        if isinstance(text, str) and text.strip() not in answer:
            raise RowError(f"this chat template leaves out {name} of messages[{index}], which would not be learned")


def _ids(record: Mapping[str, Any], name: str, tokenizer: Tokenizer) -> list[int]:
    ids = record[name]
    if not isinstance(ids, list) or not ids:
        raise RowError(f"{name} must be a list of token ids")
    tokenizer.check_ids(ids)
    return ids


def _string(record: Mapping[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise RowError(f"{name} must be a string")
    if not value and name not in ("prefix", "suffix", "prompt"):
        raise RowError(f"{name} is empty")
    return value


def _check_fits(piece: _Piece, text: bool, limits: Limits | None) -> None:
    if text or limits is None:
        return
    canvases = -(-len(piece.answer) // limits.canvas)
    if limits.canvases and canvases > limits.canvases:
        raise RowError(
            f"the answer has {len(piece.answer)} tokens, which take {canvases} canvases of {limits.canvas}; "
            f"max_canvases is {limits.canvases}"
        )
    needed = len(piece.prompt) + (canvases - 1) * limits.canvas
    if len(piece.prompt) >= limits.tokens or needed > limits.tokens:
        raise RowError(
            f"the last canvas begins at token {needed}, and a row has {limits.tokens}; "
            "raise data.tokens or shorten the document"
        )
