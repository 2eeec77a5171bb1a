"""`/v1/fill`, `/v1/edits` and `/v1/decisions`: what else a canvas that sees both sides can do."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from redraft.serve.shapes.chat import Message, Tool
from redraft.serve.shapes.common import Constraints, Items, Sampling, Seed, Shape, Tokens, contradiction, max_members
from redraft.text.pieces import HOLE

MAX_HOLES = 128
"""Holes of one text."""


class Constrained(Sampling, Constraints):
    """Constraints on the text of a hole or span: those of an answer except `pins`, which count tokens."""

    def keywords(self) -> dict[str, Any]:
        """Return settings and constraints as `LLM.fill` and `LLM.edit` take them."""
        return self.settings() | self.constraints()

    def names(self) -> dict[str, str]:
        """Map the engine's names of settings to this request's where they differ."""
        return self.constraint_names()

    @model_validator(mode="after")
    def _no_pins(self) -> Self:
        if self.pins is not None:
            raise contradiction("pins", "pins count the tokens of an answer; use text_pins here")
        return self


def _few_holes(text: str) -> str:
    """Refuse a text with more than `MAX_HOLES`, each of which is work of its own."""
    if (count := text.count(HOLE)) > MAX_HOLES:
        found = {"most": MAX_HOLES, "count": count}
        raise PydanticCustomError("too_many", "has {count} holes; at most {most} are allowed", found)
    return text


class Drafted(Constrained):
    """Work that may be streamed."""

    stream: Annotated[bool | None, Field(description="Server-sent events of the drafts as they settle.")] = None


class FillRequest(Drafted):
    """Fill the hole between `prefix` and `suffix`, or every `<|fill|>` in `text`."""

    model: str
    prefix: str | None = None
    suffix: str | None = None
    text: Annotated[str, AfterValidator(_few_holes)] | None = None
    max_tokens: Annotated[Tokens | None, Field(description="Most tokens of each filling; its length is found.")] = None
    length: Annotated[Tokens | None, Field(description="Tokens of each filling, instead of finding its length.")] = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _one(self) -> FillRequest:
        sides = self.prefix is not None and self.suffix is not None
        if sides == (self.text is not None) or (self.text is not None and (self.prefix or self.suffix)):
            raise contradiction(None, "give either prefix and suffix, or text")
        return self


class EditRequest(Drafted):
    """Change the characters `span` (start, end) of `text` as `instruction` says, or repair them without one."""

    model: str
    text: str
    span: Annotated[Items[int], Field(min_length=2, max_length=2)]
    instruction: str | None = None
    strength: Annotated[
        float | None, Field(ge=0, le=1, description="Least share of the span that begins as noise.")
    ] = None
    max_tokens: Tokens | None = None
    seed: Seed | None = None


class RecentEdit(Shape):
    """A recent edit: `old` was replaced by `new`."""

    old: str
    new: str


class NextEditRequest(Sampling):
    """Propose the edit that follows from recent ones, near the `cursor` (a character offset) in a text."""

    model: str
    text: str
    cursor: Annotated[int, Field(ge=0)]
    recent: Annotated[Items[RecentEdit], Field(max_length=128)] | None = None
    max_tokens: Tokens | None = None
    seed: Seed | None = None


class DecisionRequest(Shape):
    """Answer one or more questions, each with one of the choices for every slot of the template."""

    model: str
    question: str | Annotated[Items[str], Field(min_length=1, max_length=128)] | None = None
    messages: Annotated[Items[Message], Field(min_length=1)] | None = None
    choices: (
        Annotated[Items[str], Field(min_length=1, max_length=1000)]
        | Annotated[
            dict[str, Annotated[Items[str], Field(max_length=1000)]],
            max_members(64),
            Field(min_length=1, max_length=64),
        ]
    )
    template: str | None = None
    ends: bool | None = None
    tools: Items[Tool] | None = None
    calibrate: bool | None = None
    temperature: Annotated[float, Field(gt=0)] | None = None
    sure: Annotated[float, Field(ge=0, le=1)] | None = None
    reads: Annotated[int, Field(ge=1, le=64)] | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _one(self) -> DecisionRequest:
        if (self.question is None) == (self.messages is None):
            raise contradiction(None, "give either question or messages")
        return self

    def asked(self) -> Any:
        """Return the question as `LLM.decide` takes it."""
        if self.messages is None:
            return self.question
        return [message.model_dump(exclude_none=True) for message in self.messages]

    def names(self) -> dict[str, str]:
        """Map the engine's names of settings to this request's where they differ."""
        return {} if self.messages is None else {"question": "messages"}

    def options(self) -> dict[str, Any]:
        """Return the other arguments of `LLM.decide`."""
        names = ("template", "ends", "calibrate", "temperature", "sure", "reads", "seed")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.tools:
            given["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools]
        return given
