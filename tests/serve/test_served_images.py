"""Images over HTTP: OpenAI's and Anthropic's unmodified clients give the answers that the model gives in Python."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from serving import ServerProcess, server_process

import redraft
from drawn import asked_about, base64_of, data_url, drawn
from random_model import write_random_model
from redraft.llm import LLM

SETTINGS: dict[str, Any] = {"seed": 3, "max_tokens": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("sees"), canvas=16, context=2048, sees=True)


@pytest.fixture(scope="module")
def seeing(folder: Path) -> LLM:
    return redraft.load(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with server_process(folder, "--name", "sees") as running:
        yield running


def shown(*seeds: int, detail: str | None = None) -> list[dict[str, Any]]:
    more = {} if detail is None else {"detail": detail}
    parts = [{"type": "image_url", "image_url": {"url": data_url(drawn(seed)), **more}} for seed in seeds]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}]


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(("seeds", "detail"), [((0,), None), ((1,), None), ((0, 1), None), ((0,), "low")])
def test_openais_client(client: openai.OpenAI, seeing: LLM, seeds: tuple[int, ...], detail: str | None) -> None:
    asked = shown(*seeds, detail=detail)
    answer = client.chat.completions.create(model="sees", messages=asked, **SETTINGS)  # type: ignore[call-overload]
    alone = seeing.chat(asked_about(*map(drawn, seeds), detail=detail), **SETTINGS)
    assert answer.choices[0].message.content == alone.content
    assert answer.usage.prompt_tokens == alone.result.stats.prompt_tokens
    assert alone.result.stats.prompt_tokens > (70 if detail else 250 * len(seeds)) * 0.8


def test_anthropics_client(server: ServerProcess, seeing: LLM) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(drawn(1))}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    messages: Any = [{"role": "user", "content": content}]
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        answer = client.messages.create(model="sees", max_tokens=16, messages=messages, extra_body={"seed": 3})
        count = client.messages.count_tokens(model="sees", messages=messages).input_tokens
    alone = seeing.chat(asked_about(drawn(1)), **SETTINGS)
    assert [block.text for block in answer.content if block.type == "text"] == [alone.content]
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == count
    assert count == alone.result.stats.prompt_tokens


def test_another_image_has_another_answer(seeing: LLM) -> None:
    answers = {seeing.chat(asked_about(drawn(seed)), **SETTINGS).result.token_ids for seed in range(4)}
    assert len(answers) > 1


def test_what_else_knows_of_images(server: ServerProcess) -> None:
    model = httpx.get(f"{server.url}/v1/models").json()["data"][0]
    assert model["images"] is True
    count = httpx.post(f"{server.url}/tokenize", json={"messages": shown(0)}).json()["count"]
    decided = httpx.post(
        f"{server.url}/v1/decisions", json={"model": "sees", "messages": shown(0), "choices": ["yes", "no"]}, timeout=60
    )
    assert decided.status_code == 200
    assert sum(decided.json()["readings"][0]["probabilities"].values()) == pytest.approx(1)
    assert count > 250


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://example.com/cat.png", "must be a data URL (data:image/png;base64,...); nothing is fetched"),
        ("file:///etc/passwd", "must be a data URL"),
        ("/etc/passwd", "must be a data URL"),
        ("data:image/png,abc", "must hold base64"),
        ("data:image/png;base64,%%%", "holds no base64"),
        ("data:image/png;base64,AAAA", "An image cannot be read; PNG, JPEG, WEBP, GIF, BMP files can"),
    ],
)
def test_what_is_no_image_is_a_400_that_says_so(server: ServerProcess, url: str, said: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "sees", "messages": [{"role": "user", "content": [part]}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
