"""Redraft's own endpoints for drafts and tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from redraft.serve.shapes.chat import ChatRequest, Conversation
from redraft.serve.shapes.common import Items, Shape, contradiction


class TokenizeRequest(Conversation):
    """A text, a prompt or a conversation to turn into token ids; the last two also as vLLM's clients write them."""

    model: str | None = None
    text: Annotated[str | None, Field(description="A text; its tokens alone.")] = None
    prompt: Annotated[str | None, Field(description="A text as /v1/completions reads it, after <bos>.")] = None
    special: Annotated[bool | None, Field(description="Read strings such as <|turn> as special tokens.")] = None
    add_special_tokens: Annotated[
        bool | None, Field(description="Whether a prompt begins with <bos>; by default it does.")
    ] = None
    return_token_strs: Annotated[bool | None, Field(description="Also return the vocabulary's entries.")] = None

    @model_validator(mode="after")
    def _consistent(self) -> TokenizeRequest:
        given = [name for name in ("text", "prompt", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise contradiction(None, "give one of text, prompt and messages")
        if self.special and self.text is None:
            raise contradiction("special", f"special is for text; in {given[0]} special strings are plain text")
        if self.add_special_tokens and self.prompt is None:
            sentence = f"add_special_tokens is for prompt; for {given[0]} it must be false"
            raise contradiction("add_special_tokens", sentence)
        if self.messages is None:
            self._refuse_what_is_said_of_messages()
        else:
            self.check_ending()
        return self

    def _refuse_what_is_said_of_messages(self) -> None:
        for name in sorted(Conversation.model_fields):
            if getattr(self, name):
                raise contradiction(name, f"{name} needs messages")

    @property
    def wants_thinking(self) -> bool:
        """Whether the model should think first."""
        return self.chat_template_kwargs is not None and bool(self.chat_template_kwargs.enable_thinking)


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
