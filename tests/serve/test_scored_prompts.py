"""`echo` with `logprobs` in `/v1/completions`: prompts scored as evaluation harnesses ask for it."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from serving import CONTEXT, ScriptedEngine, scripted_server, server_process, until
from test_two_sided import SLOW

from redraft.llm import LLM
from redraft.serve.scoring_queue import Prompts, Scores, ScoringQueue
from redraft.serve.settings import ServeSettings

PROMPT = "The sea is salty 🙂 because"


def spelled(llm: LLM, token: int) -> str:
    """A token as the lists have it."""
    piece = llm.tokenizer.token_bytes(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def by_hand(
    llm: LLM, ids: Sequence[int], top: int, before: Sequence[int]
) -> tuple[list[float], list[dict[str, float]]]:
    """Log-probabilities of all tokens but the first, and those of the likeliest in each place by their text."""
    score = llm.score(ids[1:], [*before, ids[0]], top=top)
    tops = [
        {spelled(llm, token): logprob for token, logprob in ((one[0], one[1]), *reversed(one.top))}
        for one in score.tokens
    ]
    return list(score.logprobs), tops


def check(llm: LLM, told: Any, ids: Sequence[int], top: int, before: Sequence[int] = ()) -> None:
    """The lists begin with a prompt's, `before` which there may be others: its first token has no numbers."""
    logprobs, tops = by_hand(llm, ids, top, before)
    assert told.tokens[: len(ids)] == [spelled(llm, token) for token in ids]
    assert told.token_logprobs[0] is told.top_logprobs[0] is None
    assert told.token_logprobs[1 : len(ids)] == pytest.approx(logprobs, abs=1e-4)
    for entry, expected in zip(told.top_logprobs[1 : len(ids)], tops, strict=True):
        assert entry == pytest.approx(expected, abs=1e-4)
    assert len({len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)}) == 1


@pytest.mark.parametrize("top", [0, 1, 5])
def test_a_prompt_is_scored_without_an_answer(client: openai.OpenAI, llm: LLM, top: int) -> None:
    answer = client.completions.create(model="random", prompt=PROMPT, max_tokens=0, echo=True, logprobs=top)
    bos, *ids = llm.prompt_ids(PROMPT, raw=True)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert choice.logprobs is not None
    assert len(choice.logprobs.tokens or []) == len(ids)
    check(llm, choice.logprobs, ids, top, [bos])
    for token, start in zip(choice.logprobs.tokens or [], choice.logprobs.text_offset or [], strict=True):
        assert PROMPT[start:].startswith(token) or token.startswith("bytes:")
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (1 + len(ids), 0)


