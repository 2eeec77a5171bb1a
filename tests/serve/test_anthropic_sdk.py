"""The `anthropic` package, unmodified, against `redraft serve`."""

import json
from collections.abc import Iterator
from datetime import UTC
from typing import Any, Literal

import anthropic
import httpx
import pydantic
import pytest
from anthropic.types import ModelInfo
from serving import CONTEXT, ScriptedEngine, ServerProcess, scripted_server

from redraft.llm import LLM
from redraft.serve.shapes.messages import CountRequest, MessagesRequest

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ANSWER = [
    "<|channel>thought\nHm",
    "m.<channel|>Let me ",
    'look.<|tool_call>call:get_weather{city:<|"|>Par',
    'is<|"|>}<tool_call|>',
]

SAID = ["<|channel>thought\nWell.<channel|>Yes, ", "certainly."]


def test_a_tool_may_have_the_name_of_a_mode() -> None:
    asked = {"tools": [{"name": "none", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "none"}}
    messages = [{"role": "user", "content": "Hello!"}]
    body = MessagesRequest.model_validate({"model": "m", "max_tokens": 9, "messages": messages, **asked})
    assert body.tool_constraint()["tool_choice"] == {"name": "none"}


def test_a_tool_may_be_strict() -> None:
    tools = [{"name": "f", "input_schema": {}, "strict": True}, {"name": "g", "input_schema": {}}]
    body = MessagesRequest.model_validate({"model": "m", "max_tokens": 9, "messages": HELLO, "tools": tools})
    assert [tool["function"] for tool in body.tool_constraint()["tools"]] == [
        {"name": "f", "parameters": {}, "strict": True}, {"name": "g", "parameters": {}}
    ]  # fmt: skip


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_several_calls_can_be_ruled_out(choice: dict[str, Any]) -> None:
    asked = {"model": "m", "max_tokens": 9, "messages": HELLO, "tools": [WEATHER]}
    for said, parallel in (({}, True), ({"disable_parallel_tool_use": True}, False)):
        body = MessagesRequest.model_validate(asked | {"tool_choice": choice | said})
        assert body.tool_constraint()["parallel_tool_calls"] is parallel


def test_a_turn_without_blocks_is_an_empty_turn() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": []}, {"role": "user", "content": []}]
    asked = CountRequest.model_validate({"model": "m", "messages": turns})
    assert [(turn["role"], turn["content"]) for turn in asked.chat()] == [
        ("user", "a"), ("assistant", ""), ("user", "")
    ]  # fmt: skip


def test_instructions_may_come_between_turns() -> None:
    blocks = [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]
    turns = [*HELLO, {"role": "system", "content": "b"}, *HELLO, {"role": "system", "content": blocks}]
    asked = CountRequest.model_validate({"model": "m", "system": "a", "messages": turns})
    given = [turn["content"] for turn in asked.chat() if turn["role"] == "system"]
    assert given == ["a", "b", "c\nd"]
    assert asked.names()["messages[4]"] == "messages[3]"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as made:
        yield made


def test_a_message(client: anthropic.Anthropic, llm: LLM) -> None:
    answer = client.messages.create(model="random", max_tokens=32, messages=HELLO, extra_body={"seed": 7})
    alone = llm.chat(HELLO, seed=7, max_tokens=32)
    assert [block.text for block in answer.content if block.type == "text"] == [alone.content]
    assert answer.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[alone.result.finish_reason]
    assert answer.usage.output_tokens == len(alone.result.token_ids)
    assert answer.role == "assistant"


def test_a_stream_adds_up_to_the_whole(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="random", max_tokens=48, messages=HELLO, extra_body={"seed": 7})
    with client.messages.stream(model="random", max_tokens=48, messages=HELLO, extra_body={"seed": 7}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [text] == [block.text for block in whole.content if block.type == "text"]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_usage_tells_what_the_cache_saved_as_soon_as_it_is_known(llm: LLM) -> None:
    """The engine of the script takes three tokens of the prompt from its cache; then thoughts are counted, too."""
    asked: dict[str, Any] = {"model": "scripted", "max_tokens": 64, "messages": HELLO}
    with (
        scripted_server(llm, ScriptedEngine(llm, lambda request: SAID)) as url,
        anthropic.Anthropic(base_url=url, api_key="any") as client,
    ):
        whole = client.messages.create(**asked)
        start, *_, delta, _ = client.messages.create(**asked, stream=True)
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        prompt = client.messages.count_tokens(model="scripted", messages=HELLO).input_tokens
    written = sum(len(llm.tokenizer.encode(piece)) for piece in SAID)
    thought = len(llm.tokenizer.encode("Well."))
    known = {"input_tokens": prompt - 3, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0}
    assert start.type == "message_start"
    assert delta.type == "message_delta"
    assert start.message.usage.to_dict() == known | {
        "input_tokens": prompt, "cache_read_input_tokens": 0, "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }  # fmt: skip
    for usage in (whole.usage, delta.usage, final.usage):
        assert usage.to_dict() == known | {
            "output_tokens": written, "output_tokens_details": {"thinking_tokens": thought}
        }  # fmt: skip


def test_a_prompt_read_again_comes_from_the_cache(client: anthropic.Anthropic, http: httpx.Client) -> None:
    """Whole pages of it; the rest is read anew. OpenAI's endpoints say the same in their words."""
    messages: list[Any] = [{"role": "user", "content": "cached words " * 200}]
    asked: dict[str, Any] = {"model": "random", "max_tokens": 8, "messages": messages}
    first = client.messages.create(**asked).usage
    with client.messages.stream(**asked) as stream:
        again = stream.get_final_message().usage
    assert first.cache_read_input_tokens == 0
    assert again.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens
    chat = http.post("/v1/chat/completions", json=asked).json()["usage"]
    responses = http.post("/v1/responses", json={"model": "random", "input": messages, "max_output_tokens": 8}).json()
    assert chat["prompt_tokens"] == responses["usage"]["input_tokens"] == first.input_tokens
    details = chat["prompt_tokens_details"], responses["usage"]["input_tokens_details"]
    assert [each["cached_tokens"] for each in details] == [again.cache_read_input_tokens] * 2


def test_calls_in_a_row_are_blocks_of_their_own(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: [*ANSWER, ANSWER[2].removeprefix("look."), ANSWER[3]])
    asked: dict[str, Any] = {"model": "scripted", "max_tokens": 64, "messages": HELLO, "tools": [WEATHER]}
    with scripted_server(llm, engine) as url, anthropic.Anthropic(base_url=url, api_key="any") as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert all(block.id.startswith("toolu_") for block in whole.content if block.type == "tool_use")
    assert [block.to_dict() | {"id": ""} for block in streamed.content] == [
        block.to_dict() | {"id": ""} for block in whole.content
    ]


def test_a_stop_sequence_does_not_cut_a_call(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "random", "max_tokens": 64, "messages": HELLO, "extra_body": {"seed": 7}}
    asked |= {"tools": [{"name": "clock", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}
    whole = client.messages.create(**asked, stop_sequences=["clock", "tool_call"])
    with client.messages.stream(**asked, stop_sequences=["clock", "tool_call"]) as stream:
        for answer in (whole, stream.get_final_message()):
            assert {block.type for block in answer.content} == {"tool_use"}
            assert answer.stop_reason == "tool_use"


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="random", max_tokens=48, messages=HELLO, extra_body={"seed": 7})
    stop = whole.content[0].text[6:8]  # type: ignore[union-attr]
    cut = client.messages.create(
        model="random", max_tokens=48, messages=HELLO, stop_sequences=["@@never@@", stop], extra_body={"seed": 7}
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("asked", "ending", "told"),
    [
        (9_999, "length", "model_context_window_exceeded"),
        (9_999, "timeout", "max_tokens"),
        (9_999, "stop", "end_turn"),
        (16, "length", "max_tokens"),
    ],
)
def test_more_tokens_than_the_context_has_room_for_are_left_out(llm: LLM, asked: int, ending: str, told: str) -> None:
    engine = ScriptedEngine(llm, lambda request: ["Yes."])
    engine.finish_reason = ending
    with scripted_server(llm, engine) as url, anthropic.Anthropic(base_url=url, api_key="any") as client:
        whole = client.messages.create(model="scripted", max_tokens=asked, messages=HELLO)
        with client.messages.stream(model="scripted", max_tokens=asked, messages=HELLO) as stream:
            assert [whole.stop_reason, stream.get_final_message().stop_reason] == [told] * 2
    room = llm.room(len(llm.encode_chat(HELLO)))
    assert [request.settings.max_tokens for request in engine.requests] == [min(asked, room)] * 2


class Verdict(pydantic.BaseModel):
    ok: bool
    kind: Literal["a", "b"]


def test_an_answer_is_parsed(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(model="random", max_tokens=64, messages=HELLO, output_format=Verdict)
    assert isinstance(answer.parsed_output, Verdict)


def test_what_changes_no_answer_is_taken(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "random", "max_tokens": 16, "messages": HELLO, "tools": [WEATHER]}
    plain = client.messages.create(**asked, extra_body={"seed": 7})
    more = {"cache_control": {"type": "ephemeral"}, "output_config": {"effort": "high"}, "thread": None}
    asked["tools"] = [WEATHER | {"eager_input_streaming": True}]
    assert client.messages.create(**asked, extra_body={"seed": 7} | more).content == plain.content


def test_a_thread_is_refused_so_that_clients_send_whole_conversations(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="this server keeps no conversations") as caught:
        client.messages.create(model="random", max_tokens=16, messages=HELLO, extra_body={"thread": {"type": "create"}})
    assert caught.value.body["error"]["details"] == {"error_code": "thread_unsupported_request"}  # type: ignore[index, call-overload]


def test_tokens_are_counted(client: anthropic.Anthropic, llm: LLM) -> None:
    counted = client.messages.count_tokens(model="random", system="Be brief.", messages=HELLO)
    expected = llm.encode_chat([{"role": "system", "content": "Be brief."}, *HELLO])
    assert counted.input_tokens == len(expected)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"extra_body": {"mood": "good"}}, "Unknown field 'mood'"),
        ({"extra_body": {"top_k": 5}}, "top_k: 5 is not supported"),
        ({"messages": [{"role": "user", "content": "long " * 2000}]}, "prompt is too long"),
        ({"messages": [{"role": "user", "content": "long " * 1010}]}, "prompt is too long"),  # less than a canvas left
        ({"output_config": {"effort": "low"}}, "output_config.effort: 'low' is not supported"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "extra_body": {"json_schema": {}}},
            "json_schema and output_config.format mean the same",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "takes only text and images",
        ),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "this model reads only text"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]}
                ]
            },
            "this server fetches nothing, so send images as base64",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens: Input should be greater"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            "tools[0]: has type 'bash_20250124'; this server takes",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                ]
            },
            "calls tools; their results must follow",
        ),
    ],
)
def test_what_cannot_be_honoured_is_a_400_that_says_so(
    client: anthropic.Anthropic, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**({"model": "random", "max_tokens": 16, "messages": HELLO} | fields))
    assert said in caught.value.message
    assert caught.value.body["type"] == "error"  # type: ignore[index, call-overload]


