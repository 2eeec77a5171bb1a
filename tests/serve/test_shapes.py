"""What the shapes of requests make of what they hold, without a server."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from redraft.checks import MAX_NUMBER
from redraft.serve.shapes.chat import ChatRequest, StreamOptions
from redraft.serve.shapes.common import Detail
from redraft.serve.shapes.completions import CompletionRequest
from redraft.serve.shapes.messages import CountRequest, MessagesRequest
from redraft.serve.shapes.own import DetokenizeRequest, DraftsRequest, TokenizeRequest
from redraft.serve.shapes.responses import ResponsesRequest
from redraft.serve.shapes.two_sided import DecisionRequest, EditRequest, FillRequest, NextEditRequest
from redraft.text.images import BUDGETS, DETAILS

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_allowed_tools_keep_the_order_and_the_settings_of_the_request() -> None:
    named = [{"type": "function", "function": {"name": name}} for name in ("h", "f")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    asked = HELLO | {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    assert ChatRequest.model_validate(asked).tool_constraint() == {
        "tools": [TOOLS[0], TOOLS[2]], "tool_choice": "auto", "parallel_tool_calls": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none"), (None, "auto")],
)
def test_anthropics_choices_of_tools_are_those_of_openai(choice: dict[str, str] | None, wanted: str) -> None:
    asked = HELLO | {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": choice}
    assert CountRequest.model_validate(asked).tool_constraint()["tool_choice"] == wanted


@pytest.mark.parametrize(
    ("shape", "asked", "thinks"),
    [
        (ChatRequest, {"reasoning_effort": "high"}, True),
        (ChatRequest, {"reasoning_effort": "none"}, False),
        (ChatRequest, {"chat_template_kwargs": {"enable_thinking": True}}, True),
        (ChatRequest, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (ChatRequest, {"chat_template_kwargs": {}}, False),
        (ChatRequest, {"thinking": False}, False),
        (CountRequest, {"thinking": {"type": "adaptive"}}, True),
        (CountRequest, {"thinking": {"type": "disabled"}}, False),
        (ResponsesRequest, {"reasoning": {"effort": "high"}}, True),
        (ResponsesRequest, {"reasoning": {"effort": "none"}}, False),
        (ResponsesRequest, {"reasoning": {}}, False),
    ],
)
def test_who_wants_thoughts(shape: type[Any], asked: dict[str, Any], thinks: bool) -> None:
    given = {"model": "m", "input": "Hello!"} if shape is ResponsesRequest else HELLO
    assert shape.model_validate(given | asked).wants_thinking is thinks


@pytest.mark.parametrize(("most", "room", "taken"), [(9, 5, 5), (5, 9, 5), (9, 1, 1), (9, 0, 9), (9, -4, 9)])
def test_a_message_has_the_tokens_for_which_there_is_room(most: int, room: int, taken: int) -> None:
    """Without any room the engine says so."""
    assert MessagesRequest.model_validate(HELLO | {"max_tokens": most}).limits(room)["max_tokens"] == taken


def test_blocks_of_a_message_are_joined_by_lines_and_results_come_first() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    result = {"type": "tool_result", "tool_use_id": "t"}
    thoughts = [{"type": "thinking", "thinking": thought} for thought in ("Hm.", "Well.")]
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    turns = [
        {"role": "assistant", "content": [*thoughts, text("a"), text("b"), call]},
        {"role": "user", "content": [text("c"), result | {"content": [text("d"), text("e")]}, text("f")]},
        {"role": "user", "content": [result, result | {"content": [text("g"), image]}]},
        {"role": "user", "content": [text("h"), image]},
    ]
    read = CountRequest.model_validate({"model": "m", "system": [text("i"), text("j")], "messages": turns})
    shown = {"type": "image", "url": "data:image/png;base64,AA=="}
    function = {"name": "f", "arguments": {"a": 1}}
    assert read.chat() == [
        {"role": "system", "content": "i\nj"},
        {"role": "assistant", "content": "a\nb", "reasoning": "Hm.\nWell.",
         "tool_calls": [{"id": "t", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "t", "content": "d\ne"},
        {"role": "user", "content": "c\nf"},
        {"role": "tool", "tool_call_id": "t", "content": ""},
        {"role": "tool", "tool_call_id": "t", "content": [text("g"), shown]},
        {"role": "user", "content": [text("h"), shown]},
    ]  # fmt: skip
    names = read.names()
    assert names["messages[3].content[1]"] == "messages[1].content[2]"
    assert names["messages[1].tool_calls[0].function.arguments"] == "messages[0].content[4].input"
    assert (names["messages[0]"], names["messages[0].content"]) == ("system", "system")


def test_items_of_one_answer_are_one_message_with_places_of_their_own() -> None:
    def thought(*said: str) -> dict[str, Any]:
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": one} for one in said]}

    calls = [{"type": "function_call", "call_id": name, "name": name, "arguments": '{"a": 1}'} for name in "fg"]
    words = [{"role": "assistant", "content": [{"type": "output_text", "text": one} for one in both]} for both in "ab"]
    items = [thought("Hm.", "So."), words[0], thought(), thought("Well."), *calls, words[1]]
    read = ResponsesRequest.model_validate({"model": "m", "input": items})
    (message,) = read.chat()
    assert (message["content"], message["reasoning"]) == ("a\nb", "Hm.\nSo.\nWell.")
    assert [call["id"] for call in message["tool_calls"]] == ["f", "g"]
    names = read.names()
    assert names["messages[0].tool_calls[1].id"] == "input[5].call_id"
    assert names["messages[0].tool_calls[1].function"] == "input[5]"
    assert (names["messages[0]"], names["messages[0].content"]) == ("input[0]", "input[6].content")


@pytest.mark.parametrize(
    ("said", "parts"),
    [({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3), ({"logprobs": False}, None), ({}, None)],
)
def test_log_probabilities_are_those_asked_for(said: dict[str, Any], parts: int | None) -> None:
    assert ChatRequest.model_validate(HELLO | said).limits(9)["logprobs"] == parts


@pytest.mark.parametrize(
    ("prompt", "prompts"), [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2]], [[1], [2]])]
)
def test_prompts_have_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompts() == prompts


@pytest.mark.parametrize(
    ("shape", "given", "field"),
    [
        (DraftsRequest, HELLO | {"stream": False}, "stream"),
        (DraftsRequest, HELLO | {"logprobs": True}, "logprobs"),
        (DraftsRequest, HELLO | {"stream": True, "stream_options": {"include_usage": True}}, "stream_options"),
        (ChatRequest, HELLO | {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        (ChatRequest, HELLO | {"thinking": True, "reasoning_effort": "none"}, "thinking"),
        (ChatRequest, HELLO | {"thinking": True, "chat_template_kwargs": {"enable_thinking": True}}, "thinking"),
        (CompletionRequest, {"model": "m", "prompt": ["a"], "suffix": "b"}, "prompt"),
        *[(CompletionRequest, {"model": "m", "prompt": "a", "suffix": "b"} | {name: value}, name) for name, value in (
            ("echo", True), ("timeout", 1.0), ("latency_budget_ms", 1.0), ("pins", {"0": "a"}))],
        (FillRequest, {"model": "m", "text": "a", "prefix": "b"}, None),
        (FillRequest, {"model": "m", "text": "a", "prefix": "b", "suffix": "c"}, None),
        (DecisionRequest, HELLO | {"question": "q", "choices": ["a"]}, None),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other(shape: type[Any], given: dict[str, Any], field: str | None) -> None:
    with pytest.raises(ValidationError) as caught:
        shape.model_validate(given)
    (error,) = caught.value.errors()
    assert (error["type"], error.get("ctx", {}).get("field", "")) == ("contradiction", field)


@pytest.mark.parametrize(
    ("shape", "field", "least", "most"),
    [
        (ChatRequest, "n", 1, 128),
        (ChatRequest, "temperature", 0, 2),
        (ChatRequest, "seed", 0, 2**63 - 1),
        (ChatRequest, "steps", 1, MAX_NUMBER),  # as everywhere
        (ChatRequest, "schedule_steps", 1, MAX_NUMBER),
        (ChatRequest, "stability_threshold", 0, MAX_NUMBER),
        (CompletionRequest, "logprobs", 0, 20),
        (DecisionRequest, "reads", 1, 64),
        (DecisionRequest, "sure", 0, 1),
    ],
)
def test_numbers_have_bounds_that_they_may_reach(shape: type[Any], field: str, least: int, most: int) -> None:
    given = {CompletionRequest: {"model": "m", "prompt": "a"}, DecisionRequest: HELLO | {"choices": ["a"]}}
    for value, fits in ((least, True), (most, True), (least - 1, False), (most + 1, False)):
        asked = given.get(shape, HELLO) | {field: value}
        if fits:
            assert getattr(shape.model_validate(asked), field) == value
        else:
            with pytest.raises(ValidationError, match=field):
                shape.model_validate(asked)


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        *[(shape, HELLO) for shape in (ChatRequest, DraftsRequest)],
        (MessagesRequest, HELLO | {"max_tokens": 1}),
        (ResponsesRequest, {"model": "m", "input": "Hello!"}),
        (CompletionRequest, {"model": "m", "prompt": "a"}),
        (FillRequest, {"model": "m", "text": "a"}),
        (EditRequest, {"model": "m", "text": "a", "span": [0, 1]}),
        (NextEditRequest, {"model": "m", "text": "a", "cursor": 0}),
        (DecisionRequest, {"model": "m", "question": "q", "choices": ["a"]}),
        (TokenizeRequest, {"text": "a"}),
        (DetokenizeRequest, {"tokens": [1]}),
        (StreamOptions, {}),
    ],
)
def test_what_is_null_is_not_given(shape: type[Any], given: dict[str, Any]) -> None:
    fields = {field.alias or name for name, field in shape.model_fields.items() if not field.is_required()}
    assert shape.model_validate(given | dict.fromkeys(fields - given.keys())) == shape.model_validate(given)


def test_an_image_may_take_as_many_tokens_as_everywhere() -> None:
    assert set(get_args(Detail)) == {"auto", *DETAILS, *BUDGETS}


def a_call(**more: Any) -> dict[str, Any]:
    """A message with a call as Anthropic's client sends it back."""
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": None}
    return HELLO | {"messages": [*HELLO["messages"], {"role": "assistant", "content": [call | more]}]}


