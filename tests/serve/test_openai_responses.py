"""OpenAI's Responses: the `openai` package against a random model, and against answers that come from a script."""

import itertools
import json
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from serving import CHAT, ScriptedEngine, ServerProcess, scripted_server

from redraft.errors import EngineError
from redraft.llm import LLM
from redraft.serve.shapes.responses import ResponsesRequest

CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
THINKING = ["<|channel>thought\nI need the wea", "ther.<channel|>Let me l", f"ook.{CALL} Done."]
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
HELLO: dict[str, Any] = {"model": "random", "input": "Hello!", "max_output_tokens": 16}


def test_allowed_tools_are_all_that_can_be_called() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    asked = HELLO | {"tools": [WEATHER | {"name": "clock"}, WEATHER], "tool_choice": allowed}
    body = ResponsesRequest.model_validate(asked)
    constraint = body.tool_constraint()
    assert [tool["function"]["name"] for tool in constraint["tools"]] == ["get_weather"]
    assert constraint["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body.declared_tools()] == ["clock", "get_weather"]


def test_an_answer_is_that_of_chat(client: openai.OpenAI) -> None:
    answer = client.responses.create(**HELLO, instructions="Be brief.", extra_body={"seed": 1})
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]
    chat = client.chat.completions.create(**CHAT | {"messages": messages})
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens
    assert (answer.status, answer.object, answer.error) == ("incomplete", "response", None)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.redraft["seed"] == 1  # type: ignore[attr-defined]


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.responses.create(**HELLO, extra_body={"seed": 1})
    events = list(client.responses.create(**HELLO, extra_body={"seed": 1}, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text


def test_log_probabilities_are_those_of_chat(client: openai.OpenAI) -> None:
    """Whole and at the end of a stream; without `top_logprobs` only the tokens' own."""
    asked: Any = {"include": ["message.output_text.logprobs"], "extra_body": {"seed": 1}}
    chat = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    assert chat.choices[0].logprobs is not None
    expected = [entry.model_dump() for entry in chat.choices[0].logprobs.content or ()]
    whole = client.responses.create(**HELLO, **asked, top_logprobs=2)
    *_, last = client.responses.create(**HELLO, **asked, top_logprobs=2, stream=True)
    assert last.type == "response.incomplete"
    for answer in (whole, last.response):
        (message,) = answer.output
        assert message.type == "message"
        (part,) = message.content
        assert part.type == "output_text"
        assert [entry.model_dump() for entry in part.logprobs or ()] == expected
        assert answer.top_logprobs == 2
    assert len(expected) == 16
    assert all(len(entry["top_logprobs"]) == 2 for entry in expected)
    (alone,) = client.responses.create(**HELLO, **asked).output
    assert alone.type == "message"
    assert alone.content[0].type == "output_text"
    chat = client.chat.completions.create(**CHAT, logprobs=True)
    assert chat.choices[0].logprobs is not None
    for entries in (alone.content[0].logprobs or (), chat.choices[0].logprobs.content or ()):
        assert [entry.logprob for entry in entries] == [entry["logprob"] for entry in expected]
        assert not any(entry.top_logprobs for entry in entries)


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    class Point(pydantic.BaseModel):
        x: int
        label: str = pydantic.Field(max_length=4)

    answer = client.responses.parse(model="random", input="A point.", text_format=Point, max_output_tokens=64)
    assert isinstance(answer.output_parsed, Point)
    loose = client.responses.create(**HELLO | {"max_output_tokens": 128}, text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(loose.output_text), dict)


@pytest.mark.parametrize(
    ("fields", "said", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: 'resp_1' is not supported", "previous_response_id"),
        ({"store": True}, "store: True is not supported; it must be False", "store"),
        ({"background": True}, "background: True is not supported", "background"),
        ({"tools": [{"type": "web_search"}]}, "has type 'web_search'; this server takes only functions", "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice needs tools", "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "clock"}]}}, "tool_choice allows 'clock'; the tools are get_weather",
         "tool_choice"),
        ({"include": ["file_search"]}, "include[0]", "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs needs 'message.output_text.logprobs' in include", "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs", "top_logprobs"),
        ({"input": []}, "input", "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "is not an item that this server takes", "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
         "holds input_file; this server takes only text and images", "input[0].content[0]"),
        ({"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]},
         "holds refusal; this server takes only text and images", "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "this model reads only text", "input"),
        ({"input": [{"role": "user", "content": "x", "foo": 1}]}, "Unknown field 'input[0].foo'", "input[0].foo"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "input[0] is a tool's result, which must follow an assistant message", "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}]},
         "must be a JSON object", "input[0].arguments"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "needs schema if, and only if", "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strin"}}}}, "strin", "text"),
        ({"max_output_tokens": 100_000}, "max_output_tokens is 100000", "max_output_tokens"),
        ({"max_output_tokens": 1, "extra_body": {"regex": "a{99}"}}, "max_output_tokens is 1", "max_output_tokens"),
        ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0] has the name 'a b'", "tools[0]"),
        ({"reasoning": {"effort": "low"}}, "'low' is not supported; it must be 'none' or 'high'", "reasoning.effort"),
        ({"extra_body": {"mood": "good"}}, "Unknown field 'mood'", "mood"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_a_400_that_says_so(
    client: openai.OpenAI, fields: dict[str, Any], said: str, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**HELLO | fields)
    assert said in caught.value.message
    assert caught.value.param == param


JSON = {"content-type": "application/json"}
CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT_ITEM = {"type": "function_call_output", "call_id": "d", "output": "x"}
SAID = {"role": "assistant", "content": "Well."}


@pytest.mark.parametrize(
    ("items", "param", "said"),
    [
        ([SAID, CALL_ITEM, OUTPUT_ITEM], "input[3]", "is the result of the call 'd'"),
        ([SAID, CALL_ITEM, CALL_ITEM | {"name": ""}], "input[3]", "must have a name"),
        ([SAID, CALL_ITEM | {"arguments": '{"a": ' * 70 + "1" + "}" * 70}, OUTPUT_ITEM | {"call_id": "c"}],
         "input[2].arguments" + ".a" * 60, "is nested deeper than 64 levels"),
        ([SAID, *(item | {"call_id": "\ud800"} for item in (CALL_ITEM, OUTPUT_ITEM))],
         "input[2].call_id", "holds a character"),
        ([{"role": "system", "content": [{"type": "input_text", "text": "See"},
                                         {"type": "input_image", "image_url": "data:,"}]}],
         "input[1].content[1]", "must be text: a system message cannot hold media"),
    ],
)  # fmt: skip
def test_an_error_names_the_item_as_the_client_sent_it(
    server: ServerProcess, items: list[dict[str, Any]], param: str, said: str
) -> None:
    """Not the message that it became: instructions are a message, too, and several items become one."""
    body = HELLO | {"instructions": "Be brief.", "input": [{"role": "user", "content": "Hi"}, *items]}
    error = httpx.post(f"{server.url}/v1/responses", content=json.dumps(body), headers=JSON).json()["error"]
    assert error["message"].startswith(f"{param} {said}")
    assert error["param"] == param


def test_an_error_names_the_tool_as_the_client_sent_it(server: ServerProcess) -> None:
    body = json.dumps(HELLO | {"tools": [WEATHER | {"description": "\ud800"}]})
    error = httpx.post(f"{server.url}/v1/responses", content=body, headers=JSON).json()["error"]
    assert error["message"].startswith("tools[0].description holds a character")
    assert error["param"] == "tools[0].description"


@pytest.mark.parametrize("stream", [False, True])
def test_what_utf8_cannot_express_is_sent_back_as_question_marks(server: ServerProcess, stream: bool) -> None:
    body = json.dumps(HELLO | {"metadata": {"note": "\ud800"}, "stream": stream})
    answer = httpx.post(f"{server.url}/v1/responses", content=body, headers=JSON)
    assert answer.status_code == 200
    assert '"metadata":{"note":"?"}' in answer.text


def test_nothing_is_stored(server: ServerProcess, client: openai.OpenAI) -> None:
    answer = client.responses.create(**HELLO)
    assert answer.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def scripted(llm: LLM, script: list[str], **asked: Any) -> tuple[Response, list[ResponseStreamEvent], ScriptedEngine]:
    """The response that a server makes of a script, the events of the same one streamed, and what the engine got."""
    engine = ScriptedEngine(llm, lambda request: script)
    with scripted_server(llm, engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        asked = {"model": "scripted", "input": "Hello!", "tools": [WEATHER]} | asked
        return client.responses.create(**asked), list(client.responses.create(**asked, stream=True)), engine


def without_ids(items: list[Any]) -> list[Any]:
    return [item.model_dump(exclude={"id", "call_id"}) for item in items]


def test_thoughts_words_and_calls_are_items(llm: LLM) -> None:
    whole, events, _ = scripted(llm, THINKING)
    thought, words, call, rest = whole.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "I need the weather."
    assert (words.type, words.content[0].text) == ("message", "Let me look.")  # type: ignore[union-attr]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris", "days": 3})
    assert rest.content[0].text == " Done."  # type: ignore[union-attr]
    assert whole.status == "completed"
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == len(llm.tokenizer.encode("I need the weather."))
    assert events[-1].type == "response.completed"
    assert without_ids(events[-1].response.output) == without_ids(whole.output)


def test_a_stream_opens_and_closes_every_item_and_says_all_of_it(llm: LLM) -> None:
    _, events, _ = scripted(llm, THINKING)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    added = [event for event in events if event.type == "response.output_item.added"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in added] == [event.output_index for event in done] == [0, 1, 2, 3]
    assert [event.item.status for event in added] == ["in_progress"] * 4
    assert [event.item.status for event in done] == ["completed"] * 4
    assert [event.item.id for event in added] == [event.item.id for event in done]
    for index, item in ((1, done[1].item), (3, done[3].item)):
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"
                  and event.output_index == index]  # fmt: skip
        assert "".join(deltas) == item.content[0].text  # type: ignore[union-attr]


def test_the_packages_own_reader_of_streams_agrees(llm: LLM) -> None:
    with (
        scripted_server(llm, ScriptedEngine(llm, lambda request: THINKING)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client,
        client.responses.stream(model="scripted", input="Hello!", tools=[WEATHER]) as stream,  # type: ignore[list-item]
    ):
        answer = stream.get_final_response()
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "message"]


def test_items_of_an_answer_go_back_in_with_their_results(llm: LLM) -> None:
    first, _, _ = scripted(llm, THINKING)
    result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "sun"}  # type: ignore[union-attr]
    _, _, engine = scripted(llm, ["Sunny."], input=[{"role": "user", "content": "Weather?"}, *first.output, result])
    prompt = llm.tokenizer.decode(engine.requests[0].prompt)
    assert prompt.count("<|turn>model") <= 2, "one message, not four"
    assert '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>' in prompt
    assert '<|tool_response>response:get_weather{value:<|"|>sun<|"|>}<tool_response|>' in prompt
    assert "Let me look.\n Done." in prompt


def test_every_part_of_a_conversation_has_its_place() -> None:
    text = {"type": "input_text", "text": "See"}
    image = {"type": "input_image", "image_url": "data:x", "detail": "low"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [text, image]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": [text]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"role": "user", "content": [text, text]},
    ]
    read = ResponsesRequest.model_validate({"model": "m", "instructions": "Be brief.", "input": items})
    assert read.chat() == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [
            {"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
        ]},
        {"role": "assistant", "reasoning": "Hm.", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}},
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "See"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "See\nSee"},
    ]  # fmt: skip