def test_prompts_of_ids_are_scored_together(client: openai.OpenAI, llm: LLM) -> None:
    """Each as it would be alone; a prompt of one token has nothing to score."""
    prompts = [[2, *llm.tokenizer.encode("Water is wet.")], [2], [7, 8, 9]]
    asked: dict[str, Any] = {"model": "random", "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 2}
    answer = client.completions.create(**asked)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for ids, choice in zip(prompts[::2], answer.choices[::2], strict=True):
        assert choice.text == llm.tokenizer.decode(ids)
        check(llm, choice.logprobs, ids, 2)
        assert choice.logprobs is not None
        for token, start in zip(choice.logprobs.tokens or [], choice.logprobs.text_offset or [], strict=True):
            assert choice.text[start:].startswith(token)
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.token_logprobs == [None]
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert [choice for chunk in chunks for choice in chunk.choices] == answer.choices
    assert chunks[-1].usage == answer.usage


@pytest.mark.parametrize("as_text", [False, True])
def test_one_token_more_is_the_likeliest_next_one(client: openai.OpenAI, llm: LLM, as_text: bool) -> None:
    """What lm-evaluation-harness asks for, and the parts of an answer that it reads: it drops one token at the end."""
    context, continuation = "The sky is", " blue today"
    before, scored = llm.tokenizer.encode(context), llm.tokenizer.encode(continuation)
    before = before if as_text else [2, *before]
    prompt = [context + continuation] * 2 if as_text else [before + scored] * 2
    answer = client.completions.create(model="random", temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True,
                                       prompt=prompt)  # type: ignore[arg-type]  # fmt: skip
    read = [2, *before] if as_text else before
    expected = llm.score(scored, read, top=1)
    next_id, next_logprob = llm.score([5], read + scored, top=1).tokens[0].top[0]
    for choice in answer.choices:
        assert choice.logprobs is not None
        logprobs = (choice.logprobs.token_logprobs or [])[len(before) : -1]
        tops = (choice.logprobs.top_logprobs or [])[len(before) : -1]
        assert sum(logprobs) == pytest.approx(expected.logprob, abs=1e-3)
        greedy = [token == max(top.values()) for token, top in zip(logprobs, tops, strict=True)]
        assert greedy == [token.token_id == token.top[0][0] for token in expected.tokens]
        assert (choice.logprobs.token_logprobs or [])[-1] == pytest.approx(next_logprob, abs=1e-4)
        assert (choice.logprobs.tokens or [])[-1] == spelled(llm, next_id)
        assert choice.text == llm.tokenizer.decode([*before, *scored, next_id])
        assert (choice.logprobs.text_offset or [])[-1] == len(llm.tokenizer.decode(before + scored))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_an_end_that_is_the_likeliest_next_token_is_no_text(
    folder: Path, llm: LLM, client: openai.OpenAI, tmp_path: Path
) -> None:
    """But a token of the lists, which hold one more than the prompt in any case."""
    prompt = [2, 40, 41]
    ((end, _),) = llm.score([5], prompt, top=1).tokens[0].top
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [1, {end}], "max_denoising_steps": 4}}')
    with server_process(tmp_path, "--name", "random") as server:
        body = {"model": "random", "prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 0}
        (choice,) = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (llm.tokenizer.decode(prompt), "stop")
    assert choice["logprobs"]["tokens"][-1] == spelled(llm, end)
    assert len(choice["logprobs"]["tokens"]) == len(prompt) + 1


def test_an_answer_comes_after_its_scored_prompt(client: openai.OpenAI, llm: LLM) -> None:
    """With the numbers that it has by itself; in a stream the prompt is the first chunk of each choice."""
    prompts = [llm.prompt_ids(PROMPT, raw=True), [2, 40, 41]]
    more: dict[str, Any] = {"model": "random", "n": 2, "seed": 3, "max_tokens": 20, "logprobs": 2}
    alone = client.completions.create(**more, prompt=PROMPT)
    asked = more | {"prompt": prompts}
    both = client.completions.create(**asked, echo=True)
    parts: list[list[Any]] = [[], [], [], []]
    for chunk in client.completions.create(**asked, echo=True, stream=True):
        parts[chunk.choices[0].index].append(chunk.choices[0])
    for index, (choice, chunks) in enumerate(zip(both.choices, parts, strict=True)):
        ids = prompts[index // 2]
        echo, told = llm.tokenizer.decode(ids), choice.logprobs
        assert told is not None
        check(llm, told, ids, 2)
        assert choice.text == "".join(one.text for one in chunks)
        assert chunks[0].text == echo
        assert chunks[0].logprobs.tokens == (told.tokens or [])[: len(ids)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            pieces = [getattr(one.logprobs, name) for one in chunks if one.logprobs is not None]
            assert [one for piece in pieces for one in piece] == getattr(told, name)
        if index < 2:
            own = alone.choices[index]
            assert own.logprobs is not None
            assert choice.text == echo + own.text
            assert (told.token_logprobs or [])[len(ids) :] == own.logprobs.token_logprobs
            assert (told.text_offset or [])[len(ids) :] == [len(echo) + at for at in own.logprobs.text_offset or []]


def test_answers_go_on_while_prompts_are_scored(client: openai.OpenAI) -> None:
    """The next request after a scored one is answered as ever."""
    asked: dict[str, Any] = {"model": "random", "prompt": "a", "seed": 1, "max_tokens": 16}
    before = client.completions.create(**asked).choices[0].text
    client.completions.create(model="random", prompt=[PROMPT] * 5, max_tokens=0, echo=True, logprobs=1)
    assert client.completions.create(**asked).choices[0].text == before


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"logprobs": None}, "max_tokens must be at least 1, unless echo and logprobs are given"),
        ({"echo": False}, "max_tokens must be at least 1"),
        ({"n": 2}, "n needs an answer; echo and logprobs with max_tokens 0 give none"),
        ({"max_tokens": 1, "stop": ["a"]}, "stop needs an answer"),
        ({"extra_body": {"regex": "a"}}, "regex needs an answer"),
        ({"extra_body": {"pins": {"0": "a"}}}, "pins needs an answer"),
        ({"extra_body": {"timeout": 3}}, "timeout needs an answer"),
        ({"extra_body": {"steps": 3}}, "steps needs an answer"),
        ({"suffix": "b"}, "suffix and logprobs cannot be combined"),
        ({"prompt": [5] * (CONTEXT + 1)}, f"it has {CONTEXT + 1} tokens; here it must have at most {CONTEXT}"),
        ({"prompt": [5] * CONTEXT, "max_tokens": 1}, f"here it must have at most {CONTEXT - 1}"),
        ({"prompt": [5, 99_999]}, "99999"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_cannot_be_honoured_is_refused(client: openai.OpenAI, more: dict[str, Any], sentence: str) -> None:
    asked: dict[str, Any] = {"model": "random", "prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1}
    with pytest.raises(openai.BadRequestError, match=sentence):
        client.completions.create(**asked | more)


def test_a_prompt_that_fills_the_context_is_scored(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="random", prompt=[5] * CONTEXT, max_tokens=0, echo=True, logprobs=0)
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.token_logprobs or []) == CONTEXT


class _Held(ScriptedEngine):
    """Its calls wait until they are let in."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm, lambda request: [])
        self.open = threading.Event()

    async def run(self, function: Callable[[], Any]) -> Any:
        await asyncio.to_thread(self.open.wait, 120)
        return await super().run(function)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_scored_takes_no_longer_than_the_request_may(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Its answer, for which there is time enough here, is soon there, but the prompt's numbers come before it."""
    engine, limit, asked = _Held(llm), ServeSettings.limit, itertools.count()
    enough = lambda settings, timeout: 60.0 if next(asked) == 0 else limit(settings, timeout)  # noqa: E731
    monkeypatch.setattr(ServeSettings, "limit", enough)
    body = {"model": "scripted", "prompt": "a", "max_tokens": 2, "echo": True, "logprobs": 1, "timeout": 0.25}
    with scripted_server(llm, engine) as url:
        answer = httpx.post(f"{url}/v1/completions", json=body | {"stream": stream})
        engine.open.set()
    assert answer.status_code == (200 if stream else 408)
    assert "The answer was not finished within 0.25 seconds." in answer.text


def test_a_stream_whose_prompt_is_not_scored_when_the_grace_ends_is_told_so(folder: Path) -> None:
    body = {"model": "random", "prompt": "a", "max_tokens": 2, "echo": True, "logprobs": 1, "stream": True}
    with server_process(folder, "--name", "random", "--grace", "0.5") as server, ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", f"{server.url}/v1/fill", json=SLOW | {"stream": True}, timeout=60) as filling:
            lines = filling.iter_lines()  # which would end with this if nobody held it
            next(lines)  # the filling has begun, and the prompt waits for its turn
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
                stopped = pool.submit(server.stop, seconds=120)
                told = answer.read().decode()
        assert stopped.result() == 0
    assert '"code":"shutting_down"' in told


def test_many_at_a_time_share_passes_and_get_what_each_gets_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: whole bodies are compared."""
    asked: dict[str, Any] = {"model": "scripted", "max_tokens": 1, "echo": True, "logprobs": 3}
    bodies = [asked | {"prompt": [[2, *range(3, 4 + i)], [7, 8, 9 + i]]} for i in range(12)]
    arrived, passes, engine = list[None](), list[int](), _Held(llm)
    score, encode = ScoringQueue.score, type(llm.model).encode

    async def noted(queue: ScoringQueue, prompts: Prompts) -> Scores:
        arrived.append(None)
        return await score(queue, prompts)

    def counted(model: Any, tokens: torch.Tensor, *given: Any) -> torch.Tensor:
        passes.append(len(tokens))
        return encode(model, tokens, *given)

    monkeypatch.setattr(ScoringQueue, "score", noted)
    monkeypatch.setattr(type(llm.model), "encode", counted)
    with scripted_server(llm, engine) as url, ThreadPoolExecutor(len(bodies)) as pool:

        def ask(body: dict[str, Any]) -> Any:
            return httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"]

        waiting = [pool.submit(ask, body) for body in bodies]
        until(lambda: len(arrived) == len(bodies))
        engine.open.set()
        together = [future.result() for future in waiting]
        # Of the first to come and of all others: the two tokens that prompts begin with, then the rest of each prompt.
        assert len(passes) <= 4
        assert set(passes[::2]) == {2}
        assert sum(passes[1::2]) == 2 * len(bodies)
        assert together == [ask(body) for body in bodies]
