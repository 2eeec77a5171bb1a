"""`POST /v1/messages`: Anthropic's request, with Redraft's settings as extra fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from redraft.serve.shapes.common import (
    ClientTool,
    Constraints,
    Items,
    Seed,
    Settings,
    Shape,
    Tokens,
    Translated,
    contradiction,
    one_schema,
    only,
    places,
    schema_constraint,
    tool_constraint,
)


class CacheControl(Shape):
    """Accepted but not needed: equal beginnings of prompts are computed only once anyway (docs/serving.md)."""

    type: Literal["ephemeral"]
    ttl: Annotated[str | None, only("5m", "1h")] = None


class TextBlock(Shape):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any] | None, only([])] = None


class ImageSource(Shape):
    """The content of an image's file."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UnsupportedSource(Shape):
    """Not supported; known only so that the error can say so."""

    type: Literal["url", "file"]
    url: str | None = None
    file_id: str | None = None

    @model_validator(mode="after")
    def _refuse(self) -> UnsupportedSource:
        what = {"kind": self.type}
        raise PydanticCustomError(
            "unsupported_media", "names a {kind}; this server fetches nothing, so send images as base64", what
        )


class ImageBlock(Shape):
    """An image."""

    type: Literal["image"]
    source: Annotated[ImageSource | UnsupportedSource, Field(discriminator="type")]
    cache_control: CacheControl | None = None

    def part(self) -> dict[str, Any]:
        """Return the image as chat templates read it."""
        assert isinstance(self.source, ImageSource)
        return {"type": "image", "url": f"data:{self.source.media_type};base64,{self.source.data}"}


class UnsupportedBlock(Shape):
    """Not supported; known only so that the error can say so."""

    type: Literal["document"]
    source: Any = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _refuse(self) -> UnsupportedBlock:
        what = {"kind": self.type}
        raise PydanticCustomError("unsupported_media", "holds {kind}; this server takes only text and images", what)


class ToolUseBlock(Shape):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Any = None
    toolset_name: Annotated[str | None, only()] = None


ResultBlock = Annotated[TextBlock | ImageBlock | UnsupportedBlock, Field(discriminator="type")]


class ToolResultBlock(Shape):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[ResultBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _shows_no_error(self) -> ToolResultBlock:
        if self.is_error and any(isinstance(block, ImageBlock) for block in self.content or ()):
            raise PydanticCustomError("unsupported_media", "holds an image; an error can hold only text")
        return self


class ThinkingBlock(Shape):
    """What the model thought; the signature is accepted as it was given."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


UserBlock = Annotated[TextBlock | ImageBlock | UnsupportedBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ToolUseBlock | ThinkingBlock, Field(discriminator="type")]


class UserTurn(Shape):
    """What a person says and shows, and the results of tools."""

    role: Literal["user"]
    content: str | Items[UserBlock]


class AssistantTurn(Shape):
    """What the model said."""

    role: Literal["assistant"]
    content: str | Items[AssistantBlock]


class SystemTurn(Shape):
    """Instructions from here on."""

    role: Literal["system"]
    content: str | Items[TextBlock]


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


class ToolDeclaration(ClientTool):
    """A tool that the model may use."""

    _OWN = "custom"

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = None
    eager_input_streaming: Annotated[bool | None, Field(description="Ignored: a call is sent as a whole.")] = None
    defer_loading: Annotated[bool | None, only(False)] = None
    allowed_callers: Annotated[list[Any] | None, only(["direct"])] = None
    input_examples: Annotated[list[Any] | None, only([])] = None

    def function(self) -> dict[str, Any]:
        """Return the declaration in OpenAI's shape."""
        said = {"description": self.description, "strict": self.strict}
        named = {"name": self.name, "parameters": self.input_schema}
        return named | {name: value for name, value in said.items() if value is not None}


class ToolChoice(Shape):
    """Which tools may, must or must not be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise PydanticCustomError("tool_choice", "needs a name if, and only if, its type is 'tool'")
        return self


class Thinking(Shape):
    """Whether the model thinks first. It decides how much: `budget_tokens` is by definition only a target."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Tokens | None = None
    display: Annotated[str | None, only("summarized")] = None


class JsonFormat(Shape):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Shape):
    """What the answer must look like."""

    format: JsonFormat | None = None
    effort: Annotated[str | None, only("high")] = None


