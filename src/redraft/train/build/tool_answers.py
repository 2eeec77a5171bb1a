"""Conversations that continue after a tool's result: the answer that reports it, and the next request.

The calls are those of :class:`.tools.ItemSource`, their results those of :mod:`.tool_results`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from redraft.text.tokenizer import TURN_END
from redraft.train.build.chat import ChatSource
from redraft.train.build.encoding import Encodes, Renders, answered
from redraft.train.build.tool_results import Result, draw_result
from redraft.train.build.tool_values import Values
from redraft.train.build.tools import Item, ItemSource, answer_text, short_enough
from redraft.train.build.wordnet import Lexicon
from redraft.train.shards import Document

_HISTORY, _NEXT_CALL, _UNDECLARED, _COURTESY = 0.25, 0.6, 0.03, 0.08
"""How often an exchange precedes the last one; how often, then, the call is to be written and not its answer; how often
a client leaves out the declarations; how often the user then says something that asks for nothing."""
_COURTESIES = frozenset({"thanks", "farewell", "praise", "user is well", "wow", "laugh"})
"""The blocks of small talk that fit behind any answer."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Declared tools, the messages so far, and what is to be written next."""

    tools: list[dict[str, object]]
    messages: list[dict[str, Any]]
    answer: str


class ConversationSource:
    """An endless, seeded stream of conversations whose tools have been called."""

    def __init__(self, items: ItemSource, chat: ChatSource, words: Lexicon, seed: int) -> None:
        self._items, self._chat, self._words = items, chat, words
        self._rng = random.Random(seed)
        self._values = Values(self._rng)

    def draw(self) -> Conversation:
        """The next conversation."""
        rng, last = self._rng, self._calling()
        tools, messages = last.tools, [message for message in last.messages if message["role"] == "system"]
        earlier = self._calling() if rng.random() < _HISTORY else None
        if earlier and not names_of(earlier) & names_of(last):
            tools = rng.sample([*earlier.tools, *tools], len(earlier.tools) + len(tools))
            messages += [*self._exchange(earlier), *last.messages[-1:]]
            if rng.random() < _NEXT_CALL:
                return Conversation(tools=tools, messages=messages, answer=answer_text(last.calls))
            messages.pop()
        *asked, said = self._exchange(last)
        declared = [] if rng.random() < _UNDECLARED else tools
        if rng.random() < _COURTESY:
            courtesy = self._chat.exchange(_COURTESIES)
            asked += [said, {"role": "user", "content": courtesy.question}]
            return Conversation(tools=declared, messages=messages + asked, answer=courtesy.answer + TURN_END)
        return Conversation(tools=declared, messages=messages + asked, answer=said["content"] + TURN_END)

    def _calling(self) -> Item:
        """An item with at least one call."""
        while not (item := self._items.draw()).calls:
            pass
        return item

    def _exchange(self, item: Item) -> list[dict[str, Any]]:
        """A request, its calls, their results, and what is said about them."""
        calls = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(item.calls)
        ]
        results = [draw_result(self._values, self._words, arguments) for _, arguments in item.calls]
        return [
            item.messages[-1],
            {"role": "assistant", "content": "", "tool_calls": calls},
            *({"role": "tool", "tool_call_id": call["id"], "content": result.content}
              for call, result in zip(calls, results, strict=True)),
            {"role": "assistant", "content": said(item, results)},
        ]  # fmt: skip


def said(item: Item, results: list[Result]) -> str:
    """All results in sequence; two results of one tool each begin with what distinguishes their calls."""
    texts = [result.said for result in results]
    if len(texts) == 2 and item.calls[0][0] == item.calls[1][0]:
        first, second = (arguments for _, arguments in item.calls)
        texts = [f"{name}: {text}" if name else text for name, text in zip(_apart(first, second), texts, strict=True)]
    return " ".join(texts)


def _apart(first: Mapping[str, object], second: Mapping[str, object]) -> tuple[str, str]:
    """The values of the first argument, in the order of a call, that differs between two calls of one tool."""
    for key in sorted(first, key=str.lower):
        one, other = first[key], second.get(key)
        if one != other and isinstance(one, str | int | float) and isinstance(other, str | int | float):
            return str(one), str(other)
    return "", ""


def names_of(item: Item) -> set[str]:
    """The names of an item's tools."""
    return {cast(dict[str, str], tool["function"])["name"] for tool in item.tools}


def documents(
    source: ConversationSource, count: int, tokenizer: Encodes, template: Renders, *, longest: int = 560
) -> Iterator[Document]:
    """``count`` documents of at most ``longest`` tokens; longer ones are drawn again."""

    def draw() -> Document:
        drawn = source.draw()
        text = template.render(drawn.messages, tools=drawn.tools or None, add_generation_prompt=True)
        return answered(tokenizer.encode(text), tokenizer.encode(drawn.answer))

    return short_enough(draw, count, longest)
