"""Redraft's own endpoints for drafts and tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from redraft.serve.shapes.chat import ChatRequest, Message
from redraft.serve.shapes.common import Items, Shape, contradiction


class TokenizeRequest(Shape):
    """A text or a conversation to turn into token ids."""

    model: str | None = None
    text: str | None = None
    messages: Annotated[Items[Message], Field(min_length=1)] | None = None
    special: Annotated[bool | None, Field(description="Read strings such as <|turn> as special tokens.")] = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.text is None) == (self.messages is None):
            raise contradiction(None, "give either text or messages")
        if self.special and self.messages is not None:
            raise contradiction("special", "special is for text; in messages special strings are plain text")
        return self


class DetokenizeRequest(Shape):
    """Token ids to turn into text; a list of lists gives a list of texts."""

    model: str | None = None
    tokens: Items[int] | Items[Items[int]]
    pieces: Annotated[bool | None, Field(description="Also return the text of every token.")] = None


class DraftsRequest(ChatRequest):
    """A chat request that shows its drafts; it gives one answer, so `n` is 1."""

    @model_validator(mode="after")
    def _single(self) -> DraftsRequest:
        if self.n not in (None, 1):
            raise contradiction("n", "drafts are shown for one answer only; n must be 1")
        if self.stream is False:
            raise contradiction("stream", "drafts are always streamed; stream cannot be false")
        if self.logprobs:
            raise contradiction("logprobs", "drafts report entropies, not log-probabilities; leave out logprobs")
        if self.wants_usage:
            raise contradiction("stream_options", "drafts report their cost at the end anyway; leave out include_usage")
        return self
