"""Canvases as long as what is left, steps as many as there is time, and settings that only the engine reads."""

import dataclasses
from collections.abc import Callable

import pytest
from asking import SETTINGS, Make, ask, end_of, run

from redraft.diffusion.records import DenoiseStep
from redraft.engine.latency import StepClock
from redraft.engine.request import Finished
from redraft.errors import SettingError
from redraft.settings import GenerationSettings


class TestShortAnswers:
    @pytest.mark.parametrize(("max_tokens", "lengths"), [(16, [16]), (33, [32, 16]), (40, [32, 16]), (50, [32, 32])])
    def test_a_fitted_canvas_is_as_short_as_what_is_left(self, make: Make, max_tokens: int, lengths: list[int]) -> None:
        fitted = dataclasses.replace(SETTINGS, max_tokens=max_tokens, canvas_length=32, fit_canvas=True, steps=1)
        events = run(make(), [ask(1, settings=fitted)])[1]
        assert [len(event.canvas) for event in events if isinstance(event, DenoiseStep)] == lengths
        assert len(end_of(events).token_ids) == max_tokens
        whole = run(make(), [ask(1, settings=dataclasses.replace(fitted, fit_canvas=False))])[1]
        assert {len(event.canvas) for event in whole if isinstance(event, DenoiseStep)} == {32}


class TestLatencyBudget:
    def answer(
        self, make: Make, *, budget_ms: float | None, forward: float, steps: int = 40, capture: float = 0.0
    ) -> Finished:
        """Forwards take `forward` seconds by the engine's clock, and what comes before the first one `capture`."""
        now = 0.0

        class Slow:
            def __init__(self, runner: object) -> None:
                self.runner = runner

            def __getattr__(self, name: str) -> object:
                return getattr(self.runner, name)

            def capture(self, work: object) -> None:
                nonlocal now, capture
                now, capture = now + capture, 0.0

            def run(self, work: object, meanwhile: Callable[[], None]) -> object:
                nonlocal now
                now += forward
                return self.runner.run(work, meanwhile)  # type: ignore[attr-defined]

        engine = make(clock=lambda: now)
        engine.runner = Slow(engine.runner)  # type: ignore[assignment]
        settings = dataclasses.replace(SETTINGS, steps=steps, latency_budget_ms=budget_ms)
        run(engine, [ask(9, settings=dataclasses.replace(SETTINGS, steps=1))])  # a first measurement
        return end_of(run(engine, [ask(1, settings=settings)])[1])

    def test_the_step_caps_fill_the_budget(self, make: Make) -> None:
        end = self.answer(make, budget_ms=3000, forward=0.1)
        assert end.stats.steps == end.stats.step_budgets == (10, 10, 10)
        assert (end.stats.first_commit_seconds, end.stats.seconds) == pytest.approx((1.0, 3.0))

    def test_what_only_a_first_forward_waits_for_is_not_expected_of_the_next(self, make: Make) -> None:
        assert self.answer(make, budget_ms=3000, forward=0.1, capture=5.0).stats.step_budgets == (10, 10, 10)

    def test_more_time_than_steps_changes_nothing(self, make: Make) -> None:
        end = self.answer(make, budget_ms=60_000, forward=0.1, steps=4)
        assert end.stats.steps == end.stats.step_budgets == (4, 4, 4)

    def test_too_little_time_takes_a_step_per_canvas(self, make: Make) -> None:
        assert self.answer(make, budget_ms=1, forward=0.1).stats.step_budgets == (1, 1, 1)

    def test_without_a_budget_the_caps_are_the_setting(self, make: Make) -> None:
        assert self.answer(make, budget_ms=None, forward=0.1, steps=3).stats.step_budgets == (3, 3, 3)


class TestExpectedTime:
    def after(self, *forwards: tuple[int, float]) -> StepClock:
        clock = StepClock()
        for tokens, seconds in forwards:
            clock.observe(tokens, seconds)
        return clock

    def test_it_is_a_line_over_tokens(self) -> None:
        clock = self.after((100, 2.0), (200, 3.0), (400, 5.0))
        assert [clock.seconds(tokens) for tokens in (0, 300, 1000)] == pytest.approx([1.0, 4.0, 11.0])
        assert StepClock().seconds(100) is None

    def test_after_forwards_of_one_size_a_smaller_one_takes_as_long_and_a_larger_one_in_proportion(self) -> None:
        clock = self.after(*[(200, 3.0)] * 5)
        assert [clock.seconds(tokens) for tokens in (100, 200, 400)] == pytest.approx([3.0, 3.0, 6.0])

    def test_more_tokens_never_take_less_and_few_never_nothing(self) -> None:
        noisy, steep = self.after((100, 2.0), (200, 1.0)), self.after((900, 1.0), (1000, 3.0))
        assert noisy.seconds(1000) == noisy.seconds(10) == pytest.approx(1.5, rel=0.01)
        assert steep.seconds(100) == pytest.approx(0.2, rel=0.01)

    def test_the_latest_few_hundred_forwards_count(self) -> None:
        assert self.after(*[(100, 9.0)] * 1000, *[(100, 1.0)] * 300).seconds(100) == pytest.approx(1.0, abs=0.05)


def test_settings_that_only_the_engine_reads_are_checked() -> None:
    for wrong, sentence in (
        ({"latency_budget_ms": 0}, "latency_budget_ms is 0; it must be above 0"),
        ({"logprobs": 21}, "logprobs is 21; it must be between 0 and 20"),
    ):
        with pytest.raises(SettingError, match=sentence):
            GenerationSettings(**wrong)