def an_item(**more: Any) -> dict[str, Any]:
    """A call as OpenAI's client sends it back."""
    return {"model": "m", "input": [{"type": "function_call", "call_id": "c", "name": "f", "caller": None} | more]}


def a_tool(**more: Any) -> dict[str, Any]:
    """A request with a tool as Anthropic's clients declare it."""
    return HELLO | {"tools": [{"name": "f", "input_schema": {"type": "object"}} | more]}


@pytest.mark.parametrize(
    ("shape", "given", "field", "neutral", "other"),
    [
        (CountRequest, a_call, "toolset_name", None, "browser"),
        *[(ResponsesRequest, an_item, name, value, True) for name in ("async", "async_") for value in (None, False)],
        (CountRequest, a_tool, "defer_loading", False, True),
        (CountRequest, a_tool, "allowed_callers", ["direct"], ["direct", "code_execution_20260120"]),
        (CountRequest, a_tool, "input_examples", [], [{}]),
    ],
)
def test_fields_of_other_engines_take_only_the_value_that_changes_nothing(
    shape: type[Any], given: Callable[..., dict[str, Any]], field: str, neutral: Any, other: Any
) -> None:
    same, plain = shape.model_validate(given(**{field: neutral})), shape.model_validate(given())
    assert (same.chat(), same.declared_tools()) == (plain.chat(), plain.declared_tools())
    with pytest.raises(ValidationError) as caught:
        shape.model_validate(given(**{field: other}))
    assert ("unsupported_value", field) in [(error["type"], error["loc"][-1]) for error in caught.value.errors()]