USE: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t", "content": "x"}


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("blocks", "results", "said"),
    [
        (
            [USE, USE | {"id": "u"}],
            [RESULT, RESULT],
            "messages[2].content[1] is the result of the call 't'",
        ),
        ([{"type": "text", "text": "a"}, USE | {"name": ""}], [RESULT], "messages[1].content[1] must have a name"),
        ([{"type": "text", "text": "a"}, USE | {"input": nested(70)}], [RESULT], "messages[1].content[1].input.a.a"),
    ],
)
def test_an_error_names_the_block_as_the_client_sent_it(
    client: anthropic.Anthropic, blocks: list[Any], results: list[Any], said: str
) -> None:
    """Not the message that it became, as the system's does and every result."""
    turns: list[Any] = [*HELLO, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    asked: dict[str, Any] = {"model": "random", "system": "Be brief.", "messages": turns}
    for ask in (lambda: client.messages.create(max_tokens=16, **asked), lambda: client.messages.count_tokens(**asked)):
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask()
        assert caught.value.body["error"]["message"].startswith(said)  # type: ignore[index, call-overload]


def test_an_error_names_fields_as_the_client_does(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "random", "max_tokens": 16, "messages": HELLO}
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences has an empty string"):
        client.messages.create(**asked, stop_sequences=[""])
    body = json.dumps(asked | {"stop_sequences": ["\ud800"]})
    url, headers = str(client.base_url.join("/v1/messages")), {"Content-Type": "application/json"}
    refused = httpx.post(url, content=body, headers=headers)
    assert refused.status_code == 400
    assert "stop_sequences holds a character that UTF-8" in refused.json()["error"]["message"]
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\] has the name"):
        client.messages.create(**asked, tools=[WEATHER | {"name": "a b"}])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "foo"}}}},
         "output_config.format.schema: "),
        ({"json_schema": {"type": "foo"}}, "json_schema: "),
        ({"structured_outputs": {"json": {"type": "foo"}}}, "structured_outputs.json: "),
        ({"preset": "quick"}, "preset is 'quick'"),
        ({"stepps": 3}, "Unknown field 'stepps'."),
    ],
)  # fmt: skip
def test_an_error_says_its_field_once(client: anthropic.Anthropic, more: dict[str, Any], said: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="random", max_tokens=16, messages=HELLO, extra_body=more)
    message = caught.value.body["error"]["message"]  # type: ignore[index, call-overload]
    assert message.startswith(said)
    assert message.count(said) == 1


