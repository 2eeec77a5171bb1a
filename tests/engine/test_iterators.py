"""Iterators of `Engine.answer` beside each other and beside `add` and `step`: each is told its own, and ends."""

import dataclasses
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count, islice

import pytest
from asking import CANVAS, SETTINGS, Make, add, ask, run, untimed

from redraft.engine import iterators
from redraft.engine.answer import Answer
from redraft.engine.engine import Engine
from redraft.engine.request import Event, Finished, Request
from redraft.errors import EngineError, SettingError

MOST = 100
"""More events than any request here has: an iterator that is told of no end would run for ever."""

SHORT = dataclasses.replace(SETTINGS, max_tokens=16, steps=1)


def up_to_its_end(events: Iterator[Event]) -> list[Event]:
    """What an iterator tells, which is left standing where it is behind its `Finished`."""
    told = []
    for event in islice(events, MOST):
        told.append(event)
        if isinstance(event, Finished):
            break
    return told


def expected(make: Make, request: Request) -> list[object]:
    return untimed(run(make(), [request])[request.request_id])


class Failing:
    """A runner whose next `broken` forwards fail, or releases of slots if these are what `fails`."""

    def __init__(self, engine: Engine, error: BaseException | None = None, fails: str = "run") -> None:
        self.runner, self.error, self.fails, self.broken = engine.runner, error or ValueError("broken"), fails, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def run(self, work: object, meanwhile: Callable[[], None]) -> object:
        self._fail("run")
        return self.runner.run(work, meanwhile)  # type: ignore[arg-type]

    def release(self, slot: int) -> bool:
        self._fail("release")
        return self.runner.release(slot)

    def _fail(self, name: str) -> None:
        if self.broken and name == self.fails:
            self.broken -= 1
            raise self.error


@pytest.mark.parametrize("moment", [0, 3, 6])
def test_steps_by_hand_take_nothing_from_an_iterator(make: Make, moment: int) -> None:
    engine = make()
    events = engine.answer([ask(1)])
    told = [next(events) for _ in range(moment + 1)]
    by_hand = add(engine, ask(2))
    while engine.busy:
        engine.step()
    assert untimed(by_hand) == expected(make, ask(2))
    assert untimed(told + up_to_its_end(events)) == expected(make, ask(1))


def test_whom_somebody_else_cancels_an_iterator_still_tells(make: Make) -> None:
    engine = make()
    events = engine.answer([ask(1)])
    next(events)
    engine.cancel(1)
    (end,) = up_to_its_end(events)
    assert isinstance(end, Finished)
    assert end.finish_reason == "cancelled"


def test_an_iterator_is_not_told_of_an_earlier_request_with_its_id(make: Make) -> None:
    engine = make()
    earlier = add(engine, ask(1))
    engine.cancel(1)
    assert untimed(up_to_its_end(engine.answer([ask(1)]))) == expected(make, ask(1))
    (end,) = earlier
    assert isinstance(end, Finished)
    assert end.finish_reason == "cancelled"


def test_an_iterator_that_has_told_all_leaves_a_later_one_with_its_id_alone(make: Make) -> None:
    engine = make()
    first = engine.answer([ask(1)])
    up_to_its_end(first)
    second = engine.answer([ask(1)])
    told = [next(second)]
    first.close()  # type: ignore[attr-defined]
    assert engine.stats().running == 1
    assert untimed(told + up_to_its_end(second)) == expected(make, ask(1))


def test_a_forward_that_fails_takes_no_answer_that_is_whole(make: Make) -> None:
    engine = make()
    engine.runner = failing = Failing(engine)  # type: ignore[assignment]
    whole, other = engine.answer([ask(1, settings=SHORT)]), engine.answer([ask(2)])
    next(whole)
    list(islice(other, 3))
    failing.broken = 1
    with pytest.raises(ValueError, match="broken"):
        next(other)
    assert isinstance(list(islice(whole, MOST))[-1], Finished)


def test_a_forward_that_fails_leaves_alone_who_waits_and_ran_it(make: Make) -> None:
    engine = make(slots=1)
    engine.runner = failing = Failing(engine)  # type: ignore[assignment]
    running, waiting = engine.answer([ask(1)]), engine.answer([ask(2)])
    next(running)
    failing.broken = 1
    assert untimed(up_to_its_end(waiting)) == expected(make, ask(2))
    with pytest.raises(EngineError, match="A forward failed with ValueError"):
        next(running)


