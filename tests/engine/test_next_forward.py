"""The next forward is prepared while one runs, and given up if something happens that changes it."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from asking import SETTINGS, Make, add, ask, end_of, run, untimed

from redraft.engine.engine import Engine
from redraft.engine.request import Failed, Finished
from redraft.engine.scheduler import Scheduler
from redraft.engine.work import Denoise, DenoiseResult, Limits, Runner, Segment


class Watched:
    """A runner that notes what is prepared, what runs, and whether that was prepared."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.prepared = runner, list[Sequence[Segment]]()
        self.ran, self.ahead = list[Sequence[Segment]](), list[bool]()

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def prepare(self, work: Sequence[Segment]) -> None:
        self.prepared.append(work)

    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        self.ahead.append(bool(self.prepared) and self.prepared[-1] is work)
        self.ran.append(work)
        return self.runner.run(work, meanwhile)


class TestLookAhead:
    def watched(self, make: Make, **given: object) -> tuple[Engine, Watched]:
        engine = make(**given)
        engine.runner = watched = Watched(engine.runner)  # type: ignore[assignment]
        return engine, watched

    def test_every_forward_but_those_after_a_canvas_is_prepared_while_another_runs(self, make: Make) -> None:
        engine, watched = self.watched(make)
        run(engine, [ask(1, 300, settings=dataclasses.replace(SETTINGS, max_tokens=40, steps=4))])
        first, *rest = [isinstance(work[-1], Denoise) and work[-1].step == 0 for work in watched.ran]
        assert not first  # the prompt's first page
        assert [not prepared for prepared in watched.ahead[2:]] == rest[1:]
        assert watched.ahead[:2] == [False, False]  # prompts alone may borrow pages
        assert rest.count(True) == 3
        assert len(watched.prepared) == sum(watched.ahead)  # nothing is prepared behind a canvas' last step
        assert () not in watched.prepared

    def test_who_comes_or_goes_meanwhile_is_noticed(self, make: Make) -> None:
        engine, watched = self.watched(make)
        add(engine, ask(1), ask(2))
        engine.step()
        engine.step()
        engine.cancel(1)
        engine.step()
        assert [segment.slot for segment in watched.ran[-1]] == [engine.scheduler.running[2].slot]
        add(engine, ask(3))
        engine.step()
        assert len(watched.ran[-1]) == 3  # a step, and a prompt with its first step
        assert watched.ahead == [False, True, False, False]

    def test_nothing_prepared_outlives_its_answer(self, make: Make) -> None:
        """A runner may keep a constraint's tables on a device with it."""
        engine, watched = self.watched(make)
        add(engine, ask(1))
        engine.step()
        engine.cancel(1)
        assert engine._ahead is None
        assert watched.prepared[-1] == ()

    def test_who_only_waits_in_the_queue_changes_nothing(self, make: Make) -> None:
        engine, watched = self.watched(make, slots=1)
        add(engine, ask(1), ask(2))
        engine.step()
        add(engine, ask(3))
        engine.step()
        assert watched.ahead == [False, True]

    def test_time_is_shared_out_when_a_forward_begins(self, make: Make) -> None:
        """A canvas with a latency budget gets its step cap from what is left by then, not one forward earlier."""
        engine, watched = self.watched(make)
        settings = dataclasses.replace(SETTINGS, latency_budget_ms=60_000)
        run(engine, [ask(1, settings=settings)])
        assert watched.prepared == []

    def test_canvases_that_converge_are_what_they_are_without_it(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at_once = dataclasses.replace(SETTINGS, stability_threshold=0, confidence_threshold=100.0)
        requests = [ask(number, 20 + 90 * number, settings=(SETTINGS, at_once)[number % 2]) for number in range(6)]
        engine, watched = self.watched(make, slots=3)
        ahead = run(engine, requests)
        assert any(watched.ahead)
        assert len([work for work in watched.prepared if work]) > sum(
            watched.ahead
        )  # some canvases were done sooner than expected
        monkeypatch.setattr(Engine, "_look_ahead", lambda self, plan, work: self.scheduler.ran(plan))
        plainly = run(make(slots=3), requests)
        assert {number: untimed(told) for number, told in ahead.items()} == {
            number: untimed(told) for number, told in plainly.items()
        }

    def test_what_a_failed_forward_was_to_write_is_no_prefix(self, make: Make) -> None:
        """Its pages were known by their keys from the moment it began."""
        engine = make()

        class Broken(Watched):
            def run(self, work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
                self.runner.run(work, meanwhile)
                raise ValueError("broken")

        whole = engine.runner
        engine.runner = Broken(whole)  # type: ignore[assignment]
        told = add(engine, ask(1, 600))
        with pytest.raises(ValueError, match="broken") as broken:
            engine.step()
        engine.fail_running(broken.value)
        assert isinstance(told[-1], Failed)
        engine.runner = whole
        assert end_of(run(engine, [ask(1, 600)])[1]).stats.cached_tokens == 0
        assert end_of(run(engine, [ask(1, 600)])[1]).stats.cached_tokens == 512


def test_pages_that_a_prompt_may_borrow_are_left_to_whoever_is_admitted_next(make: Make) -> None:
    """A prompt alone gets forwards of 4,096 tokens, as on a GPU, for whose pages there is no promise."""
    engine = make(slots=2, prompt_tokens=1024)
    limits = dataclasses.replace(
        engine.runner.limits, full_pages=60, sliding_pages=20, window=1024, context=8192, forward=8192, prompt=4096
    )
    engine.scheduler = Scheduler(limits, engine.settings)
    engine.runner = Idle(limits)  # type: ignore[assignment]
    first = add(engine, ask(1, 6000))
    engine.step()
    assert engine.scheduler.pages.sliding.held <= engine.scheduler.running[1].table.sliding_most
    second = add(engine, ask(2, 6000))
    while engine.busy:
        engine.step()
    assert isinstance(first[-1], Finished)
    assert isinstance(second[-1], Finished)
    assert engine.stats().full_pages_used == engine.stats().sliding_pages_used == 0


class Idle:
    """A runner of these limits whose canvases are done at once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None: ...
    def release(self, slot: int) -> bool:
        return True

    def capture(self, work: Sequence[Segment]) -> None: ...
    def prepare(self, work: Sequence[Segment]) -> None: ...
    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
        meanwhile()
        return [
            DenoiseResult(
                slot=step.slot, canvas=np.full(step.length, 2), argmax_canvas=np.full(step.length, 2),
                accepted=np.ones(step.length, bool), entropy=np.zeros(step.length, np.float32), converged=True,
            )
            for step in work
            if isinstance(step, Denoise)
        ]  # fmt: skip
