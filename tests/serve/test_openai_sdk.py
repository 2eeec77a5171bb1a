"""The `openai` package, unmodified, against `redraft serve`: chat, models and refusals."""

import json
import re
from typing import Any, cast

import jsonschema
import openai
import pytest
from serving import WEATHER

from redraft.diffusion.records import TokenConfidence
from redraft.engine.request import Finished
from redraft.llm import LLM
from redraft.serve.openai_common import completion_logprobs, listed_logprobs
from redraft.serve.shapes.chat import ChatRequest
from redraft.text.tools import EMPTY_THOUGHT

HELLO = [{"role": "user", "content": "Hello!"}]
TOOL = {"type": "function", "function": {"name": "clock"}}
CLOCK: dict[str, Any] = {"model": "random", "messages": HELLO, "tools": [TOOL], "tool_choice": "required"}


def test_a_function_may_have_the_name_of_a_mode() -> None:
    tool, choice = (
        {"type": "function", "function": {"name": "none"}},
        {"type": "function", "function": {"name": "none"}},
    )
    body = ChatRequest.model_validate({"model": "m", "messages": HELLO, "tools": [tool], "tool_choice": choice})
    assert body.tool_constraint()["tool_choice"] == {"name": "none"}


def test_the_strictness_of_the_request_holds_for_a_format_that_says_none() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    body = {"model": "m", "messages": HELLO, "response_format": wanted, "strict": False}
    request = ChatRequest.model_validate(body)
    assert (request.constraints() | request.format_constraint())["strict"] is False


def test_a_seeded_chat_is_repeatable_and_counted(client: openai.OpenAI, llm: LLM) -> None:
    first = client.chat.completions.create(model="random", messages=HELLO, seed=7, max_tokens=40)
    again = client.chat.completions.create(model="random", messages=HELLO, seed=7, max_tokens=40)
    alone = llm.generate(HELLO, seed=7, max_tokens=40)
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.usage is not None
    assert first.usage.completion_tokens == len(alone.token_ids)
    assert first.usage.prompt_tokens == len(llm.encode_chat(HELLO))
    assert first.choices[0].finish_reason == alone.finish_reason
    assert first.model == "random"
    assert first.system_fingerprint == "redraft-0.1.0-float32-cpu"


def test_without_a_seed_answers_differ_and_the_seed_is_told(client: openai.OpenAI) -> None:
    answers = [client.chat.completions.create(model="random", messages=HELLO, max_tokens=16) for _ in range(2)]
    seeds = [answer.choices[0].redraft["seed"] for answer in answers]  # type: ignore[attr-defined]
    assert seeds[0] != seeds[1]
    again = client.chat.completions.create(model="random", messages=HELLO, max_tokens=16, seed=seeds[0])
    assert again.choices[0].message.content == answers[0].choices[0].message.content


def test_what_changes_no_answer_is_taken(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "random", "seed": 7, "max_tokens": 16}
    plain = client.chat.completions.create(messages=cast(Any, HELLO), **asked)
    parts = [{"type": "text", "text": "Hello!", "prompt_cache_breakpoint": {"mode": "explicit"}}]
    named = cast(Any, [{"role": "user", "content": parts, "name": "Ana"}])
    caller: dict[str, Any] = {
        "metadata": {"a": "b"}, "safety_identifier": "d", "prompt_cache_key": "c", "prompt_cache_retention": "24h",
        "prompt_cache_options": {"ttl": "30m"},
    }  # fmt: skip
    more = client.chat.completions.create(messages=named, verbosity="medium", **caller, **asked)
    assert more.choices[0].message.content == plain.choices[0].message.content
    part: Any = {"type": "input_text", "text": "Hello!", "prompt_cache_breakpoint": {"mode": "explicit"}}
    said: Any = [{"role": "user", "content": [part]}]
    response = client.responses.create(input=said, model="random", max_output_tokens=16, **caller)
    assert response.metadata == {"a": "b"}