def test_a_forward_that_fails_leaves_alone_who_waits_while_another_runs_it(make: Make) -> None:
    now = 0.0
    engine = make(clock=lambda: now, slots=1)
    engine.runner = failing = Failing(engine)  # type: ignore[assignment]
    running, waiting = engine.answer([ask(1)]), engine.answer([ask(2, timeout=1.0), ask(3)])
    next(running)
    now = 2.0
    assert [event.request_id for event in islice(waiting, 1) if isinstance(event, Finished)] == [2]
    failing.broken = 1
    with pytest.raises(ValueError, match="broken"):
        list(islice(running, MOST))
    assert untimed(up_to_its_end(waiting)) == expected(make, ask(3))


def test_forwards_that_always_fail_end_every_iterator(make: Make) -> None:
    engine = make(slots=1)
    engine.runner = failing = Failing(engine)  # type: ignore[assignment]
    running, waiting, last = (engine.answer([ask(i)]) for i in range(3))
    next(running)
    failing.broken = MOST
    for events in (waiting, last):
        with pytest.raises(ValueError, match="broken"):
            next(events)
    with pytest.raises(EngineError, match="broken"):
        next(running)
    assert not engine.busy


def test_a_forward_that_fails_before_anybody_has_a_slot_is_not_tried_for_ever(make: Make) -> None:
    read = count()
    engine = make(weights=lambda: 1 / (1 - next(read)))
    with pytest.raises(ZeroDivisionError):
        next(engine.answer([ask(1)]))
    assert not engine.busy


def test_ctrl_c_ends_the_iterator_that_it_meets(make: Make) -> None:
    engine = make(slots=1)
    engine.runner = failing = Failing(engine, KeyboardInterrupt())  # type: ignore[assignment]
    running, waiting = engine.answer([ask(1)]), engine.answer([ask(2)])
    next(running)
    failing.broken = 1
    with pytest.raises(KeyboardInterrupt):
        next(waiting)
    with pytest.raises(EngineError, match="KeyboardInterrupt"):
        next(running)
    assert not engine.busy


