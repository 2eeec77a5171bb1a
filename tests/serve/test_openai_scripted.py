"""The `openai` package against a server whose answers come from a script: the random model would never write them."""

import json
from collections.abc import Iterator

import openai
import pydantic
import pytest
from serving import CHAT, WEATHER, ScriptedEngine, scripted_server

from redraft.llm import LLM

HELLO = CHAT["messages"]
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
THINKING = ["<|channel>thought\nI need the wea", "ther.<channel|>Let me l", f"ook. {CALL}{CALL}"]


def test_thoughts_and_calls_are_taken_apart(llm: LLM) -> None:
    with scripted_server(llm, ScriptedEngine(llm, lambda request: THINKING)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        answer = client.chat.completions.create(model="scripted", messages=HELLO, tools=[WEATHER])  # type: ignore[list-item]
        *chunks, last = client.chat.completions.create(
            model="scripted", messages=HELLO, tools=[WEATHER], stream=True, stream_options={"include_usage": True}
        )  # type: ignore[list-item]
    message = answer.choices[0].message
    assert message.reasoning_content == "I need the weather."  # type: ignore[attr-defined]
    assert message.content == "Let me look."
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in message.tool_calls or []] == [
        {"city": "Paris", "days": 3}
    ] * 2
    assert answer.usage == last.usage
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(llm.tokenizer.encode("I need the weather."))  # type: ignore[union-attr]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "I need the weather."
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    assert len({call.id for call in calls}) == 2
    assert json.loads(calls[1].function.arguments) == {"city": "Paris", "days": 3}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_tool_result_goes_back_in(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: ["Sunny."])
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    with scripted_server(llm, engine) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        assert (
            client.chat.completions.create(model="other", messages=turns, tools=[WEATHER]).choices[0].message.content
            == "Sunny."
        )  # type: ignore[arg-type, list-item]
    prompt = llm.tokenizer.decode(engine.requests[0].prompt)
    assert '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>' in prompt
    assert '<|tool_response>response:get_weather{value:<|"|>sun<|"|>}<tool_response|>' in prompt


@pytest.mark.parametrize("fields", [{}, {"continue_final_message": True, "add_generation_prompt": False}])
def test_an_answer_that_has_begun_is_continued(llm: LLM, fields: dict[str, bool]) -> None:
    """What vLLM's clients send for it is known, too."""
    engine = ScriptedEngine(llm, lambda request: [" of", " France is ", "Paris. "])
    turns = [*HELLO, {"role": "assistant", "content": "The capital"}]
    with scripted_server(llm, engine) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        answer = client.chat.completions.create(model="other", messages=turns, extra_body=fields)  # type: ignore[arg-type]
        stream = client.chat.completions.create(model="other", messages=turns, extra_body=fields, stream=True)  # type: ignore[arg-type]
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert answer.choices[0].message.content == streamed == " of France is Paris. "
    assert llm.tokenizer.decode(engine.requests[0].prompt).endswith("model\nThe capital")


def test_an_answer_that_the_client_has_parsed_goes_back_in(llm: LLM) -> None:
    weather = pydantic.create_model("Weather", city=str, days=int)
    tool = openai.pydantic_function_tool(weather, name="get_weather", description="Get weather")
    engine = ScriptedEngine(llm, lambda request: [CALL])
    with scripted_server(llm, engine) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        parsed = client.chat.completions.parse(model="other", messages=HELLO, tools=[tool])  # type: ignore[arg-type]
        with client.chat.completions.stream(model="other", messages=HELLO, tools=[tool]) as stream:  # type: ignore[arg-type]
            streamed = stream.get_final_completion()
        for message in (parsed.choices[0].message, streamed.choices[0].message.to_dict()):
            turns = [*HELLO, message, *HELLO]
            client.chat.completions.create(model="other", messages=turns, tools=[tool])  # type: ignore[arg-type]
    first, second = (llm.tokenizer.decode(request.prompt) for request in engine.requests[2:])
    assert CALL in first
    assert first == second


def test_an_answer_that_took_too_long_is_not_asked_for_again(llm: LLM) -> None:
    engine = ScriptedEngine(llm, lambda request: [""])
    engine.finish_reason = "timeout"
    with scripted_server(llm, engine) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        with pytest.raises(openai.APIStatusError, match="not finished within"):
            client.chat.completions.create(model="scripted", messages=HELLO)
    assert len(engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_that_had_no_time_is_empty_beside_others(llm: LLM, stream: bool) -> None:
    engine = ScriptedEngine(llm, lambda request: ["Some text."] if request.settings.seed == 6 else [])
    engine.finish_reason = "timeout"
    with scripted_server(llm, engine) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        told = {"model": "scripted", "messages": HELLO, "n": 3, "seed": 5, "stream": stream}
        answer = client.chat.completions.create(**told)  # type: ignore[call-overload]
        choices = [one for chunk in answer for one in chunk.choices] if stream else answer.choices
    texts = ["", "", ""]
    for choice in choices:
        texts[choice.index] += (choice.delta if stream else choice.message).content or ""
    assert texts == ["", "Some text.", ""]
    ended = [choice for choice in choices if choice.finish_reason == "length"]
    assert {choice.index: choice.redraft["seed"] for choice in ended} == {0: 5, 1: 6, 2: 7}


def test_a_broken_answer_ends_a_stream_with_an_error(llm: LLM) -> None:
    def script(request: object) -> Iterator[str]:
        raise RuntimeError("secret detail")

    with scripted_server(llm, ScriptedEngine(llm, script)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="scripted", messages=HELLO)
        assert "secret" not in str(caught.value)
        with pytest.raises(openai.APIError, match="The server failed"):
            list(client.chat.completions.create(model="scripted", messages=HELLO, stream=True))
