"""`POST /v1/responses`: OpenAI's newer request, a list of items, with Redraft's settings as extra fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from redraft.serve.shapes.chat import FunctionCall, FunctionDeclaration, NamedFunction, UnsupportedPart
from redraft.serve.shapes.common import (
    Cacheable,
    Caller,
    ClientTool,
    Constraints,
    Detail,
    Items,
    Seed,
    Settings,
    Shape,
    Tokens,
    Translated,
    contradiction,
    max_members,
    one_schema,
    only,
    places,
    schema_constraint,
    tool_constraint,
)

_ECHOED = "Sent back as part of an answer's item; ignored."
Echoed = Annotated[Any, Field(exclude=True, description=_ECHOED)]


class InputText(Cacheable):
    """Text."""

    type: Literal["input_text"]
    text: str


class InputImage(Cacheable):
    """An image as a data URL; `detail` works as in chat."""

    type: Literal["input_image"]
    image_url: str
    detail: Detail | None = None
    file_id: Annotated[str | None, only()] = None


class InputFile(UnsupportedPart):
    """Not supported; known only so that the error can say so."""

    type: Literal["input_file"]  # type: ignore[assignment]
    filename: Any = None
    file_data: Any = None
    file_url: Any = None
    file_id: Any = None


class OutputText(Shape):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: Echoed = None
    logprobs: Echoed = None
    parsed: Echoed = None


class OutputRefusal(UnsupportedPart):
    """Not supported; known only so that the error can say so."""

    type: Literal["refusal"]  # type: ignore[assignment]
    refusal: Any = None


class InputMessage(Shape):
    """What a person says and shows, or instructions."""

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    content: str | Items[Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]]
    id: Echoed = None
    status: Echoed = None

    def message(self) -> dict[str, Any]:
        """Return the message as chat templates read it."""
        return {"role": self.role, "content": _content(self.content)}


class OutputMessage(Shape):
    """What the model said."""

    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: str | Items[Annotated[OutputText | OutputRefusal, Field(discriminator="type")]]
    id: Echoed = None
    status: Echoed = None
    phase: Echoed = None

    def words(self) -> str:
        """Return all of its text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, OutputText))


class Thought(Shape):
    """What the model thought; only other models use `summary`."""

    type: Literal["reasoning"]
    id: Echoed = None
    summary: Echoed = None
    content: Items[ReasoningText] | None = None
    encrypted_content: Annotated[str | None, only()] = None
    status: Echoed = None


class ReasoningText(Shape):
    """A part of a thought."""

    type: Literal["reasoning_text"]
    text: str


class CallItem(FunctionCall):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    id: Echoed = None
    status: Echoed = None
    namespace: Annotated[str | None, only()] = None
    caller: Annotated[Any, only({"type": "direct"})] = None
    # Clients send an item back with the alias or, since `async` is a keyword in Python, without.
    async_: Annotated[bool | None, Field(validation_alias=AliasChoices("async", "async_")), only(False)] = None

    def call(self) -> dict[str, Any]:
        """Return the call as chat templates read it."""
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class CallOutput(Shape):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Items[Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]]
    id: Echoed = None
    status: Echoed = None
    caller: Annotated[Any, only({"type": "direct"})] = None

    def message(self) -> dict[str, Any]:
        """Return the result as chat templates read it."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": _content(self.output)}


def _kind(item: Any) -> str | None:
    """Return which shape an item has; messages may omit their type."""
    if isinstance(item, Shape):
        item = {name: getattr(item, name, None) for name in ("type", "role")}
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message")
    return "output_message" if (kind, item.get("role")) == ("message", "assistant") else str(kind)


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[OutputMessage, Tag("output_message")]
    | Annotated[Thought, Tag("reasoning")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutput, Tag("function_call_output")],
    Discriminator(
        _kind,
        custom_error_type="unsupported_item",
        custom_error_message="is not an item that this server takes: a message, reasoning, a call or its output",
    ),
]


class FunctionTool(FunctionDeclaration, ClientTool):
    """A declared function."""

    type: Literal["function"]


class NamedTool(NamedFunction):
    """A `tool_choice` that names the one function to call."""

    type: Literal["function"]


class AllowedChoice(Shape):
    """A `tool_choice` that names the functions that may be called; the model still reads about all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Items[NamedTool], Field(min_length=1)]


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedChoice, Field(discriminator="type")] | None
)


