"""`logit_bias` over HTTP: the `openai` package against a real server, and what is refused there."""

from typing import Any

import httpx
import openai
import pytest

from redraft.llm import LLM

HELLO = [{"role": "user", "content": "Hello!"}]
ASKED: dict[str, Any] = {"model": "random", "seed": 7, "max_tokens": 40}
CHAT: dict[str, Any] = {"model": "random", "messages": HELLO}


@pytest.fixture(scope="module")
def written(llm: LLM) -> dict[str, int]:
    """A ban of every token that the model writes by itself, as OpenAI's clients write it."""
    return {str(token): -100 for token in llm.generate(HELLO, seed=7, max_tokens=40).token_ids}


def test_a_chat_with_a_bias_is_that_of_the_front_door(client: openai.OpenAI, llm: LLM, written: dict[str, int]) -> None:
    bias = {int(token): float(value) for token, value in written.items()}
    alone, plain = (
        llm.generate(HELLO, seed=7, max_tokens=40, logit_bias=bias),
        llm.generate(HELLO, seed=7, max_tokens=40),
    )
    answer = client.chat.completions.create(messages=HELLO, logit_bias=written, logprobs=True, **ASKED)
    assert answer.choices[0].message.content == alone.text.strip() != plain.text.strip()
    assert not bias.keys() & set(alone.token_ids)
    chunks = client.chat.completions.create(messages=HELLO, logit_bias=written, stream=True, **ASKED)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed.strip() == alone.text.strip()


def test_completions_and_responses_take_one(client: openai.OpenAI, llm: LLM) -> None:
    words = [llm.tokenizer.encode(text, special=False)[0] for text in ("a", "b")]
    bias = dict.fromkeys(map(str, words), 100)
    answer = client.completions.create(prompt="Hello", logit_bias=bias, n=2, **ASKED)
    assert [len(choice.text) for choice in answer.choices] == [40, 40]
    assert {letter for choice in answer.choices for letter in choice.text} <= {"a", "b"}
    more: dict[str, Any] = {"extra_body": {"logit_bias": bias, "choices": ["xyz", "ab"]}}
    told = client.responses.create(model="random", input="Hello!", max_output_tokens=40, **more)
    assert told.output_text == "ab"
    empty = client.completions.create(prompt="Hello", logit_bias={}, **ASKED)
    assert empty.choices[0].text == client.completions.create(prompt="Hello", **ASKED).choices[0].text


@pytest.mark.parametrize(
    ("bias", "said", "param"),
    [
        ({"5": 101}, "Input should be less than or equal to 100", "logit_bias.5"),
        ({"5": "1"}, "Input should be a valid number", "logit_bias.5"),
        ({"5": True}, "Input should be a valid number", "logit_bias.5"),
        ({"05": 1}, "should match pattern", "logit_bias.05"),
        ({"word": 1}, "should match pattern", "logit_bias.word"),
        ({"999999999": 1}, "logit_bias has the token id 999999999; the vocabulary has ", "logit_bias"),
        ({str(token): 1 for token in range(1025)}, "has 1025 members; at most 1024 are allowed", "logit_bias"),
        ([5], "Input should be a valid dictionary", "logit_bias"),
    ],
)
def test_a_wrong_bias_is_a_400_that_names_it(http: httpx.Client, bias: Any, said: str, param: str) -> None:
    for path, body in (("chat/completions", CHAT), ("completions", {"model": "random", "prompt": "x"})):
        answer = http.post(f"/v1/{path}", json=body | {"logit_bias": bias})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert said in error["message"]
        assert error["param"].startswith(param)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"suffix": "y"}, "logit_bias is a setting for answers; a filling or an edit cannot take it."),
        ({"echo": True, "logprobs": 1, "max_tokens": 0}, "logit_bias needs an answer"),
    ],
)
def test_it_is_refused_where_no_answer_is_written(http: httpx.Client, more: dict[str, Any], said: str) -> None:
    body = {"model": "random", "prompt": "x", "logit_bias": {"5": 1}}
    answer = http.post("/v1/completions", json=body | more)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert said in answer.json()["error"]["message"]
