"""What the model reads before it edits a span: a request in its chat format, or only the text if nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from redraft.editing.spans import Span
from redraft.errors import TOO_LONG, PromptError, SettingError
from redraft.filling.api import FillingLLM
from redraft.text.edit_request import edit_request
from redraft.text.line_ends import with_newlines

SHOWN = 4000
"""The most characters of the text read on each side of the span; fewer if they do not fit."""
LEAD = 64
"""Tokens before the span that the answer repeats, so that it continues from them."""


def as_read(text: str, span: Span) -> tuple[str, Span]:
    """The text and its span as a model reads them: every line ends in a newline, the last one too."""
    before, old, behind = (with_newlines(part) for part in (text[: span[0]], text[slice(*span)], text[span[1] :]))
    whole = before + old + behind
    return whole if whole.endswith("\n") else whole + "\n", (len(before), len(before) + len(old))


class EditingLLM(FillingLLM, Protocol):
    """The part of `redraft.llm.LLM` that editing needs."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]: ...


def context_ids(
    llm: EditingLLM, instruction: str | None, text: str, span: Span, before: Sequence[int], room: int
) -> list[int]:
    """Token ids up to the span, ending with `before`, the tokens just before it; they leave `room` in the context.

    Raises `PromptError` or `SettingError` if that is impossible.
    """
    if instruction is not None:
        return [*_request(llm, instruction, text, span, room + LEAD), *before[-LEAD:]]
    context = llm.model.config.max_position_embeddings
    if context - room < 1:
        raise SettingError(f"A canvas of {room} leaves no room in the context of {context}.", "canvas_length")
    most = context - room - 1
    return [llm.tokenizer.bos_id, *(before[-most:] if most else ())]


def _request(llm: EditingLLM, instruction: str, text: str, span: Span, room: int) -> list[int]:
    """The instruction and as much of the text around the span as the context has room for."""
    start, end = span
    context, shown = llm.model.config.max_position_embeddings, SHOWN
    while True:
        before, behind = text[max(0, start - shown) : start], text[end : end + shown]
        content = edit_request(instruction, before, text[start:end], behind)
        ids = llm.encode_chat([{"role": "user", "content": content}])
        if len(ids) + room <= context:
            return ids
        if not shown:
            raise PromptError(
                f"The instruction and the span have {len(ids)} tokens; they do not fit the context of {context}.",
                code=TOO_LONG,
            )
        shown //= 2
