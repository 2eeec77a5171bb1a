"""Requests that come, leave, time out and fail in any order: each is told one end, and nothing is left behind."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from asking import SETTINGS, Make, add, ask, run, untimed

from redraft.diffusion.records import Commit
from redraft.engine.engine import Engine
from redraft.engine.request import Event, Failed, Finished, Request
from redraft.engine.work import DenoiseResult, Runner, Segment
from redraft.errors import EngineError, QueueFullError

SHORT = dataclasses.replace(SETTINGS, steps=2, max_tokens=24)


class Fault(RuntimeError):
    """What a runner raises here now and then."""


class Faulty:
    """A runner that fails in a forward, or after it has released a slot, with a probability of `rate`."""

    def __init__(self, runner: Runner, luck: random.Random) -> None:
        self.runner, self.luck, self.rate = runner, luck, 0.04

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        self._fail()
        results = self.runner.run(work, meanwhile)
        self._fail()
        return results

    def release(self, slot: int) -> bool:
        clean = self.runner.release(slot)
        self._fail()
        return clean

    def _fail(self) -> None:
        if self.luck.random() < self.rate:
            raise Fault


class Crowd:
    """Requests of one engine: those added by hand, with what they were told, and open iterators."""

    def __init__(self, engine: Engine, luck: random.Random) -> None:
        self.engine, self.luck = engine, luck
        self.requests: list[Request] = []
        self.told: dict[int, list[Event | Failed]] = {}
        self.iterators: list[Iterator[Event]] = []

    def act(self) -> None:
        """One of all the things that can happen to an engine."""
        match self.luck.choices(("add", "answer", "cancel", "leave", "read", "step"), (15, 10, 7, 6, 32, 30))[0]:
            case "add":
                with suppress(QueueFullError):
                    request = self._request()
                    self.told[request.request_id] = add(self.engine, request)
            case "answer":
                requests = [self._request() for _ in range(self.luck.randrange(1, 5))]
                self.iterators.append(self.engine.answer(requests))
            case "cancel":
                self.engine.cancel(self.luck.randrange(len(self.requests) + 1))
            case "leave" if self.iterators:
                self.iterators.pop(self.luck.randrange(len(self.iterators))).close()  # type: ignore[attr-defined]
            case "read" if self.iterators:
                next(self.luck.choice(self.iterators), None)
            case _:
                try:
                    self.engine.step()
                except Fault as error:
                    self.engine.fail_running(error)

    def _request(self) -> Request:
        length, timeout = self.luck.choice((5, 300, 600)), self.luck.choice((None, None, 3.0, 20.0))
        self.requests.append(ask(len(self.requests), length, settings=SHORT, timeout=timeout))
        return self.requests[-1]


@pytest.mark.parametrize("seed", range(5))
def test_each_request_is_told_one_end_and_nothing_is_left(make: Make, seed: int) -> None:
    luck, now = random.Random(seed), 0.0
    engine = make(slots=luck.choice((2, 5)), max_waiting=luck.choice((1, 3, 50)), memory_gb=0.003, clock=lambda: now)
    engine.runner = faulty = Faulty(engine.runner, luck)  # type: ignore[assignment]
    crowd = Crowd(engine, luck)
    for _ in range(100):
        now += luck.random()
        with suppress(Fault, EngineError):
            crowd.act()
    faulty.rate = 0.0
    for events in crowd.iterators:
        with suppress(EngineError):
            list(events)
    while engine.busy:
        engine.step()
    for told in crowd.told.values():
        *before, end = told
        assert not any(isinstance(event, Finished | Failed) for event in before)
        commits = [event for event in before if isinstance(event, Commit)]
        if isinstance(end, Finished):
            assert "".join(commit.text for commit in commits) == end.text
        if isinstance(end, Finished) and end.finish_reason == "length":
            request = dataclasses.replace(crowd.requests[end.request_id], timeout=None)
            assert untimed(told) == untimed(run(make(), [request])[end.request_id])
    stats = engine.stats()
    assert stats.running == stats.waiting == stats.full_pages_used == stats.sliding_pages_used == 0
    assert crowd.told
