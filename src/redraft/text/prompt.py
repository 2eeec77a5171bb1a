"""Chat messages to token ids: special tokens where the template writes them, plain text wherever a message does.

A rendered prompt does not show whether a `<turn|>` is the template's own or part of a question, a document or a tool's
result. Transformers makes both a special token, so anyone who wrote the text can end the turn and speak as system or
model. Here the messages are rendered a second time with the first character of all special strings (`<`) disguised:
what is special then is the template's own. Ordinary prompts have the ids that Transformers gives them.

Two things in a message are meant as marks and stay marks: thoughts in an assistant's text, which templates take out of
a history, and `<|think|>` in a system message, the published switch for thinking.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from redraft.errors import PromptError
from redraft.text.marks import Decoder
from redraft.text.messages import plain_data, plain_messages
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import TURN_END, Span, Tokenizer
from redraft.text.tools import CHANNEL_CLOSE, CHANNEL_OPEN

THINK = "<|think|>"

_MEANT = {"assistant": (CHANNEL_OPEN, CHANNEL_CLOSE), "system": (THINK,), "developer": (THINK,)}
_STAND_INS = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF8FF))]
"""Characters that Unicode reserves for such uses."""


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    begun: str = "",
    **options: Any,
) -> list[int]:
    """Token ids of a conversation, and of the words with which its answer is `begun`.

    `options` are those of `ChatTemplate.render`. Raises `PromptError` for wrong messages, for a template that alters
    special strings, and if no character is left to disguise them.
    """
    text, spans = mark_chat(template, tokenizer, messages, tools=tools, **options)
    return tokenizer.encode_marked(text + begun, spans)


def mark_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> tuple[str, list[Span]]:
    """The rendered conversation, and the positions of the template's own special strings in it."""
    now = datetime.datetime.now()  # the same in both renderings
    text = template.render(messages, tools=tools, now=now, **options)
    given, declared = plain_messages(messages), plain_data(tools, "tools")
    disguise = _Disguise(tokenizer.special_ids, text)
    hidden, hidden_tools = [disguise.message(message) for message in given], disguise.data(declared)
    if hidden == given and hidden_tools == declared:
        return text, tokenizer.special_spans(text)
    disguised = template.render(hidden, tools=hidden_tools, now=now, **options)
    if disguise.undone(disguised) != text:
        raise PromptError("This model's chat template changes special strings such as <turn|>; leave them out.")
    return text, tokenizer.special_spans(disguised)


def thought_open(ids: Sequence[int], decoder: Decoder) -> bool:
    """Whether a prompt ends inside a thought, as templates leave it after tool results."""
    opened, *closing = (decoder.special_ids.get(mark) for mark in (CHANNEL_OPEN, CHANNEL_CLOSE, TURN_END))
    return next((token == opened for token in reversed(ids) if token == opened or token in closing), False)


class _Disguise:
    """Swaps the characters that special strings begin with for ones that do not occur in `text`.

    Raises `PromptError` if all of those occur: what is not in disguise would be taken for the template's own.
    """

    def __init__(self, special: Mapping[str, int], text: str) -> None:
        self._first = sorted({string[0] for string in special})
        free = list(islice((char for char in _STAND_INS if char not in text), len(self._first)))
        if len(free) < len(self._first):
            raise PromptError("The messages hold too many of the characters that Unicode reserves for private use.")
        self._stand_ins = dict(zip(self._first, free, strict=True))
        self._back = str.maketrans({stand_in: char for char, stand_in in self._stand_ins.items()})

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in disguise, except for the marks that are meant as such."""
        meant = _MEANT.get(message["role"], ())
        return {key: self.data(value, meant if key == "content" else ()) for key, value in message.items()}

    def data(self, value: Any, meant: Sequence[str] = ()) -> Any:
        """JSON-like data in disguise, including keys."""
        return _map_strings(value, lambda text: self._hidden(text, meant))

    def undone(self, text: str) -> str:
        """The text without its disguise."""
        return text.translate(self._back)

    def _hidden(self, text: str, meant: Sequence[str]) -> str:
        pattern = "|".join(map(re.escape, (*meant, *self._first)))
        return re.sub(pattern, lambda found: self._stand_ins.get(found[0], found[0]), text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return [_map_strings(item, change) for item in value] if isinstance(value, list) else value