def test_models(client: anthropic.Anthropic) -> None:
    listed = list(client.models.list())
    assert [model.id for model in listed] == ["random", "gpt-4o"]
    assert (listed[0].type, listed[0].display_name, listed[0].created_at.tzinfo) == ("model", "random", UTC)
    assert client.models.retrieve("gpt-4o").display_name == "gpt-4o"


def test_a_model_has_every_field_that_the_package_requires(server: ServerProcess) -> None:
    """The package itself takes a model without them."""
    told = httpx.get(f"{server.url}/v1/models/random").json()
    assert ModelInfo.model_validate(told).lifecycle == "active"


def test_a_model_says_how_much_it_takes(client: anthropic.Anthropic) -> None:
    model = client.models.retrieve("random")
    most = CONTEXT - 16  # a canvas
    assert (model.max_input_tokens, model.max_tokens) == (most, most)
    assert model.model_extra is not None
    assert (model.model_extra["context"], model.model_extra["max_model_len"]) == (CONTEXT, CONTEXT)
    word = [{"role": "user", "content": "a" * 4 * CONTEXT}]
    with pytest.raises(anthropic.BadRequestError, match=f"at most {most}"):
        client.messages.create(model="random", max_tokens=16, messages=word)  # type: ignore[arg-type]


def test_a_wrong_model_is_a_404(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="is not served here"):
        client.messages.create(model="claude", max_tokens=16, messages=HELLO)


