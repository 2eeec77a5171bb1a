"""Images over HTTP: OpenAI's and Anthropic's unmodified clients give the answers that the model gives in Python."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from serving import ScriptedEngine, ServerProcess, scripted_server, server_process

import redraft
from drawn import asked_about, base64_of, data_url, drawn
from random_model import write_random_model
from redraft.llm import LLM
from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.common import hold_images
from redraft.serve.shapes.messages import CountRequest
from redraft.serve.shapes.own import TokenizeRequest
from redraft.serve.shapes.two_sided import DecisionRequest
from redraft.text import images

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


def shown(*seeds: int, detail: str | int | None = None) -> list[dict[str, Any]]:
    more = {} if detail is None else {"detail": detail}
    parts = [{"type": "image_url", "image_url": {"url": data_url(drawn(seed)), **more}} for seed in seeds]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}]


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(("seeds", "detail"), [((0,), None), ((1,), None), ((0, 1), None), ((0,), "low"), ((0,), 140)])
def test_openais_client(client: openai.OpenAI, seeing: LLM, seeds: tuple[int, ...], detail: str | int | None) -> None:
    asked = shown(*seeds, detail=detail)
    answer = client.chat.completions.create(model="sees", messages=asked, **SETTINGS)  # type: ignore[call-overload]
    alone = seeing.chat(asked_about(*map(drawn, seeds), detail=detail), **SETTINGS)
    assert answer.choices[0].message.content == alone.content
    assert answer.usage.prompt_tokens == alone.result.stats.prompt_tokens
    assert alone.result.stats.prompt_tokens > (70 if detail else 250 * len(seeds)) * 0.8


def test_openais_client_of_responses(client: openai.OpenAI, seeing: LLM) -> None:
    parts: Any = [
        {"type": "input_image", "image_url": data_url(drawn(0))},
        {"type": "input_text", "text": "What is this?"},
    ]
    asked: Any = [{"role": "user", "content": parts}]
    answer = client.responses.create(model="sees", input=asked, max_output_tokens=16, extra_body={"seed": 3})
    assert answer.output_text == seeing.chat(asked_about(drawn(0)), **SETTINGS).content


def test_images_that_are_too_long_have_the_code_that_clients_know(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the context holds only 2,048") as caught:
        client.chat.completions.create(model="sees", messages=shown(*range(9)))  # type: ignore[arg-type]
    assert caught.value.code == "context_length_exceeded"


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
        ("data:image/png;base64,%%%", "base64 cannot be read"),
        ("data:image/png;base64,AAAA", "An image cannot be read; only PNG, JPEG, WEBP, GIF, BMP files can"),
    ],
)
def test_what_is_no_image_is_a_400_that_says_so(server: ServerProcess, url: str, said: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "sees", "messages": [{"role": "user", "content": [part]}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_an_error_of_a_tool_shows_nothing(server: ServerProcess) -> None:
    """An image there would be lost."""
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(drawn())}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result | {"is_error": True}]},
    ]
    answer = httpx.post(f"{server.url}/v1/messages", json={"model": "sees", "max_tokens": 8, "messages": turns})
    assert answer.status_code == 400
    assert "holds an image; an error can hold only text" in answer.json()["error"]["message"]


def test_a_decision_decodes_an_image_once(seeing: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts, cut = list[Any](), images._cut
    monkeypatch.setattr(images, "_cut", lambda *given: cuts.append(given) or cut(*given))
    with scripted_server(seeing, ScriptedEngine(seeing, lambda request: [])) as url:
        body = {"model": "scripted", "messages": shown(0, 1), "choices": ["yes", "no"], "calibrate": True}
        assert httpx.post(f"{url}/v1/decisions", json=body, timeout=60).status_code == 200
    assert len(cuts) == 2


@pytest.mark.parametrize("shape", [ChatRequest, DecisionRequest, TokenizeRequest])
def test_a_request_with_images_is_a_large_one(shape: type[Any]) -> None:
    """It waits for room among these, for a small file may hold millions of pixels."""
    more = {"choices": ["a"]} if shape is DecisionRequest else {}
    for messages, holds in ((shown(0), True), ([{"role": "user", "content": "Hi"}], False)):
        assert hold_images(shape(model="m", messages=messages, **more).messages) is holds


def test_images_of_tools_count_as_well() -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    turns = [{"role": "user", "content": [result]}]
    assert hold_images(CountRequest(model="m", messages=turns).messages)  # type: ignore[arg-type]
