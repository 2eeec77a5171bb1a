"""What ends a run early, and how many steps fit its time; by a clock that the tests set."""

import signal
import threading

import pytest

from redraft.train.distributed import World
from redraft.train.limits import RunLimits
from redraft.train.recipe import RunSettings


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Pair(World):
    """Two processes; the other one is late, or slower, as it is told."""

    other_is_late, other_value = False, 0.0

    def any(self, flag: bool) -> bool:
        return flag or type(self).other_is_late

    def largest(self, value: float) -> float:
        return max(value, type(self).other_value)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("redraft.train.limits.time.perf_counter", clock)
    return clock


def limits(world: World | None = None, **settings: float) -> RunLimits:
    return RunLimits(RunSettings(out="unused", **settings), world or World())


def test_time_is_a_limit_only_where_it_is_given(clock: Clock) -> None:
    timed, endless = limits(max_seconds=5.0), limits()
    assert not timed.reached()
    clock.now += 5.5
    assert timed.reached()
    assert timed.reason == "by the time limit"
    assert not endless.reached()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_a_limit_and_the_handler_comes_back(number: signal.Signals) -> None:
    run = limits()
    before = signal.getsignal(number)
    with run.interruptible():
        assert not run.reached()
        signal.raise_signal(number)
        assert run.reached()
    assert run.reason == "by interrupt"
    assert signal.getsignal(number) is before


def test_a_second_request_to_end_waits_for_the_step_too() -> None:
    run = limits()
    with run.interruptible():
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert run.reached()


def test_a_second_interrupt_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    with limits().interruptible():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_leaves_interrupts_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with limits().interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_several_processes_agree_once_a_second(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or after every step, if it takes longer: `torchrun` does not wait for many of these."""

    def steps_until_all_stop(run: RunLimits, seconds: float) -> int:
        for step in range(1, 100):
            clock.now += seconds
            if run.reached():
                return step
        return 0

    for seconds, steps in ((0.001, 8), (0.4, 2), (0.6, 1), (20.0, 1)):
        monkeypatch.setattr(Pair, "other_is_late", False)
        run = limits(Pair(size=2))
        clock.now += seconds
        assert not run.reached()  # the first step
        monkeypatch.setattr(Pair, "other_is_late", True)
        assert steps_until_all_stop(run, seconds) == steps
    monkeypatch.setattr(Pair, "other_is_late", False)
    assert steps_until_all_stop(limits(Pair(size=2), max_seconds=5.0), 6.0) == 1


def test_steps_fit_the_time_that_is_left(clock: Clock) -> None:
    run = limits(fit_seconds=100.0)
    clock.now += 40.0
    assert run.fitted_steps(200, 1000, 0.5) == 200 + 120
    assert run.fitted_steps(200, 250, 0.5) == 200 + 120
    clock.now += 80.0
    assert run.fitted_steps(200, 1000, 0.5) == 200 - 40  # the time is over; the trainer takes no step back


def test_earlier_starts_of_a_run_count_for_its_steps_alone(clock: Clock) -> None:
    run = limits(fit_seconds=100.0, max_seconds=50.0)
    run.earlier = 60.0
    clock.now += 20.0
    assert run.fitted_steps(200, 1000, 0.5) == 200 + 40
    assert not run.reached()


@pytest.mark.parametrize(("step", "total", "seconds"), [(801, 1000, 100.0), (200, 1000, 0.0)])
def test_steps_are_left_alone_at_the_end_and_unasked(clock: Clock, step: int, total: int, seconds: float) -> None:
    assert limits(fit_seconds=seconds).fitted_steps(step, total, 0.5) == total


def test_the_slowest_process_decides_how_many_steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = limits(Pair(size=2), fit_seconds=100.0)
    monkeypatch.setattr(Pair, "other_value", -150.0)  # has time for 150 more steps
    assert run.fitted_steps(200, 1000, 0.5) == 350
    monkeypatch.setattr(Pair, "other_value", -300.0)
    assert run.fitted_steps(200, 1000, 0.5) == 400
