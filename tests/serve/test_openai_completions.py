"""The `openai` package, unmodified, against `redraft serve`: text completions, and fillings, which have a suffix."""

from typing import Any

import openai
import pytest
from serving import ScriptedEngine, scripted_server

from redraft.llm import LLM


def test_a_suffix_makes_a_completion_a_filling(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="random", prompt="def add(a, b):\n    ", suffix="\n\nprint(add(1, 2))\n",
                                       max_tokens=8, seed=1)  # fmt: skip
    chunks = list(client.completions.create(model="random", prompt="def add(a, b):\n    ", max_tokens=8, seed=1,
                                            suffix="\n\nprint(add(1, 2))\n", stream=True,
                                            stream_options={"include_usage": True}))  # fmt: skip
    assert [[choice.text for choice in chunk.choices] for chunk in chunks] == [[answer.choices[0].text], []]
    assert [chunk.usage for chunk in chunks] == [None, answer.usage]
    assert answer.choices[0].finish_reason == "stop"
    told = answer.choices[0].model_extra["redraft"]
    plain = client.completions.create(model="random", prompt="a", max_tokens=16).choices[0].model_extra["redraft"]
    assert (told.keys(), told["stats"].keys()) == (plain.keys(), plain["stats"].keys())
    assert (told["seed"], told["ending"], told["stats"]["step_budgets"]) == (1, "stop", [4])
    assert 1 <= told["stats"]["steps"][0] <= told["stats"]["forwards"]
    with pytest.raises(openai.BadRequestError, match="suffix and n cannot be combined"):
        client.completions.create(model="random", prompt="a", suffix="b", n=2)


def test_a_filling_takes_what_completions_are_asked_with(client: openai.OpenAI, llm: LLM) -> None:
    """A bound beyond the canvas, any temperature, and stop strings, which cut it."""
    asked: dict[str, Any] = {"model": "random", "prompt": "def f():\n    ", "suffix": "\n\nf()\n", "seed": 1}
    most = llm.model.config.canvas_length // 2
    whole = llm.fill(asked["prompt"], asked["suffix"], seed=1, max_tokens=most)
    for said in ({"max_tokens": 4096}, {"max_tokens": 16, "temperature": 0}):
        assert client.completions.create(**asked, **said).choices[0].text == whole.text
    cool = {"t_max": llm.defaults.t_max * 0.2, "t_min": llm.defaults.t_min * 0.2}
    cooler = client.completions.create(**asked, max_tokens=8, temperature=0.2)
    assert cooler.choices[0].text == llm.fill(asked["prompt"], asked["suffix"], seed=1, max_tokens=8, **cool).text
    told = llm.fill(asked["prompt"], asked["suffix"], seed=1, max_tokens=most, choices=["a = 1\nb"]).fillings[0]
    more: dict[str, Any] = {"max_tokens": 99, "extra_body": {"confidence": True, "choices": ["a = 1\nb"]}}
    cut = client.completions.create(**asked, **more, stop=["= 1\nb", "\n"])
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("a = 1", "stop")
    kept = [token.token_id for token, (start, _) in zip(told.tokens, told.offsets, strict=True) if start < len("a = 1")]
    tokens = cut.choices[0].redraft["confidence"]  # type: ignore[attr-defined]
    assert [token["id"] for token in tokens] == kept
    assert tokens[0].keys() == {"token", "id", "entropy", "settled_step"}, "those of any other answer"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == len(kept) < len(told.tokens)


def test_a_fillings_usage_counts_what_ran(client: openai.OpenAI, llm: LLM) -> None:
    """Not the text read or written: the canvas had room for little of what follows."""
    behind = " again and again" * 40
    alone = llm.fill("x = ", behind, seed=1, max_tokens=4)
    answer = client.completions.create(model="random", prompt="x = ", suffix=behind, max_tokens=4, seed=1)
    assert answer.choices[0].text == alone.text
    usage, filling = answer.usage, alone.fillings[0]
    assert usage is not None
    assert usage.prompt_tokens == 1 + filling.before + filling.behind < len(llm.tokenizer.encode(behind))
    assert usage.completion_tokens == len(filling.tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_a_filling_refuses_an_empty_stop_string(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="stop has an empty string"):
        client.completions.create(model="random", prompt="a", suffix="b", stop=[""])


def test_text_completions(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="random", prompt="def f():", seed=4, max_tokens=32, logprobs=1)
    alone = llm.generate("def f():", raw=True, seed=4, max_tokens=32)
    choice = answer.choices[0]
    assert choice.text == alone.text
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset is not None
    assert choice.logprobs.text_offset[0] == 0
    assert len(choice.logprobs.tokens or []) == len(alone.token_ids)
    streamed = client.completions.create(model="random", prompt="def f():", seed=4, max_tokens=32, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == alone.text
    echoed = client.completions.create(model="random", prompt="def f():", seed=4, max_tokens=32, echo=True)
    assert echoed.choices[0].text == "def f():" + alone.text


def test_several_prompts_in_one_completion(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="random", prompt=["a = 1", "b = 2"], seed=4, max_tokens=16, n=2)
    expected = [llm.generate(p, raw=True, seed=s, max_tokens=16).text for p in ("a = 1", "b = 2") for s in (4, 5)]
    assert [choice.text for choice in answer.choices] == expected


def test_equal_prompts_without_a_seed_have_answers_of_their_own(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="random", prompt=["one"] * 3, max_tokens=16)
    assert len({choice.redraft["seed"] for choice in answer.choices}) == 3  # type: ignore[attr-defined]
    assert len({choice.text for choice in answer.choices}) == 3


@pytest.mark.parametrize("prompts", [["one", "two words"], [[5, 6], [7]]])
def test_each_prompt_counts_once_and_begins_its_own_echoes(llm: LLM, prompts: list[Any]) -> None:
    """The engine of the script takes three tokens of every prompt from its cache."""
    texts = [one if isinstance(one, str) else llm.tokenizer.decode(one) for one in prompts]
    asked: dict[str, Any] = {"model": "scripted", "prompt": prompts, "n": 2, "echo": True}
    with (
        scripted_server(llm, ScriptedEngine(llm, lambda request: [" x"])) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client,
    ):
        answer = client.completions.create(**asked)
        streamed = ["", "", "", ""]
        for chunk in client.completions.create(**asked, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert [choice.text for choice in answer.choices] == streamed == [f"{text} x" for text in texts for _ in range(2)]
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens == sum(len(llm.read_prompt(one, raw=isinstance(one, str))) for one in prompts)
    assert usage.completion_tokens == 4 * len(llm.tokenizer.encode(" x"))
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2 * 3
