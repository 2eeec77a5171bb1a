"""Requests for a small random model, and what comes back, for the engine's tests."""

import dataclasses
from collections.abc import Callable, Sequence

import torch

from redraft.engine.engine import Engine
from redraft.engine.request import Event, Failed, Finished, Request
from redraft.settings import GenerationSettings

CANVAS = 16
SETTINGS = GenerationSettings(max_tokens=40, steps=5, entropy_bound=3.0, confidence_threshold=1e-9)

Make = Callable[..., Engine]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(torch.randint(2, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def ask(request_id: int, length: int = 20, *, settings: GenerationSettings = SETTINGS, **given: object) -> Request:
    """A request whose prompt and seed follow from its id."""
    settings = dataclasses.replace(settings, seed=request_id)
    return Request(request_id=request_id, prompt=prompt(length, request_id), settings=settings, **given)  # type: ignore[arg-type]


def add(engine: Engine, *requests: Request) -> list[Event | Failed]:
    """Queue requests; the list gets what happens to them while somebody steps the engine."""
    told = list[Event | Failed]()
    for request in requests:
        engine.add(request, told.append)
    return told


def run(engine: Engine, requests: Sequence[Request]) -> dict[int, list[Event]]:
    """Everything that happened to each request."""
    told: dict[int, list[Event]] = {request.request_id: [] for request in requests}
    for event in engine.answer(requests):
        told[event.request_id].append(event)
    return told


def untimed(events: Sequence[Event | Failed]) -> list[object]:
    """Events without what depends on the clock."""
    return [(e.token_ids, e.text, e.tokens, e.stats.steps) if isinstance(e, Finished) else e for e in events]


def end_of(events: Sequence[Event | Failed]) -> Finished:
    end = events[-1]
    assert isinstance(end, Finished)
    return end
