"""`POST /v1/chat/completions`: OpenAI's request, with Redraft's settings as extra fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from redraft.serve.shapes.common import (
    MAX_CHOICES,
    Cacheable,
    Caller,
    ClientTool,
    Constraints,
    Detail,
    Items,
    Seed,
    Settings,
    Shape,
    Stop,
    Tokens,
    TokenSampling,
    contradiction,
    one_schema,
    only,
    schema_constraint,
    tool_constraint,
)
from redraft.text.strict_json import loads, no_json

_PARSED = "Added by OpenAI's client to an answer that it has parsed; ignored."
Name = Annotated[str | None, Field(description="Who is speaking; the model sees it if its chat template shows names.")]


class TextPart(Cacheable):
    """A piece of text in a message's content."""

    type: Literal["text"]
    text: str


class ImageUrl(Shape):
    """An image's data URL, and how many tokens it may take."""

    url: str
    detail: Detail | None = None


class ImagePart(Cacheable):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class UnsupportedPart(Shape):
    """Not supported; known only so that the error can say so."""

    type: Literal["input_audio", "file"]
    input_audio: Any = None
    file: Any = None

    @model_validator(mode="after")
    def _refuse(self) -> UnsupportedPart:
        what = {"kind": self.type}
        raise PydanticCustomError("unsupported_media", "holds {kind}; this server takes only text and images", what)


class MisplacedImage(ImagePart):
    """An image where none is allowed; known only so that the error can say so."""

    @model_validator(mode="after")
    def _refuse(self) -> MisplacedImage:
        raise PydanticCustomError("unsupported_media", "holds an image; only user messages can")


Shown = str | Items[Annotated[TextPart | ImagePart | UnsupportedPart, Field(discriminator="type")]]
Text = str | Items[Annotated[TextPart | MisplacedImage | UnsupportedPart, Field(discriminator="type")]]


class FunctionCall(Shape):
    """A call in an assistant message; `arguments` is a JSON object, which most clients write as a string."""

    name: str
    arguments: str | dict[str, Any] = "{}"
    parsed_arguments: Annotated[Any, Field(exclude=True, description=_PARSED)] = None

    @field_validator("arguments")
    @classmethod
    def _parse(cls, arguments: str | dict[str, Any]) -> dict[str, Any]:
        try:
            parsed = loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError) as error:
            found = {"reason": no_json(error)}
            raise PydanticCustomError("tool_arguments", "must be a JSON object ({reason})", found) from error
        if not isinstance(parsed, dict):
            raise PydanticCustomError("tool_arguments", "must be a JSON object")
        return parsed


