"""Bodies of megabytes hold up nobody else: where their text is read, and how many of their mistakes are told."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from serving import CHAT, ScriptedEngine, scripted_server, until

from redraft.engine.settings import EngineSettings
from redraft.llm import LLM
from redraft.serve import json_route, service
from redraft.serve.app import create_app
from redraft.serve.planning import MOST_CALLS, Planner
from redraft.serve.service import Service
from redraft.serve.settings import ServeSettings
from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.common import MOST_FIELDS, Shape
from redraft.serve.shapes.completions import CompletionRequest
from redraft.serve.shapes.messages import MessagesRequest
from redraft.serve.shapes.two_sided import DecisionRequest
from redraft.serve.threads import LARGE, MOST_LARGE
from redraft.text.placing import EncodedPrompt
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer


def _padded(content: bytes) -> bytes:
    """The same JSON, large."""
    return content + b" " * LARGE


def test_large_bodies_are_not_parsed_on_the_event_loop(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[bool] = []
    parse = json_route.loads

    def parse_somewhere(body: bytes) -> Any:
        places.append(asyncio._get_running_loop() is not None)
        return parse(body)

    def look_for_images(messages: Any) -> bool:
        raise AssertionError("a large request is large without images")

    monkeypatch.setattr(json_route, "loads", parse_somewhere)
    monkeypatch.setattr(service, "hold_images", look_for_images)
    headers = {"Content-Type": "application/json"}
    content = _padded(json.dumps(CHAT | {"model": "other"}).encode())
    with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"])) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", content=content, headers=headers, timeout=60)
    assert (answer.status_code, places) == (200, [False])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"model": NaN}',
        b'{"model": 1e999}',
        b'{"model": "other", "messages": []}',
        b'{"model": "other", "messages": [{"role": "user", "content": 1}]}',
        b'{"model": "other", "messages": [{"role": "user", "content": ""}], "body": 1}',
        b'{"model": "nothing", "messages": [{"role": "user", "content": ""}]}',
        b'{"model": "other", "messages": [{"role": "user", "content": ""}], "n": 2, "max_tokens": 1}',
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_mistakes_in_large_bodies_are_told_like_those_in_small_ones(llm: LLM, content: bytes, kind: str) -> None:
    headers = {"Content-Type": kind}
    with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"])) as url:
        small, large = (
            httpx.post(f"{url}/v1/drafts", content=body, headers=headers, timeout=60)
            for body in (content, _padded(content))
        )
    assert small.status_code in (400, 404)
    assert large.status_code == small.status_code
    told, expected = (re.sub(r" at column \d+", "", answer.text) for answer in (large, small))  # where, spaces change
    assert told == expected or not content, "spaces alone are not JSON"


def test_parsing_ends_when_the_server_does(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, held = threading.Event(), threading.Event()
    parse = json_route.loads

    def parse_slowly(body: bytes) -> Any:
        parsing.set()
        held.wait(120)
        return parse(body)

    monkeypatch.setattr(json_route, "loads", parse_slowly)
    chosen = Service(ServeSettings(names=("other",), engine=EngineSettings()))
    chosen.start(llm, ScriptedEngine(llm, lambda request: ["x"]))  # type: ignore[arg-type]

    async def life() -> httpx.Response:
        content = _padded(json.dumps(CHAT | {"model": "other"}).encode())
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(chosen)), base_url="http://localhost"
        ) as web:
            asking = asyncio.create_task(
                web.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
            )
            await asyncio.to_thread(parsing.wait, 120)
            await chosen.stop(0)
            return await asking

    try:
        assert asyncio.run(life()).json()["error"]["code"] == "shutting_down"
    finally:
        held.set()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": CHAT["messages"]}),
        ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 16}),
        ("/v1/messages/count_tokens", {"messages": CHAT["messages"]}),
        ("/v1/completions", {"prompt": "Hello!"}),
        ("/v1/completions", {"prompt": "Hello", "suffix": "!", "max_tokens": 4}),
        ("/v1/fill", {"prefix": "Hello", "suffix": "!", "max_tokens": 4}),
        ("/v1/edits", {"text": "Hello!", "span": [0, 5], "max_tokens": 4}),
        ("/v1/decisions", {"question": "Is it?", "choices": ["yes", "no"]}),
        ("/tokenize", {"text": "Hello!"}),
    ],
)
def test_no_text_is_read_on_the_event_loop(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    places: list[bool] = []
    encode = Tokenizer.encode

    def encode_somewhere(self: Tokenizer, text: str, **options: Any) -> list[int]:
        places.append(asyncio._get_running_loop() is not None)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", encode_somewhere)
    with scripted_server(llm, ScriptedEngine(llm, lambda request: [])) as url:
        body = asked if path == "/tokenize" else asked | {"model": "other"}
        assert httpx.post(f"{url}{path}", json=body, timeout=60).status_code == 200
    assert places
    assert not any(places)


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/responses", {}, "input"),
        ("/v1/messages", {"max_tokens": 16}, None),
        ("/v1/decisions", {"choices": ["a", "b"]}, "messages"),
        ("/v1/messages/count_tokens", {}, None),
        ("/tokenize", {}, "messages"),
    ],
)
@pytest.mark.parametrize(("count", "rendered"), [(21, False), (20, True)])
def test_more_messages_than_a_prompt_can_hold_are_not_rendered(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any], field: str | None,
    count: int, rendered: bool,
) -> None:  # fmt: skip
    renderings: list[int] = []
    render = ChatTemplate.render

    def count_renderings(self: ChatTemplate, messages: Any, **options: Any) -> str:
        renderings.append(len(messages))
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", count_renderings)
    said = [{"role": "user", "content": ""}] * count
    body = asked | {"model": "other", "input" if path == "/v1/responses" else "messages": said}
    with scripted_server(llm, ScriptedEngine(llm, lambda request: []), max_prompt=40) as url:
        answer = httpx.post(f"{url}{path}", json=body, timeout=60)
    assert bool(renderings) is rendered
    if rendered and path in ("/tokenize", "/v1/messages/count_tokens"):  # these take prompts that are too long
        assert answer.status_code == 200
        return
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert rendered or error.get("param") == field
    assert "The prompt is too long" in error["message"]
    assert "this server takes at most 40." in error["message"]
    assert "context_length_exceeded" in answer.text


@pytest.mark.parametrize("count", [MOST_CALLS, MOST_CALLS + 1])
def test_a_message_has_at_most_as_many_calls_as_openai_allows(llm: LLM, count: int) -> None:
    """Chat templates look for the call of each result among all of them."""
    ids = [f"x{i}" for i in range(count)]
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "content": ""} for id in ids]
    said = [*CHAT["messages"], {"role": "assistant", "tool_calls": calls}, *results]
    uses = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]
    ends = [{"type": "tool_result", "tool_use_id": id} for id in ids]
    turns = [*CHAT["messages"], {"role": "assistant", "content": uses}, {"role": "user", "content": ends}]
    with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"])) as url:
        chat = httpx.post(f"{url}/tokenize", json={"messages": said}, timeout=60)
        messages = httpx.post(f"{url}/v1/messages/count_tokens", json={"model": "other", "messages": turns}, timeout=60)
    if count == MOST_CALLS:
        assert (chat.status_code, messages.status_code) == (200, 200)
    else:
        assert (chat.status_code, messages.status_code) == (400, 400)
        sentence = "has 129 calls; a message may have at most 128."
        assert chat.json()["error"]["message"] == f"messages[1] {sentence}"
        assert messages.json()["error"]["message"] == f"messages[1] {sentence}"


def test_messages_that_become_one_turn_are_not_too_many(llm: LLM) -> None:
    said = [*CHAT["messages"], *[{"role": "assistant", "content": ""}] * 2000, *CHAT["messages"]]
    with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"])) as url:
        asked = {"model": "other", "messages": said}
        assert httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60).status_code == 200


LONG = CHAT | {"model": "other", "messages": [{"role": "user", "content": "a" * LARGE}]}
SHORT = CHAT | {"model": "other"}


@contextlib.contextmanager
def _server_that_reads_long(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ScriptedEngine]]:
    """A server that reads no long message before this ends, with as many as it reads at a time; and its engine."""
    held, read, reading = threading.Event(), Planner.read_chat, list[None]()

    def read_long(self: Planner, messages: Any, **how: Any) -> EncodedPrompt:
        if len(messages[0]["content"]) >= LARGE:
            reading.append(None)
            held.wait(120)
            return EncodedPrompt((2, 50))
        return read(self, messages, **how)

    monkeypatch.setattr(Planner, "read_chat", read_long)
    engine = ScriptedEngine(llm, lambda request: ["x"])
    with scripted_server(llm, engine) as url, ThreadPoolExecutor(12) as pool:
        try:
            for _ in range(12):
                pool.submit(httpx.post, f"{url}/v1/chat/completions", json=LONG)
            until(lambda: len(reading) == MOST_LARGE)
            yield url, engine
        finally:
            held.set()


def test_a_short_request_waits_for_no_long_ones(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with _server_that_reads_long(llm, monkeypatch) as (url, engine):
        assert httpx.post(f"{url}/v1/chat/completions", json=SHORT).status_code == 200
        assert httpx.post(f"{url}/tokenize", json={"text": "Hello!"}).status_code == 200
        assert len(engine.requests) == 1
    assert len(engine.requests) == 13


def test_the_time_of_a_request_runs_while_it_is_read(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with _server_that_reads_long(llm, monkeypatch) as (url, engine):
        late = httpx.post(f"{url}/v1/chat/completions", json=LONG | {"timeout": 0.25})
        assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
        assert httpx.post(f"{url}/v1/chat/completions", json=SHORT | {"timeout": 60}).status_code == 200
        assert 0 < (engine.requests[0].timeout or 0) < 60
    assert len(engine.requests) == 13, "one whose time was over went on to the engine"
    assert sum((request.timeout or 0) < 600 - 0.25 for request in engine.requests[1:]) >= MOST_LARGE


def test_a_client_that_leaves_while_its_request_is_read_leaves_its_place(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _server_that_reads_long(llm, monkeypatch) as (url, engine):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json=LONG, timeout=0.5)
        left = 'redraft_requests_total{endpoint="/v1/chat/completions",status="499"} 1.0'
        until(lambda: left in httpx.get(f"{url}/metrics").text)
    assert len(engine.requests) == 12


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (ChatRequest, {"messages": [1] * 20_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}] * 20_000}]}),
        (ChatRequest, {"messages": CHAT["messages"]} | {f"field{i}": 1 for i in range(20_000)}),
        (ChatRequest, {"messages": [CHAT["messages"][0] | {f"field{i}": 1 for i in range(20_000)}]}),
        (ChatRequest, {"messages": CHAT["messages"], "pins": {f"{i}x": 1 for i in range(20_000)}}),
        (ChatRequest, {"messages": CHAT["messages"], "logit_bias": {f"{i}": "x" for i in range(20_000)}}),
        (CompletionRequest, {"prompt": ["a", 1] * 10_000}),
        (MessagesRequest, {"max_tokens": 1, "messages": [1] * 20_000}),
        (DecisionRequest, {"question": "?", "choices": {f"{i}": 1 for i in range(20_000)}}),
    ],
)
def test_thousands_of_mistakes_in_a_body_are_not_all_told(shape: type[Shape], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        shape.model_validate(body | {"model": "other"})
    assert refused.value.error_count() <= MOST_FIELDS


def test_no_shape_has_as_many_fields_as_are_looked_at() -> None:
    shapes = [Shape]
    for shape in shapes:
        shapes += shape.__subclasses__()
    assert max(len(shape.model_fields) for shape in shapes) < MOST_FIELDS
