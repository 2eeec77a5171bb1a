"""Bodies of megabytes hold up nobody else: where their text is read, and how many of their mistakes are told."""

import asyncio
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from serving import CHAT, ScriptedEngine, scripted_server

from redraft.llm import LLM
from redraft.serve.shapes.chat import ChatRequest
from redraft.serve.shapes.common import MOST_FIELDS, Shape
from redraft.serve.shapes.completions import CompletionRequest
from redraft.serve.shapes.messages import MessagesRequest
from redraft.serve.shapes.two_sided import DecisionRequest
from redraft.text.tokenizer import Tokenizer


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