def test_a_failure_on_the_way_is_the_last_event(llm: LLM) -> None:
    def fail(request: Any) -> list[str]:
        raise EngineError("A forward failed with RuntimeError: secret.")

    with scripted_server(llm, ScriptedEngine(llm, fail)) as url:
        lines = httpx.post(f"{url}/v1/responses", json=HELLO | {"model": "scripted", "stream": True}).text.splitlines()
    assert [line for line in lines if line.startswith("event")][-1] == "event: response.failed"
    last = json.loads([line for line in lines if line.startswith("data")][-1].removeprefix("data: "))
    assert last["response"]["status"] == "failed"
    assert "secret" not in last["response"]["error"]["message"]


def test_a_failure_on_the_way_closes_the_item_that_was_open(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: [THINKING[0], EngineError("A forward failed.")])
    with scripted_server(llm, engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        *_, done, last = client.responses.create(model="scripted", input="Hello!", stream=True)
    assert last.type == "response.failed"
    assert done.type == "response.output_item.done"
    assert last.response.output == [done.item]
    assert done.item.status == "incomplete"
    assert done.item.content[0].text == "I need the wea"  # type: ignore[union-attr, index]


def test_an_empty_answer_is_an_empty_message(llm: LLM) -> None:
    whole, events, _ = scripted(llm, [""])
    assert [item.type for item in whole.output] == ["message"]
    assert whole.output_text == ""
    assert without_ids(events[-1].response.output) == without_ids(whole.output)  # type: ignore[union-attr]
