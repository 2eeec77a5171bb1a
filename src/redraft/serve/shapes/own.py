"""Redraft's own endpoints: drafts, tokens, filling, editing, deciding."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from redraft.serve.shapes.chat import ChatRequest, Message
from redraft.serve.shapes.common import Items, Shape, contradiction


class TokenizeRequest(Shape):
    """Text, or a conversation, to be turned into token ids."""

    model: str | None = None
    text: str | None = None
    messages: Annotated[Items[Message], Field(min_length=1)] | None = None
    special: Annotated[bool, Field(description="Read strings such as <|turn> as special tokens.")] = False

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.text is None) == (self.messages is None):
            raise contradiction(None, "give text or messages, one of the two")
        return self


class DetokenizeRequest(Shape):
    """Token ids to be turned into text; a list of lists gives a list of texts."""

    model: str | None = None
    tokens: Items[int] | Items[Items[int]]
    pieces: Annotated[bool, Field(description="Also the text of every token.")] = False


class DraftsRequest(ChatRequest):
    """A chat request whose drafts are to be seen; answers once, so `n` is 1."""

    @model_validator(mode="after")
    def _single(self) -> DraftsRequest:
        if self.n not in (None, 1):
            raise contradiction("n", "drafts are shown of one answer; n must be 1")
        if self.stream is False:
            raise contradiction("stream", "drafts are always streamed; stream cannot be false")
        if self.logprobs:
            raise contradiction("logprobs", "drafts tell entropies and no log-probabilities")
        if self.stream_options is not None and self.stream_options.include_usage:
            raise contradiction("stream_options", "drafts tell their cost at their end; leave out include_usage")
        return self