class Call(Shape):
    """A tool call in an assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class SystemMessage(Shape):
    """Instructions."""

    role: Literal["system", "developer"]
    content: Text
    name: Name = None


class UserMessage(Shape):
    """What a person says and shows."""

    role: Literal["user"]
    content: Shown
    name: Name = None


class AssistantMessage(Shape):
    """What the model said; every field of an answer's message may be sent back."""

    role: Literal["assistant"]
    content: Text | None = None
    parsed: Annotated[Any, Field(exclude=True, description=_PARSED)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Items[Call] | None = None
    name: Name = None
    refusal: Annotated[str | None, only()] = None
    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None
    annotations: Annotated[list[Any] | None, only([])] = None


class ToolMessage(Shape):
    """A tool's result."""

    role: Literal["tool"]
    content: Text
    tool_call_id: str
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionDeclaration(Shape):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(ClientTool):
    """A declared tool."""

    type: Literal["function"]
    function: FunctionDeclaration


class NamedFunction(Shape):
    """The name in a named tool choice."""

    name: str


class NamedChoice(Shape):
    """A `tool_choice` that names the one function to call."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Shape):
    """The functions that may be called, and whether one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[Items[NamedChoice], Field(min_length=1)]


class AllowedChoice(Shape):
    """A `tool_choice` that names the functions that may be called; the model still reads about all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")] | None
)


class JsonSchema(Shape):
    """The schema of a `response_format`."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Shape):
    """Plain text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("response_format", "needs json_schema if, and only if, its type is 'json_schema'")
        return self


class StreamOptions(Shape):
    """`include_usage` adds a final chunk with the usage."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


class Streamed(Shape):
    """Whether an answer is streamed, and how, in chat and completions."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise contradiction("stream_options", "stream_options needs stream to be true")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TemplateSettings(Shape):
    """What vLLM's and SGLang's clients pass on to the chat template."""

    enable_thinking: bool | None = None


class Conversation(Shape):
    """A conversation as the chat template reads it, and what vLLM's clients say about it."""

    messages: Annotated[Items[Message], Field(min_length=1)] | None = None
    tools: Items[Tool] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateSettings | None = None

    def check_ending(self) -> None:
        """Check what vLLM's clients say about the last message: only the assistant's is continued."""
        begun = bool(self.messages) and isinstance(self.messages[-1], AssistantMessage)
        if self.continue_final_message not in (None, begun):
            raise contradiction(
                "continue_final_message",
                "continue_final_message must be true if the last message is the assistant's, else false",
            )
        if self.add_generation_prompt not in (None, not begun):
            raise contradiction(
                "add_generation_prompt",
                "add_generation_prompt must be false if the last message is the assistant's, else true",
            )

    def chat(self) -> list[dict[str, Any]]:
        """Return the messages as chat templates read them."""
        return [message.model_dump(exclude_none=True, exclude={"annotations"}) for message in self.messages or ()]

    def declared_tools(self) -> list[dict[str, Any]]:
        """Return the tools as chat templates read them."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]


class ChatRequest(Conversation, Streamed, Caller, Settings, Constraints, TokenSampling):
    """A conversation to answer."""

    model: str
    messages: Annotated[Items[Message], Field(min_length=1)]  # type: ignore[assignment]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Annotated[str | None, only("none", "high")] = None
    thinking: bool | None = None
    confidence: Annotated[bool | None, Field(description="Return each token's entropy and the step it settled at.")] = (
        None
    )
    metadata: Annotated[dict[str, str] | None, Field(description="For stored answers; none is stored.")] = None
    # Settings of other engines that Redraft lacks: it accepts the values that describe what happens anyway.
    store: Annotated[bool | None, only(False)] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    modalities: Annotated[list[Any] | None, only(["text"])] = None
    verbosity: Annotated[str | None, only("medium")] = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        lengths = {name: getattr(self, name) for name in ("max_tokens", "max_completion_tokens")}
        for same in (lengths, self._thinking_by_field()):
            one, *others = [name for name, value in same.items() if value is not None] or [""]
            if others:
                raise contradiction(one, f"{one} and {others[0]} mean the same; give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise contradiction("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise contradiction("tool_choice", "tool_choice needs tools")
        if self.response_format and self.response_format.json_schema:
            one_schema(self, "response_format", self.response_format.json_schema.strict)
        self.check_ending()
        return self

    def names(self) -> dict[str, str]:
        """Map the engine's names for settings to this request's names where they differ."""
        others = {
            "max_tokens": "max_completion_tokens", "json_schema": "response_format", "json_object": "response_format"
        }  # fmt: skip
        given = {name: other for name, other in others.items() if getattr(self, name, None) is None}
        thinking = next((name for name, value in self._thinking_by_field().items() if value is not None), "thinking")
        return {"prompt": "messages", "thinking": thinking} | given | self.constraint_names()

    @property
    def wants_thinking(self) -> bool:
        """Whether the model should think first."""
        return any(self._thinking_by_field().values())

    def _thinking_by_field(self) -> dict[str, bool | None]:
        """What each field that can say it says about thinking."""
        template, effort = self.chat_template_kwargs, self.reasoning_effort
        return {
            "thinking": self.thinking,
            "reasoning_effort": None if effort is None else effort == "high",
            "chat_template_kwargs.enable_thinking": None if template is None else template.enable_thinking,
        }

    def limits(self, room: int) -> dict[str, Any]:
        """Return what ends the answer, and which log-probabilities it gets; `room` tokens are left in the context."""
        return {
            "max_tokens": self.max_tokens or self.max_completion_tokens,
            "stop": self.stop,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }

    def tool_constraint(self) -> dict[str, Any]:
        """Return the constraint given by the tools and the choice among them."""
        tools, parallel = self.declared_tools(), self.parallel_tool_calls
        match self.tool_choice:
            case AllowedChoice(allowed_tools=allowed):
                names = [tool.function.name for tool in allowed.tools]
                return tool_constraint(tools, allowed.mode, parallel, allowed=names)
            case NamedChoice(function=function):
                return tool_constraint(tools, {"name": function.name}, parallel)
            case mode:
                return tool_constraint(tools, mode or "auto", parallel)

    def format_constraint(self) -> dict[str, Any]:
        """Return the constraint given by `response_format`."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return {}
        schema = wanted.json_schema
        return schema_constraint(schema and schema.schema_, schema and schema.strict)