class Interrupted(Failing):
    """A runner during whose next `broken` forwards somebody presses Ctrl-C, as often as `times` says."""

    times = 1

    def _fail(self, name: str) -> None:
        if self.broken and name == self.fails:
            self.broken -= 1
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def test_ctrl_c_leaves_the_answers_of_others_alone(make: Make) -> None:
    """The first forward serves both; the later ones only who is left."""
    engine = make()
    engine.runner = pressed = Interrupted(engine)  # type: ignore[assignment]
    mine, theirs = engine.answer([ask(1)]), engine.answer([ask(2)])
    told = [next(theirs)]
    next(mine)
    pressed.broken = 1
    with pytest.raises(KeyboardInterrupt):
        list(mine)
    assert engine.stats().running == 1
    assert untimed(told + up_to_its_end(theirs)) == expected(make, ask(2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("others", [False, True])
def test_ctrl_c_does_not_wait_where_nobody_else_would_suffer_or_if_pressed_twice(make: Make, others: bool) -> None:
    engine = make()
    engine.runner = pressed = Interrupted(engine)  # type: ignore[assignment]
    ran, run = list[object](), pressed.runner.run
    pressed.runner.run = lambda work, *rest: ran.append(work) or run(work, *rest)  # type: ignore[method-assign, func-returns-value]
    mine, theirs = engine.answer([ask(1)]), engine.answer([ask(2)])
    if others:
        next(theirs)
    next(mine)
    ran.clear()
    pressed.broken, pressed.times = 1, 1 + others
    with pytest.raises(KeyboardInterrupt):
        list(mine)
    assert not ran
    assert not engine.busy


def test_what_ended_before_a_forward_failed_did_not_fail(make: Make) -> None:
    now = 0.0
    engine = make(clock=lambda: now)
    engine.runner = failing = Failing(engine)  # type: ignore[assignment]
    told = add(engine, ask(1), ask(2, timeout=1.0), ask(3))
    engine.cancel(1)
    failing.broken, now = 1, 2.0
    with pytest.raises(ValueError, match="broken") as caught:
        engine.step()
    assert engine.fail_running(caught.value) == [3]
    ends = [(event.request_id, getattr(event, "finish_reason", None)) for event in told]
    assert ends == [(1, "cancelled"), (2, "timeout"), (3, None)]
    assert not engine.busy


def test_of_two_iterators_with_one_id_the_second_is_refused_and_the_first_goes_on(make: Make) -> None:
    engine = make()
    first, second = engine.answer([ask(1)]), engine.answer([ask(1)])
    told = [next(first)]
    with pytest.raises(SettingError, match="request_id 1 is already being answered"):
        next(second)
    assert untimed(told + up_to_its_end(first)) == expected(make, ask(1))


def test_two_requests_with_one_id_are_refused_before_any_work(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling what a constraint needs may take seconds."""
    engine, worked = make(), list[object]()
    for name in ("new_answer", "rehearse"):
        monkeypatch.setattr(engine, name, lambda *given: worked.append(given))
    with pytest.raises(SettingError, match="Two requests have the same request_id"):
        engine.answer([ask(1), ask(1)])
    assert not worked


def test_one_that_fails_to_end_keeps_no_other_from_ending(make: Make) -> None:
    """Neither those of the same iterator, nor those of later ones; and its id is free again."""
    engine = make()
    engine.runner = failing = Failing(engine, fails="release")  # type: ignore[assignment]
    for broken in (1, 0):
        events = engine.answer([ask(i) for i in range(3)])
        next(events)
        failing.broken = broken
        with pytest.raises(ValueError, match="broken") if broken else nullcontext():
            events.close()  # type: ignore[attr-defined]
        assert not engine.busy
        assert engine.stats().running == engine.stats().full_pages_used == 0
    assert untimed(up_to_its_end(engine.answer([ask(1)]))) == expected(make, ask(1))


def test_the_id_of_a_request_that_waits_to_be_fed_in_is_taken(make: Make) -> None:
    engine = make(slots=1, max_waiting=2)
    events = engine.answer([ask(i, settings=SHORT) for i in range(4)])
    told = [next(events)]
    for taken in (lambda request: add(engine, request), lambda request: engine.answer([request])):
        with pytest.raises(SettingError, match="request_id 3 is already being answered"):
            taken(ask(3))
    assert {event.request_id for event in (*told, *events) if isinstance(event, Finished)} == {0, 1, 2, 3}


@pytest.mark.parametrize("ending", ["timeout", "cancelled", "failed"])
def test_a_request_that_waits_to_be_fed_in_can_end(make: Make, ending: str) -> None:
    now = 0.0
    engine = make(clock=lambda: now, slots=1, max_waiting=1)
    events = engine.answer([ask(0), ask(1), ask(3, timeout=1.0 if ending == "timeout" else None), ask(2)])
    next(events)
    now = 2.0
    if ending == "cancelled":
        engine.cancel(3)
    if ending == "failed":
        engine.fail_all([3], EngineError("broken"))
    with pytest.raises(EngineError, match="broken") if ending == "failed" else nullcontext():
        ends = [(event.request_id, event.finish_reason) for event in events if isinstance(event, Finished)]
        assert ends == [(3, ending), (0, "length"), (1, "length"), (2, "length")]
    assert not engine.busy


def test_an_end_that_another_thread_is_still_telling_is_the_last_event(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, taken = threading.Event(), threading.Event()

    class Slow(deque[Event]):
        def append(self, event: Event) -> None:
            super().append(event)
            if isinstance(event, Finished) and event.request_id == 2:
                told.set()
                taken.wait(60)
                time.sleep(0.1)  # the other thread asks for more meanwhile

    def reader() -> None:
        told.wait(60)
        for event in events:
            read.append(event)
            if isinstance(event, Finished):
                taken.set()

    monkeypatch.setattr(iterators, "deque", Slow)
    engine = make()
    one, two = (ask(i, settings=dataclasses.replace(SETTINGS, steps=3 + i, max_tokens=CANVAS)) for i in (1, 2))
    events = engine.answer([two])
    read = [next(events)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader)
        assert untimed(list(engine.answer([one]))) == expected(make, one)
        reading.result(60)
    assert untimed(read) == expected(make, two)


def test_ctrl_c_at_the_lock_leaves_it_to_other_threads(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes between taking the lock and knowing of it: without care its thread would keep it."""
    engine = make()
    lock = engine._iterators._lock
    events = engine.answer([ask(1)])
    next(events)

    class Pressed:
        def acquire(self) -> bool:
            plain.acquire()
            monkeypatch.setattr(lock, "_lock", plain)
            signal.raise_signal(signal.SIGINT)
            return True

    plain = lock._lock
    monkeypatch.setattr(lock, "_lock", Pressed())
    with pytest.raises(KeyboardInterrupt):
        list(events)
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(lambda: list(engine.answer([ask(2)]))[-1]).result(timeout=60), Finished)


def test_ctrl_c_while_requests_are_opened_leaves_none_of_them_open(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may wait long there for another one's forward; nobody else would ever end what it opens then."""
    engine, opened = make(), list[Answer]()
    open_one = engine.open

    def pressed(answer: Answer) -> None:
        open_one(answer)
        opened.append(answer)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "open", pressed)
        with pytest.raises(KeyboardInterrupt):
            next(engine.answer([ask(1)]))
    assert opened
    assert not engine.busy
    assert untimed(up_to_its_end(engine.answer([ask(1)]))) == expected(make, ask(1))
