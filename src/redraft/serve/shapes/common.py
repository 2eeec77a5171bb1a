"""What request shapes share: strictness, Redraft's own settings, and fields that accept only a neutral value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from redraft.checks import MAX_NUMBER
from redraft.errors import ConstraintError
from redraft.settings import HIGHEST_BIAS, MOST_BIASED

T = TypeVar("T")

MAX_CHOICES = 128
"""Answers to one request (`n`), and prompts in one completions request."""
MOST_FIELDS = 1000
"""More fields than any shape has."""


class Shape(BaseModel):
    """A JSON object that refuses unknown fields and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _first(cls, given: Any) -> Any:
        """Keep only the first of too many fields, some unknown for sure: reporting all would delay all requests."""
        many = isinstance(given, dict) and len(given) > MOST_FIELDS
        return dict(islice(given.items(), MOST_FIELDS)) if many else given


Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that reports only its first wrong item: in a body of megabytes, reporting all would delay all requests."""


def hold_images(messages: Any) -> bool:
    """Whether any of the messages, or any block nested in them, has an image."""
    for one in messages if isinstance(messages, list) else ():
        if getattr(one, "type", None) in ("image", "image_url", "input_image") or any(
            hold_images(getattr(one, name, None)) for name in ("content", "output")
        ):
            return True
    return False


Translated = list[tuple[dict[str, Any], dict[str, str]]]
"""Messages as chat templates read them, each with where the request has its parts: `{".content[0]": "input[3]"}`. The
part "" is the whole message."""


def places(messages: Translated) -> dict[str, str]:
    """Map places in the translated `messages` to those in the request."""
    return {f"messages[{i}]{part}": place for i, (_, parts) in enumerate(messages) for part, place in parts.items()}


def contradiction(field: str | None, sentence: str) -> PydanticCustomError:
    """An error about fields that contradict each other: the one at fault (None if all are equally), and why."""
    return PydanticCustomError("contradiction", "{sentence}", {"sentence": sentence, "field": field})


def one_schema(given: Constraints, field: str, strict: bool | None) -> None:
    """Refuse a schema in OpenAI's `field` next to Redraft's own, and a `strict` in it that differs from Redraft's."""
    if "json_schema" in given.constraints():
        own = "json_schema" if given.json_schema is not None else "structured_outputs"
        raise contradiction(own, f"{own} and {field} mean the same; give one of them")
    if given.strict is not None and strict not in (None, given.strict):
        raise contradiction("strict", f"strict and {field}'s strict contradict each other; give one of them")


