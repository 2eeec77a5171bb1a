"""An engine on packed weights, whose next forwards are written while one runs: that changes no event."""

import random
from dataclasses import replace

import pytest
from running import SETTINGS, constraint, ids

from redraft.config import ModelConfig
from redraft.engine.build import new_runner
from redraft.engine.engine import Engine
from redraft.engine.request import Finished, Request
from redraft.engine.settings import EngineSettings
from redraft.model.packed.transformer import PackedTransformer
from redraft.model.presets import preset
from spelled import Spelled

VARIANTS = (
    {},
    {"stability_threshold": 0, "confidence_threshold": 100.0},  # every canvas is done after one step
    {"confidence_threshold": 1.0},
    {"steps": 3, "forbid_empty": True, "logprobs": 1},
    {"fit_canvas": True, "stop_at_eos": True, "logit_bias": {40: 3.0, 41: -100.0}},
)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    """A window that prompts leave behind, so that requests give pages back while they run."""
    shape = {"num_experts": 8, "top_k_experts": 3, "sliding_window": 100, "max_position_embeddings": 2048}
    return replace(preset("nano"), **shape)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    letters = constraint("[a-z]{3,40}")
    return [
        Request(
            request_id=number,
            prompt=ids(number % 4, (5, 300, 256, 40, 900)[number % 5]),  # some have prefixes in common
            settings=replace(SETTINGS, seed=number, max_tokens=(40, 16, 70)[number % 3], **VARIANTS[number % 5]),  # type: ignore[arg-type]
            constraint=letters if number % 4 == 3 else None,
            drafts=number % 2 == 0,
        )
        for number in range(20)
    ]


def new_engine(model: PackedTransformer, slots: int, gigabytes: float) -> Engine:
    settings = EngineSettings(slots=slots, memory_gb=gigabytes, prompt_tokens=256)
    runner = new_runner(model, settings)
    return Engine(runner, Spelled(), vocab_size=256, canvas_length=16, eos_ids=(1, 16), settings=settings)


def crowd(engine: Engine, requests: list[Request], seed: int) -> dict[int, list[object]]:
    """What is told to each of these requests, which come one by one, some of them beside one that is given up."""
    luck, left = random.Random(seed), set[int]()
    told: dict[int, list[object]] = {request.request_id: [] for request in requests}
    coming = luck.sample(requests, len(requests))
    while coming or engine.busy:
        if coming and luck.random() < 0.3:
            request = coming.pop()
            engine.add(request, told[request.request_id].append)
            if luck.random() < 0.5:
                left.add(1000 + request.request_id)
                engine.add(replace(request, request_id=1000 + request.request_id), lambda event: None)
        if left and luck.random() < 0.1:
            engine.cancel(left.pop())
        engine.step()
    stats = engine.stats()
    assert stats.full_pages_used == stats.sliding_pages_used == 0
    return told


@pytest.mark.parametrize("seed", range(3))
def test_what_is_prepared_ahead_changes_no_event(
    packed: PackedTransformer, requests: list[Request], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few pages, and prompts in common. On a CPU rounding follows the company, so the same crowd comes twice."""
    ahead = crowd(new_engine(packed, 5, 0.004), requests, seed)
    monkeypatch.setattr(Engine, "_look_ahead", lambda self, plan, work: self.scheduler.ran(plan))
    plainly = crowd(new_engine(packed, 5, 0.004), requests, seed)
    assert all(isinstance(told[-1], Finished) for told in ahead.values())
    assert ahead == plainly