class TextFormat(Shape):
    """Plain text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise PydanticCustomError("text_format", "needs schema if, and only if, its type is 'json_schema'")
        return self


class TextConfig(Shape):
    """What the text must look like."""

    format: TextFormat | None = None
    verbosity: Annotated[str | None, only("medium")] = None


class ReasoningConfig(Shape):
    """Whether the model thinks first; its thoughts are returned as they are, not summarised."""

    effort: Annotated[str | None, only("none", "high")] = None
    summary: Annotated[str | None, only("auto")] = None
    generate_summary: Annotated[str | None, only("auto")] = None


class ResponseStreamOptions(Shape):
    """Accepted with its neutral value."""

    include_obfuscation: Annotated[bool | None, only(False)] = None


LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "web_search_call.action.sources",
    "web_search_call.results", "file_search_call.results", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]  # fmt: skip
"""Log-probabilities; parts of items that this server never has; and thoughts, which it always returns."""


_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens", "thinking": "reasoning"}


class ResponsesRequest(Caller, Settings, Constraints):
    """A conversation to answer. Nothing is stored, so each request holds all of it."""

    model: str
    input: str | Annotated[Items[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextConfig | None = None
    tools: Items[FunctionTool] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    metadata: Annotated[dict[str, str], max_members(16)] | None = None
    include: Items[Include] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    # Settings of other engines that Redraft lacks: it accepts the values that describe what happens anyway.
    store: Annotated[bool | None, only(False)] = None
    previous_response_id: Annotated[str | None, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    background: Annotated[bool | None, only(False)] = None
    truncation: Annotated[str | None, only("disabled")] = None
    max_tool_calls: Annotated[int | None, Field(description="For tools that the server runs; it has none.")] = None
    top_p: Annotated[float | None, only(1)] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponsesRequest:
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise contradiction("tool_choice", "tool_choice needs tools")
        if self.text and self.text.format and self.text.format.schema_ is not None:
            one_schema(self, "text", self.text.format.strict)
        if self.top_logprobs and self.logprobs is None:
            raise contradiction("top_logprobs", f"top_logprobs needs {LOGPROBS!r} in include")
        return self

    @property
    def logprobs(self) -> int | None:
        """How many of the likeliest tokens to report beside each one's log-probability; None to report nothing."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def wants_thinking(self) -> bool:
        """Whether the model should think first."""
        return self.reasoning is not None and self.reasoning.effort == "high"

    def limits(self, room: int) -> dict[str, Any]:
        """Return what ends the answer, and which log-probabilities it gets; `room` tokens are left in the context."""
        return {"max_tokens": self.max_output_tokens, "logprobs": self.logprobs}

    def tool_constraint(self) -> dict[str, Any]:
        """Return the constraint given by the tools and the choice among them."""
        tools, parallel = self.declared_tools(), self.parallel_tool_calls
        match self.tool_choice:
            case AllowedChoice(mode=mode, tools=allowed):
                return tool_constraint(tools, mode, parallel, allowed=[tool.name for tool in allowed])
            case NamedTool(name=name):
                return tool_constraint(tools, {"name": name}, parallel)
            case mode:
                return tool_constraint(tools, mode or "auto", parallel)

    def format_constraint(self) -> dict[str, Any]:
        """Return the constraint given by `text.format`."""
        wanted = self.text and self.text.format
        if wanted is None or wanted.type == "text":
            return {}
        return schema_constraint(wanted.schema_, wanted.strict)

    def declared_tools(self) -> list[dict[str, Any]]:
        """Return the tools as chat templates read them."""
        functions = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in self.tools or ()]
        return [{"type": "function", "function": function} for function in functions]

    def chat(self) -> list[dict[str, Any]]:
        """Return the conversation as chat templates read it: the model's thoughts, text and calls form one message."""
        return [message for message, _ in self._translated()]

    def names(self) -> dict[str, str]:
        """Map the engine's names, and places in what chat templates read, to this request's."""
        tools = {f"tools[{index}].function": f"tools[{index}]" for index in range(len(self.tools or ()))}
        form = dict.fromkeys(self.format_constraint(), "text") | self.constraint_names()
        return _NAMES | form | tools | places(self._translated())

    def _translated(self) -> Translated:
        found: Translated = []
        if self.instructions:
            found.append(_alone("system", self.instructions, "instructions"))
        if isinstance(self.input, str):
            return [*found, _alone("user", self.input, "input")]
        for index, item in enumerate(self.input):
            place = f"input[{index}]"
            if isinstance(item, InputMessage):
                found.append((item.message(), {"": place}))
            elif isinstance(item, CallOutput):
                found.append((item.message(), {"": place, ".content": f"{place}.output"}))
            else:
                if not found or found[-1][0]["role"] != "assistant":
                    found.append(({"role": "assistant"}, {"": place}))
                _extend(*found[-1], item, place)
        return found


def _alone(role: str, text: str, place: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A message that is one field of the request."""
    return {"role": role, "content": text}, {"": place, ".content": place}


def _extend(
    message: dict[str, Any], parts: dict[str, str], item: OutputMessage | Thought | CallItem, place: str
) -> None:
    """Add the content of one more item, which the request has at `place`, to the assistant's message."""
    match item:
        case OutputMessage():
            message["content"] = "\n".join(filter(None, (message.get("content"), item.words())))
            parts[".content"] = f"{place}.content"
        case CallItem():
            calls = message.setdefault("tool_calls", [])
            call = f".tool_calls[{len(calls)}]"
            parts |= {call: place, f"{call}.function": place, f"{call}.id": f"{place}.call_id"}
            calls.append(item.call())
        case Thought(content=content):
            thoughts = [message.get("reasoning"), *(part.text for part in content or ())]
            message |= {"reasoning": thought} if (thought := "\n".join(filter(None, thoughts))) else {}
            parts[".reasoning"] = f"{place}.content"


def _content(content: str | Sequence[Any]) -> str | list[dict[str, Any]]:
    """Return text alone as one string, otherwise text and images as parts in chat's shape."""
    if isinstance(content, str):
        return content
    if all(isinstance(part, InputText) for part in content):
        return "\n".join(part.text for part in content)
    return [
        {"type": "image_url", "image_url": {"url": part.image_url} | ({"detail": part.detail} if part.detail else {})}
        if isinstance(part, InputImage)
        else {"type": "text", "text": part.text}
        for part in content
    ]