def tool_constraint(
    tools: Sequence[dict[str, Any]],
    choice: str | Mapping[str, str | None],
    parallel: bool | None,
    *,
    allowed: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the tools, the choice among them and whether several calls are allowed, as arguments of
    `redraft.constraints.build`; only the tools named in `allowed`, if it is given, can be called."""
    declared = {tool["function"]["name"]: tool for tool in tools}
    for name in allowed or ():
        if name not in declared:
            raise ConstraintError(f"tool_choice allows {name!r}; the tools are {', '.join(declared)}.", "tool_choice")
    callables = tools if allowed is None else [declared[name] for name in declared if name in allowed]
    return {"tools": callables, "tool_choice": choice, "parallel_tool_calls": parallel} if tools else {}


class ClientTool(Shape):
    """A tool that the client declares and runs, of the type `_OWN`. OpenAI and Anthropic know or run all others."""

    _OWN: ClassVar[str] = "function"

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") not in (cls._OWN, None):
            kind = {"kind": repr(given["type"])[:80]}
            raise PydanticCustomError("unsupported_tool", "has type {kind}; this server takes only functions", kind)
        return given


def schema_constraint(schema: dict[str, Any] | None, strict: bool | None) -> dict[str, Any]:
    """Return what OpenAI's formats ask for as arguments of `redraft.constraints.build`; no schema means any object."""
    if schema is None:
        return {"json_object": True}
    return {"json_schema": schema} | ({} if strict is None else {"strict": strict})


def max_members(most: int) -> BeforeValidator:
    """Refuse an object of more than `most` members before looking at each of them."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            found = {"most": most, "count": len(value)}
            raise PydanticCustomError("too_many", "has {count} members; at most {most} are allowed", found)
        return value

    return BeforeValidator(check)


def only(*neutral: Any) -> AfterValidator:
    """Accept a field of another engine's API only if it asks for what happens anyway."""

    def check(value: Any) -> Any:
        if value is None or value in neutral:
            return value
        allowed = " or ".join(repr(item) for item in neutral) or "null"
        raise PydanticCustomError(
            "unsupported_value",
            "{value} is not supported; it must be {allowed}",
            {"value": repr(value)[:80], "allowed": allowed},
        )

    return AfterValidator(check)


class TokenSampling(Shape):
    """Settings of samplers that write one token after the other, at the values that describe what happens anyway."""

    top_p: Annotated[float | None, only(1)] = None
    top_k: Annotated[int | None, only(-1, 0)] = None
    min_p: Annotated[float | None, only(0)] = None
    min_tokens: Annotated[int | None, only(0)] = None
    frequency_penalty: Annotated[float | None, only(0)] = None
    presence_penalty: Annotated[float | None, only(0)] = None
    repetition_penalty: Annotated[float | None, only(1)] = None
    best_of: Annotated[int | None, only(1)] = None
    use_beam_search: Annotated[bool | None, only(False)] = None
    ignore_eos: Annotated[bool | None, only(False)] = None
    skip_special_tokens: Annotated[bool | None, only(True)] = None
    priority: Annotated[int | None, only(0)] = None


Tokens = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Stop = str | Annotated[Items[str], Field(max_length=16)]


class Sampling(Shape):
    """How a canvas is denoised. None means the model's default."""

    preset: str | None = None
    steps: Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None = None
    entropy_bound: float | None = None
    t_max: float | None = None
    t_min: float | None = None
    schedule_steps: Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None = None
    stretch_schedule: bool | None = None
    stability_threshold: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    confidence_threshold: float | None = None
    canvas_length: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return what was given, by the names of `GenerationSettings` and `preset`, so without `timeout`."""
        named = (Settings if isinstance(self, Settings) else Sampling).model_fields
        names = sorted(set(named) - {"timeout"})
        return {name: value for name in names if (value := getattr(self, name)) is not None}


Position = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")]
"""A whole number as a JSON key, in its only spelling, so that two keys never mean the same position or token."""

Biasing = Annotated[float, Field(ge=-HIGHEST_BIAS, le=HIGHEST_BIAS)]


def _by_number(given: dict[str, Any]) -> dict[int, Any]:
    """The same object with its keys as numbers."""
    return {int(key): value for key, value in given.items()}


class Settings(Sampling):
    """Redraft's own settings, as extra fields of every request that writes an answer; `logit_bias` is OpenAI's."""

    stop_at_eos: bool | None = None
    forbid_empty: bool | None = None
    fit_canvas: bool | None = None
    latency_budget_ms: Annotated[float, Field(gt=0)] | None = None
    logit_bias: Annotated[dict[Position, Biasing], max_members(MOST_BIASED), AfterValidator(_by_number)] | None = None
    timeout: Annotated[float, Field(gt=0, description="Seconds after which the answer is cut off.")] | None = None


Detail = Literal["auto", "low", "high", 70, 140, 280, 560, 1120]
"""How many tokens an image may take: low 70, high 1,120, auto the model's default."""

_CACHED = Field(exclude=True, description="Ignored: equal beginnings of prompts are computed only once anyway.")


class Cacheable(Shape):
    """A part of a message in OpenAI's requests, after which a client may want the prompt to be cached."""

    prompt_cache_breakpoint: Annotated[dict[str, Any] | None, _CACHED] = None


class Caller(Shape):
    """Who asks, and how to cache, in OpenAI's requests for an answer: fields that never change it."""

    user: Annotated[str, Field(max_length=512)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str | None, _CACHED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, _CACHED] = None
    prompt_cache_retention: Annotated[str | None, _CACHED] = None

    @property
    def end_user(self) -> str | None:
        """Who asks, for the log."""
        return self.user or self.safety_identifier


Pins = Annotated[dict[Position, str], max_members(10_000)]


_NAMED_BY_VLLM = {"json_": "json_schema", "regex": "regex", "choice": "choices", "json_object": "json_object"}
"""The keywords of `redraft.constraints.build` by the fields of `StructuredOutputs`."""
_PLACES = {name: f"structured_outputs.{field.rstrip('_')}" for field, name in _NAMED_BY_VLLM.items()}


class StructuredOutputs(Shape):
    """One constraint, as vLLM's clients write it."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[Items[str], Field(min_length=1, max_length=10_000)] | None = None
    json_object: Annotated[bool | None, only(True)] = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self.constraint()) != 1:
            raise PydanticCustomError("structured_outputs", "needs exactly one of json, regex, choice and json_object")
        return self

    def constraint(self) -> dict[str, Any]:
        """Return the constraint as an argument of `redraft.constraints.build`."""
        given = {name: getattr(self, field) for field, name in _NAMED_BY_VLLM.items()}
        return {name: value for name, value in given.items() if value is not None}


class Constraints(Shape):
    """What an answer must look like; see docs/constraints.md. Only one constraint may define the whole answer."""

    choices: Annotated[Items[str], Field(min_length=1, max_length=10_000)] | None = None
    regex: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    json_object: bool | None = None
    template: str | None = None
    pins: Pins | None = None
    text_pins: Pins | None = None
    must_include: Items[str] | None = None
    forbidden: Items[str] | None = None
    strict: bool | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        for name in self.structured_outputs.constraint() if self.structured_outputs else ():
            if getattr(self, name, None) is not None:
                raise contradiction(name, f"{name} and structured_outputs mean the same; give one of them")
        return self

    def constraint_names(self) -> dict[str, str]:
        """Map the engine's names of what is given in `structured_outputs` to its places there."""
        given = self.structured_outputs.constraint() if self.structured_outputs else ()
        return {name: _PLACES[name] for name in given}

    def constraints(self) -> dict[str, Any]:
        """Return what was given, as arguments of `redraft.constraints.build`."""
        given = {name: getattr(self, name) for name in Constraints.model_fields}
        other = given.pop("structured_outputs")
        given |= other.constraint() if other else {}
        for name in ("pins", "text_pins"):
            given[name] = _by_number(given[name]) if given[name] else None
        return {name: value for name, value in given.items() if value is not None}