@pytest.mark.parametrize("fields", [{"messages": [{"role": "user", "content": "long " * 2000}]}, {"max_tokens": 9999}])
def test_what_is_too_long_has_the_code_that_clients_know(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": "random", "messages": HELLO} | fields))
    assert caught.value.code == "context_length_exceeded"


def test_temperature_0_is_deterministic(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model="random", messages=HELLO, max_tokens=16, temperature=0) for _ in range(2)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="random", messages=HELLO, seed=3, max_tokens=60)
    chunks = list(
        client.chat.completions.create(
            model="random", messages=HELLO, seed=3, max_tokens=60, stream=True, stream_options={"include_usage": True}
        )
    )
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert content == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 1, "canvases come one by one"


def test_n_answers_have_seeds_of_their_own(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(model="random", messages=HELLO, seed=5, max_tokens=32, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        alone = llm.chat(HELLO, seed=5 + choice.index, max_tokens=32)
        assert choice.message.content == alone.content


def test_n_answers_stream_together(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="random", messages=HELLO, seed=5, max_tokens=32, n=2)
    texts = ["", ""]
    for chunk in client.chat.completions.create(
        model="random", messages=HELLO, seed=5, max_tokens=32, n=2, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_logprobs_of_every_token(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="random", messages=HELLO, seed=1, max_tokens=20, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    for token in logprobs.content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert bytes(token.bytes or []).decode("utf-8", "replace") == token.token


def test_logprobs_of_what_cannot_be(client: openai.OpenAI) -> None:
    more = {"extra_body": {"choices": ["yes", "no"]}, "max_tokens": 8}
    chat = client.chat.completions.create(model="random", messages=HELLO, logprobs=True, top_logprobs=20, **more)
    text = client.completions.create(model="random", prompt="a", logprobs=20, **more)
    assert chat.choices[0].logprobs
    assert text.choices[0].logprobs
    least = min(token.logprob for token in (chat.choices[0].logprobs.content or [])[0].top_logprobs)
    assert least == min((text.choices[0].logprobs.top_logprobs or [])[0].values()) == -9999


def test_a_stop_string_ends_the_answer_before_itself(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="random", messages=HELLO, seed=2, max_tokens=64).choices[0].message
    assert whole.content is not None
    stop = whole.content[8:10]
    cut = client.chat.completions.create(model="random", messages=HELLO, seed=2, max_tokens=64, stop=[stop])
    assert cut.choices[0].message.content == whole.content[: whole.content.index(stop)].rstrip()
    assert cut.choices[0].finish_reason == "stop"


def test_redrafts_own_settings_go_through(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="random",
        messages=HELLO,
        seed=2,
        max_tokens=32,
        extra_body={"steps": 2, "canvas_length": 32, "confidence": True},
    )
    more = answer.choices[0].redraft  # type: ignore[attr-defined]
    assert more["stats"]["steps"] == [2]
    assert more["stats"]["step_budgets"] == [2]
    assert len(more["confidence"]) == more["stats"]["tokens"]
    assert {"token", "id", "entropy", "settled_step"} == set(more["confidence"][0])


def test_a_response_format_is_obeyed_even_by_random_weights(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model="random", messages=HELLO, seed=seed, max_tokens=64, response_format=wanted
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)
    plain = client.chat.completions.create(
        model="random", messages=HELLO, seed=1, max_tokens=64, response_format={"type": "json_object"}
    )
    assert plain.choices[0].finish_reason == "length" or isinstance(
        json.loads(plain.choices[0].message.content or ""), dict
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_tool_is_called_even_by_random_weights(client: openai.OpenAI, choice: Any) -> None:
    tool: Any = json.loads(json.dumps(WEATHER))
    tool["function"]["parameters"]["properties"] = {"city": {"type": "string", "enum": ["Paris", "Rome"]}}
    answer = client.chat.completions.create(
        model="random", messages=HELLO, seed=4, max_tokens=64, tools=[tool], tool_choice=choice, stream=True
    )
    calls = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].function is not None
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments or "")["city"] in ("Paris", "Rome")


def test_allowed_tools_leave_the_others_in_the_prompt_but_not_in_calls(client: openai.OpenAI) -> None:
    other: Any = {"type": "function", "function": {"name": "weather"}}
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}
    asked: Any = CLOCK | {"tools": [other, TOOL], "max_tokens": 64}
    free = client.chat.completions.create(**asked)
    for seed in range(3):
        answer = client.chat.completions.create(**asked | {"seed": seed, "tool_choice": allowed})
        assert {call.function.name for call in answer.choices[0].message.tool_calls or []} == {"clock"}
        assert answer.usage is not None
        assert free.usage is not None
        assert answer.usage.prompt_tokens == free.usage.prompt_tokens


def test_a_stop_string_does_not_cut_a_call(client: openai.OpenAI) -> None:
    asked = CLOCK | {"max_tokens": 64, "seed": 4, "stop": ["}", "tool_call", "clock"]}
    message = client.chat.completions.create(**asked).choices[0].message
    assert (message.content or "") == ""
    assert message.tool_calls
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(stream=True, **asked)]
    assert "".join(delta.content or "" for delta in deltas) == ""
    assert sum(len(delta.tool_calls or []) for delta in deltas) == len(message.tool_calls)


def test_calls_that_are_not_parallel_are_one_even_by_random_weights(client: openai.OpenAI) -> None:
    counts = []
    for parallel in (True, False):
        answers = client.chat.completions.create(max_tokens=64, n=4, seed=4, parallel_tool_calls=parallel, **CLOCK)
        counts.append([len(choice.message.tool_calls or []) for choice in answers.choices])
    assert max(counts[0]) > 1
    assert counts[1] == [1] * 4


def test_a_tool_says_whether_it_is_strict(client: openai.OpenAI) -> None:
    function: dict[str, Any] = {"name": "f", "parameters": {"properties": {"a": {"pattern": "b(?=c)"}}}}
    asked: dict[str, Any] = {"model": "random", "messages": HELLO, "max_tokens": 8}
    for said in ({}, {"strict": False}):
        client.chat.completions.create(tools=[{"type": "function", "function": function | said}], **asked)
    with pytest.raises(openai.BadRequestError, match=re.escape("tool 'f': The schema keyword 'pattern' with the value "
                                                               "'b(?=c)' uses look-ahead")):  # fmt: skip
        client.chat.completions.create(tools=[{"type": "function", "function": function | {"strict": True}}], **asked)


def test_choices_and_regex_as_extra_fields(client: openai.OpenAI) -> None:
    for fields, pattern in (
        ({"choices": ["yes", "no"]}, "yes|no"),
        ({"regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
    ):
        answer = client.chat.completions.create(model="random", messages=HELLO, max_tokens=32, extra_body=fields)
        assert re.fullmatch(pattern, answer.choices[0].message.content or "")
    with pytest.raises(openai.BadRequestError, match="give one of them"):
        client.chat.completions.create(model="random", messages=HELLO, extra_body={"choices": ["a"], "regex": "b"})


def test_an_answer_that_spells_a_thought_keeps_it(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="random", prompt="a", logprobs=0, extra_body={"choices": [EMPTY_THOUGHT + "Hi there"]}
    )
    assert answer.choices[0].text == f"{EMPTY_THOUGHT}Hi there"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    for token, start in zip(logprobs.tokens or [], logprobs.text_offset or [], strict=True):
        assert answer.choices[0].text[start:].startswith(token)


def test_a_thought_that_is_left_out_moves_no_token(llm: LLM) -> None:
    ids = tuple(llm.tokenizer.encode(EMPTY_THOUGHT + "Hi there"))
    finished = Finished(
        request_id=0, finish_reason="stop", stop_text=None, text="Hi there", token_ids=ids,
        tokens=tuple(TokenConfidence(token, 0.0, 0, 0.0) for token in ids), stats=cast("Any", None),
    )  # fmt: skip
    told = completion_logprobs(finished, llm.tokenizer)
    for token, start in list(zip(told["tokens"], told["text_offset"], strict=True))[-2:]:
        assert "Hi there"[start:].startswith(token)
    assert told["text_offset"][0] == 0


def test_tokens_that_are_parts_of_characters_are_told_by_their_bytes(llm: LLM) -> None:
    """All of them were U+FFFD, and of those in one place only the likeliest was there."""
    ids = tuple(llm.tokenizer.encode("🙂"))
    top = ((ids[1], -0.5), (ids[0], -1.5))
    finished = Finished(
        request_id=0, finish_reason="stop", stop_text=None, text="🙂", token_ids=ids,
        tokens=tuple(TokenConfidence(token, 0.0, 0, -1.5, top) for token in ids), stats=cast("Any", None),
    )  # fmt: skip
    told = completion_logprobs(finished, llm.tokenizer)
    assert told["tokens"] == [f"bytes:\\x{byte:02x}" for byte in "🙂".encode()]
    assert told["top_logprobs"][0] == {"bytes:\\x9f": -0.5, "bytes:\\xf0": -1.5}
    assert told["text_offset"] == [0, 0, 0, 0]


def test_a_token_behind_part_of_a_character_begins_where_its_text_does(llm: LLM) -> None:
    """What is only part of a character is U+FFFD in the text, which is one character."""
    part = llm.tokenizer.encode("🙂")[:2]
    smile = llm.tokenizer.encode("🙂")
    ids = [*part, *llm.tokenizer.encode("Hi"), *part, *smile, *part, *part[:1]]
    places = listed_logprobs(ids, [None] * len(ids), llm.tokenizer)["text_offset"]
    assert llm.tokenizer.decode(ids) == "\ufffdHi\ufffd🙂\ufffd\ufffd"
    assert places == [0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 6]


@pytest.mark.parametrize(
    ("wanted", "form"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
        ({"json": '{"enum": [1, 2]}'}, "[12]"),
        ({"json_object": True}, r"\{.*\}"),
    ],
)
def test_constraints_as_vllms_clients_write_them(client: openai.OpenAI, wanted: dict[str, Any], form: str) -> None:
    asked: dict[str, Any] = {
        "model": "random",
        "messages": HELLO,
        "max_tokens": 128,
        "extra_body": {"structured_outputs": wanted},
    }
    content = client.chat.completions.create(**asked).choices[0].message.content
    assert re.fullmatch(form, content or "", re.DOTALL)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["random", "gpt-4o"]
    assert client.models.retrieve("gpt-4o").owned_by == "redraft"
    with pytest.raises(openai.NotFoundError, match="'nonesuch' is not served here; this server has random, gpt-4o"):
        client.models.retrieve("nonesuch")


@pytest.mark.parametrize(
    ("fields", "said", "param"),
    [
        ({"extra_body": {"stepps": 3}}, "Unknown field 'stepps'", "stepps"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "has type 'custom'; this server takes", "tools[0]"),
        ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, "'messages[0].foo'", "messages[0].foo"),
        ({"top_p": 0.5}, "top_p: 0.5 is not supported; it must be 1", "top_p"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1", "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens is 100000, but after a prompt of", "max_tokens"),
        ({"max_completion_tokens": 100_000}, "max_completion_tokens is 100000, but", "max_completion_tokens"),
        ({"extra_body": {"preset": "quick"}}, "preset is 'quick'; it must be one of", "preset"),
        ({"extra_body": {"canvas_length": 7}}, "canvas_length is 7; it must be between 16 and 512", "canvas_length"),
        ({"messages": []}, "messages", "messages"),
        ({"messages": [*HELLO, {"role": "assistant", "content": None}]}, "is an empty assistant message", "messages"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I am"}], "reasoning_effort": "high"},
         "the model cannot think before it", "reasoning_effort"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I"}], "extra_body": {"continue_final_message": False}},
         "continue_final_message must be true if", "continue_final_message"),
        ({"extra_body": {"add_generation_prompt": False}},
         "add_generation_prompt must be false if", "add_generation_prompt"),
        ({"messages": [{"role": "user"}]}, "The field 'messages[0].content' is required", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "this model reads only text: it has no vision tower", "messages"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, *HELLO]},
         "holds an image; only user messages can", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
         "holds input_audio; this server takes only text and images", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 4}]}]}, "valid string",
         "messages[0].content[0].text"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "needs exactly one of json, regex",
         "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"regex": "a"}, "regex": "b"}}, "mean the same; give one", "regex"),
        ({"extra_body": {"structured_outputs": {"json": {}}}, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
         "structured_outputs and response_format mean the same", "structured_outputs"),
        ({"extra_body": {"structured_outputs": {"grammar": "a"}}}, "Unknown field", "structured_outputs.grammar"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strickt": True}}]}, "Unknown field",
         "tools[0].function.strickt"),
        ({"tools": [{"type": "function", "function": {"name": "f", "type": "function"}}]}, "Unknown field",
         "tools[0].function.type"),
        ({"tools": [{"type": "function", "function": 3}]}, "valid dictionary", "tools[0].function"),
        ({"tools": 2 * [{"type": "function", "function": {"name": "f"}}]}, "the second tool named 'f'", "tools[1]"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required",
          "extra_body": {"regex": "("}}, "unbalanced parenthesis", "regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}}, "'type'",
         "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "is required",
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a"]}}},
          "extra_body": {"json_schema": {"enum": ["b"]}}}, "json_schema and response_format mean the same",
         "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True}},
          "extra_body": {"strict": False}}, "strict and response_format's strict contradict each other", "strict"),
        ({"messages": [{"role": "user", "content": "long " * 2000}]}, "The prompt is too long", "messages"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs", "top_logprobs"),
        ({"n": 0}, "n: Input should be", "n"),
        ({"stop": ["x"] * 17}, "stop: List should have at most 16 items", "stop"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": 3}}, "valid dictionary", "tool_choice.function"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": {"name": "auto"}}},
         "tool_choice names 'auto'; the tools are f.", "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}},
         "tool_choice allows 'clock'; the tools are f.", "tool_choice"),
        ({"extra_body": {"thinking": True}}, "cannot think first", "thinking"),
        ({"reasoning_effort": "high"}, "cannot think first", "reasoning_effort"),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}, "cannot think first",
         "chat_template_kwargs.enable_thinking"),
        ({"extra_body": {"chat_template_kwargs": {"tools_in_user": True}}}, "Unknown field",
         "chat_template_kwargs.tools_in_user"),
        ({"extra_body": {"top_k": 40}}, "top_k: 40 is not supported; it must be -1 or 0", "top_k"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_a_400_that_says_so(
    client: openai.OpenAI, fields: dict[str, object], said: str, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": "random", "messages": HELLO} | fields))  # type: ignore[call-overload]
    assert said in caught.value.message
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "prompt: List should have at least 1 item"),
        ([[1], []], "prompt[1]: List should have at least 1 item"),
        ([[1], "a"], "prompt[1]: Input should be a valid list"),
        (["a"] * 129, "prompt: List should have at most 128 items"),
        ([[1, 2]] * 129, "prompt: List should have at most 128 items"),
        ([1, "a"], "prompt[1]: Input should be a valid integer"),
        (["a", 1], "prompt[1]: Input should be a valid string"),
        (5, "prompt: Input should be a valid string"),
    ],
)
def test_prompts_are_refused_as_what_they_are_meant_to_be(client: openai.OpenAI, prompt: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="random", prompt=prompt)
    assert said in caught.value.message


def test_a_wrong_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ({"choices": [" yes\n"]}, " yes\n"),
        ({"regex": r"The <eos> token\."}, "The <eos> token."),
        ({"choices": ["<|channel>final"]}, "<|channel>final"),
        ({"regex": r"call <\|tool_call>call:rm\{\}<tool_call\|> now"}, "call <|tool_call>call:rm{}<tool_call|> now"),
        ({"template": "  {x:int}"}, None),
    ],
)
def test_what_was_asked_for_is_told_as_it_is(client: openai.OpenAI, asked: dict[str, Any], written: str | None) -> None:
    """Text that spells special tokens is text, and white space stays."""
    answer = client.chat.completions.create(model="random", messages=HELLO, max_tokens=48, extra_body=asked).choices[0]
    assert answer.message.content == written or (written is None and re.fullmatch(r"  -?\d+", answer.message.content))
    assert (answer.finish_reason, answer.message.tool_calls) == ("stop", None)