def whole_and_streamed(llm: LLM, script: list[str], *begun: Any) -> tuple[Any, Any]:
    """The message that a server makes of a script, once at once and once streamed."""
    asked: dict[str, Any] = {"model": "scripted", "max_tokens": 64, "messages": [*HELLO, *begun], "tools": [WEATHER]}
    with (
        scripted_server(llm, ScriptedEngine(llm, lambda request: script)) as url,
        anthropic.Anthropic(base_url=url, api_key="any") as client,
    ):
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            return whole, stream.get_final_message()


def test_thoughts_words_and_calls_are_blocks(llm: LLM) -> None:
    for answer in whole_and_streamed(llm, ANSWER):
        thought, text, call = answer.content
        assert thought.type == "thinking"
        assert thought.thinking == "Hmm."
        assert text.type == "text"
        assert text.text == "Let me look."
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
        assert answer.stop_reason == "tool_use"


def test_a_streamed_thought_ends_with_a_signature(llm: LLM) -> None:
    """As Anthropic's do; the AI SDK drops thoughts without one from the next request."""
    asked: dict[str, Any] = {"model": "scripted", "max_tokens": 64, "messages": HELLO, "tools": [WEATHER]}
    with (
        scripted_server(llm, ScriptedEngine(llm, lambda request: ANSWER)) as url,
        anthropic.Anthropic(base_url=url, api_key="any") as client,
    ):
        events = list(client.messages.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "content_block_delta" and event.index == 0]
    assert [delta.type for delta in deltas] == ["thinking_delta", "thinking_delta", "signature_delta"]


def test_words_behind_a_call_are_a_block_of_their_own(llm: LLM) -> None:
    script = ["I look.<|tool_call>call:f{}<tool_call|> Or ", "there:<|tool_call>call:f{}<tool_call|>"]
    for answer in whole_and_streamed(llm, script):
        assert [block.type for block in answer.content] == ["text", "tool_use", "text", "tool_use"]
        assert [block.text for block in answer.content if block.type == "text"] == ["I look.", " Or there:"]


def test_an_answer_that_has_begun_is_continued(llm: LLM) -> None:
    for answer in whole_and_streamed(llm, [' "a": 1', "}"], {"role": "assistant", "content": "{"}):
        assert [block.text for block in answer.content] == [' "a": 1}']


def test_a_tool_result_goes_back_in(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: ["Sunny."])
    turns: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": ""}, {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "no data"},
            {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}]},
    ]  # fmt: skip
    with scripted_server(llm, engine) as url, anthropic.Anthropic(base_url=url, api_key="any") as client:
        client.messages.create(model="scripted", max_tokens=64, messages=turns, tools=[WEATHER])
    prompt = llm.tokenizer.decode(engine.requests[0].prompt)
    assert '<|tool_response>response:get_weather{error:<|"|>no data<|"|>}<tool_response|>' in prompt
    assert "And now?" in prompt