class Metadata(Shape):
    """Who is asking, for the server's log."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class CountRequest(Shape):
    """A conversation whose tokens to count."""

    model: str
    messages: Annotated[Items[Turn], Field(min_length=1)]
    system: str | Items[TextBlock] | None = None
    tools: Items[ToolDeclaration] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CountRequest:
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not self.tools:
            raise contradiction("tool_choice", "tool_choice needs tools")
        return self

    @property
    def wants_thinking(self) -> bool:
        """Whether the model should think first."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def declared_tools(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's shape, which chat templates read."""
        return [{"type": "function", "function": tool.function()} for tool in self.tools or ()]

    def tool_constraint(self) -> dict[str, Any]:
        """Return the constraint given by the tools and the choice among them."""
        choice = self.tool_choice
        names = {"any": "required", "none": "none", "auto": "auto"}
        wanted = "auto" if choice is None else names.get(choice.type, {"name": choice.name})
        alone = choice is not None and bool(choice.disable_parallel_tool_use)
        return tool_constraint(self.declared_tools(), wanted, not alone)

    def chat(self) -> list[dict[str, Any]]:
        """Return the conversation in OpenAI's shape, which chat templates read."""
        return [message for message, _ in self._translated()]

    def names(self) -> dict[str, str]:
        """Map the engine's names, and places in what chat templates read, to this request's."""
        return {"prompt": "messages"} | self._tool_places() | places(self._translated())

    def _tool_places(self) -> dict[str, str]:
        tools = [(f"tools[{index}].function", f"tools[{index}]") for index in range(len(self.tools or ()))]
        return dict(tools) | {f"{ours}.parameters": f"{theirs}.input_schema" for ours, theirs in tools}

    def _translated(self) -> Translated:
        system = _text(self.system) if self.system else ""
        found: Translated = []
        if system:
            found.append(({"role": "system", "content": system}, {"": "system", ".content": "system"}))
        for index, turn in enumerate(self.messages):
            place = f"messages[{index}]"
            match turn:
                case UserTurn():
                    found += _user(turn, place)
                case AssistantTurn():
                    found.append(_assistant(turn, place))
                case SystemTurn():
                    found.append(({"role": "system", "content": _text(turn.content)}, {"": place}))
        return found


def _refuse_thread(value: Any) -> None:
    """Refuse `thread` with the code that makes Anthropic's client send whole conversations from then on."""
    if value is not None:
        raise PydanticCustomError("thread_unsupported_request", "is not supported; this server keeps no conversations")


class MessagesRequest(CountRequest, Settings, Constraints):
    """A conversation to answer."""

    max_tokens: Tokens
    stop_sequences: Annotated[Items[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    metadata: Metadata | None = None
    top_p: Annotated[float | None, only(1)] = None
    top_k: Annotated[int | None, only()] = None
    service_tier: Annotated[str | None, only("auto", "standard_only")] = None
    thread: Annotated[Any, AfterValidator(_refuse_thread)] = None

    @model_validator(mode="after")
    def _one_schema(self) -> MessagesRequest:
        if self.output_config and self.output_config.format:
            one_schema(self, "output_config.format", None)
        return self

    @property
    def end_user(self) -> str | None:
        """Who asks, for the log."""
        return self.metadata and self.metadata.user_id

    def names(self) -> dict[str, str]:
        """Map the engine's names, and places in what chat templates read, to this request's."""
        form = dict.fromkeys(self.format_constraint(), "output_config.format.schema") | self.constraint_names()
        return super().names() | {"stop": "stop_sequences"} | form

    def limits(self, room: int) -> dict[str, Any]:
        """Return what ends the answer: `max_tokens`, which every request must give, is lowered to the `room` tokens
        left in the context."""
        most = min(self.max_tokens, room) if room > 0 else self.max_tokens
        return {"max_tokens": most, "stop": self.stop_sequences}

    def format_constraint(self) -> dict[str, Any]:
        """Return the constraint given by `output_config.format`."""
        wanted = self.output_config and self.output_config.format
        return schema_constraint(wanted.schema_, None) if wanted else {}


def _text(content: str | list[Any]) -> str:
    """Return the text of some content."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _user(turn: UserTurn, place: str) -> Translated:
    """Turn tool results into messages of their own, before the text that came with them."""
    if isinstance(turn.content, str):
        return [({"role": "user", "content": turn.content}, {"": place})]
    results: Translated = []
    said: list[TextBlock | ImageBlock] = []
    parts = {"": place}
    for index, block in enumerate(turn.content):
        here = f"{place}.content[{index}]"
        if isinstance(block, ToolResultBlock):
            message = {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
            results.append((message, {"": here, ".content.error": f"{here}.content"}))
        elif isinstance(block, TextBlock | ImageBlock):
            parts[f".content[{len(said)}]"] = here
            said.append(block)
    return [*results, ({"role": "user", "content": _shown(said)}, parts)] if said or not results else results


def _shown(blocks: Sequence[TextBlock | ImageBlock]) -> str | list[dict[str, Any]]:
    """Return text alone as one string, otherwise text and images as parts, in their order."""
    if not any(isinstance(block, ImageBlock) for block in blocks):
        return _text([block for block in blocks if isinstance(block, TextBlock)])
    return [block.part() if isinstance(block, ImageBlock) else {"type": "text", "text": block.text} for block in blocks]


def _result(block: ToolResultBlock) -> str | dict[str, str] | list[dict[str, Any]]:
    content = block.content or ""
    if block.is_error:
        return {"error": _text(content)}
    if isinstance(content, str):
        return content
    return _shown([part for part in content if not isinstance(part, UnsupportedBlock)])


def _assistant(turn: AssistantTurn, place: str) -> tuple[dict[str, Any], dict[str, str]]:
    message: dict[str, Any] = {"role": "assistant"}
    parts = {"": place, ".reasoning": f"{place}.content"}
    if isinstance(turn.content, str):
        return message | {"content": turn.content}, parts
    message["content"] = "\n".join(block.text for block in turn.content if isinstance(block, TextBlock))
    if thoughts := [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]:
        message["reasoning"] = "\n".join(thoughts)
    calls = [(index, block) for index, block in enumerate(turn.content) if isinstance(block, ToolUseBlock)]
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}
            for _, call in calls
        ]
    for number, (index, _) in enumerate(calls):
        here, call = f"{place}.content[{index}]", f".tool_calls[{number}]"
        parts |= {call: here, f"{call}.function": here, f"{call}.function.arguments": f"{here}.input"}
    return message, parts
