"""Answers of every kind at once, with few pages, beside callers who leave: each is the one that it gets alone."""

import asyncio
import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import redraft
from random_adapter import random_adapter
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Finished, Request
from redraft.llm import LLM
from redraft.model.adapters import save_adapter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string", "maxLength": 20}, "price": {"type": "integer"}},
    "required": ["item", "price"],
    "additionalProperties": False,
}
STORY = "It rained all day, and the river rose. " * 30
ASKED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("What is the capital of France?", {}),
    ("Tell me a story about rain.", {"max_tokens": 300, "preset": "fast"}),
    (STORY + "What rose?", {}),
    (STORY + "What fell?", {"logprobs": 2}),
    ("def fib(n):\n", {"raw": True, "max_tokens": 200}),
    ("Write down a date.", {"regex": r"\d{4}-\d\d-\d\d"}),
    ("The chair costs 49 euros. Extract item and price.", {"json_schema": SCHEMA, "logprobs": 1}),
    ("Is the sky blue?", {"choices": ["yes", "no", "perhaps"]}),
    ("My name is Ana. What is my name?", {"template": "Your name is {name:str<10}."}),
)
SEEDS = (1, 2)
ADAPTERS = (None, "other")


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_a_crowd_gets_what_each_gets_alone(quantization: str | None, tmp_path: Path) -> None:
    save_adapter(random_adapter(redraft.load_model("tiny", "cpu"), 1, size=0.1), tmp_path, base_model="tiny")
    llm = redraft.load(
        "tiny", device=DEVICE, quantization=quantization, adapter={"other": tmp_path}, slots=6, memory_gb=0.03
    )
    alone = {request.request_id: _alone(llm, request) for request in _requests(llm)}
    calls = _calls(llm)
    called = [call() for call in calls]
    for seed in range(3):
        crowd, together = asyncio.run(_crowd(llm, calls, seed))
        assert crowd == alone
        assert together == called


def _requests(llm: LLM) -> list[Request]:
    views = [llm.with_adapter(name) for name in ADAPTERS]
    asked = [(view, *what, seed) for view in views for what in ASKED for seed in SEEDS]
    return [
        view.request(prompt, request_id=number, **({"steps": 8, "max_tokens": 96, "seed": seed} | given))
        for number, (view, prompt, given, seed) in enumerate(asked, 1)
    ]


def _alone(llm: LLM, request: Request) -> tuple[Any, ...]:
    """What an engine of its own answers."""
    engine = llm.new_engine()
    *_, end = engine.answer([request])
    assert isinstance(end, Finished)
    return _content(end)


def _content(event: Finished) -> tuple[Any, ...]:
    return event.text, event.token_ids, event.tokens, event.finish_reason


def _calls(llm: LLM) -> list[Callable[[], str]]:
    code = "def area(width, height):\n    "
    return [
        lambda: llm.fill(code, "\n\n\nprint(area(2, 3))\n", seed=1, steps=6).text,
        lambda: llm.fill(code, "\n", length=9, seed=2, steps=6).text,
        lambda: str(llm.decide("Is this spam? Win a prize now", ["yes", "no"]).to_dict()),
        lambda: llm.edit("total = 1\nprint(total)\n", (0, 9), "rename total to result", seed=3, steps=6).text,
    ]  # fmt: skip


async def _crowd(llm: LLM, calls: list[Callable[[], str]], seed: int) -> tuple[dict[int, tuple[Any, ...]], list[str]]:
    """Everything in random order, and as many requests that are given up after a few events."""
    engine, luck = AsyncEngine(llm.new_engine()), random.Random(seed)

    async def answer(request: Request) -> tuple[int, tuple[Any, ...]]:
        await asyncio.sleep(luck.random())
        async for event in engine.stream(request):
            last = event
        assert isinstance(last, Finished)
        return request.request_id, _content(last)

    async def leave(request: Request) -> None:
        await asyncio.sleep(luck.random())
        events = engine.stream(dataclasses.replace(request, request_id=request.request_id + 1000))
        for _ in range(luck.randrange(4)):
            await anext(events, None)
        await events.aclose()

    async def run(call: Callable[[], str]) -> str:
        await asyncio.sleep(luck.random())
        return await engine.run(call)

    requests = _requests(llm)
    luck.shuffle(requests)
    try:
        answers, together, _ = await asyncio.gather(
            asyncio.gather(*map(answer, requests)), asyncio.gather(*map(run, calls)),
            asyncio.gather(*map(leave, requests)),
        )  # fmt: skip
    finally:
        await engine.close(drain=False)
    stats = engine.stats()
    assert stats.running == stats.waiting == stats.full_pages_used == stats.sliding_pages_used == 0
    return dict(answers), together
