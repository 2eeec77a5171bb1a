"""The asynchronous front: events reach who asked, whoever leaves is cancelled, and nobody waits in vain."""

import asyncio
import dataclasses
import gc
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asking import SETTINGS, Make, ask, end_of, run, untimed
from fronting import collect, driven, encode_for_ever, settled

from redraft.diffusion.records import Commit, DenoiseStep
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Finished
from redraft.engine.work import DenoiseResult, Segment
from redraft.errors import EngineError, PromptError, QueueFullError, SettingError
from redraft.model import Transformer

LONG = dataclasses.replace(SETTINGS, steps=40, max_tokens=400)


def test_many_at_once_get_their_own_events(make: Make) -> None:
    requests = [ask(i, 10 + 30 * i) for i in range(6)]
    expected = run(make(), requests)

    async def body(front: AsyncEngine) -> None:
        told = await asyncio.gather(*(collect(front.stream(request)) for request in requests))
        for request, events in zip(requests, told, strict=True):
            assert untimed(events) == untimed(expected[request.request_id])

    driven(make(), body)


def test_ids_are_not_given_twice(make: Make) -> None:
    async def body(front: AsyncEngine) -> None:
        assert len({front.next_id() for _ in range(100)}) == 100

    driven(make(), body)


class TestLeaving:
    def test_breaking_off_a_stream_cancels_within_a_forward(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            stream = front.stream(ask(1, settings=LONG))
            async for event in stream:
                assert isinstance(event, DenoiseStep)
                break
            await stream.aclose()
            stats = await settled(front)
            assert stats.counters.ended == {"cancelled": 1}

        driven(make(), body)

    def test_a_cancelled_task_cancels_its_request(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            task = asyncio.create_task(collect(front.stream(ask(1, settings=LONG))))
            while not front.stats().counters.forwards:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settled(front)

        driven(make(), body)

    def test_streams_that_were_never_read_cancel_when_closed_or_forgotten(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            closed, forgotten = await front.submit([ask(1, settings=LONG), ask(2, settings=LONG)])
            await closed.aclose()
            del forgotten
            gc.collect()
            stats = await settled(front)
            assert stats.counters.ended == {"cancelled": 2}

        driven(make(), body)

    def test_a_closed_stream_has_ended(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            (stream,) = await front.submit([ask(1)])
            await stream.aclose()
            assert await collect(stream) == []

        driven(make(), body)

    @pytest.mark.parametrize("error", [KeyError("left"), KeyError])
    def test_an_error_thrown_into_a_stream_comes_back_and_cancels(
        self, make: Make, error: KeyError | type[KeyError]
    ) -> None:
        async def body(front: AsyncEngine) -> None:
            (stream,) = await front.submit([ask(1, settings=LONG)])
            with pytest.raises(KeyError):
                await stream.athrow(error)
            assert await collect(stream) == []
            assert (await settled(front)).counters.ended == {"cancelled": 1}

        driven(make(), body)

    def test_a_thousand_who_leave_leak_nothing(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            for i in range(0, 1000, 8):
                streams = await front.submit([ask(i + j, settings=LONG, drafts=False) for j in range(8)])
                for stream in streams:
                    await stream.aclose()
            stats = await settled(front)
            assert stats.counters.ended == {"cancelled": 1000}
            assert not front._engine.busy

        driven(make(), body)


def test_a_loop_that_was_closed_with_streams_open_harms_nobody(make: Make) -> None:
    engine = make()

    async def leave() -> AsyncEngine:
        front = AsyncEngine(engine)
        front.kept = await front.submit([ask(1, settings=LONG)])  # type: ignore[attr-defined]
        return front

    front = asyncio.run(leave())

    async def body() -> None:
        assert end_of(await collect(front.stream(ask(2)))).finish_reason == "length"
        await front.close(drain=False)

    asyncio.run(body())
    assert not front._thread.is_alive()


def test_who_is_far_behind_misses_steps_and_nothing_else(make: Make) -> None:
    """As many events as are allowed wait, and those that end canvases and the answer."""
    unread = list[Any]()
    for event in run(make(), [ask(1)])[1]:
        if not isinstance(event, DenoiseStep) or len(unread) < 7:
            unread.append(event)

    async def body(front: AsyncEngine) -> None:
        (stream,) = await front.submit([ask(1)], most_unread=7)
        while await front.run(lambda: front._engine.busy):
            await asyncio.sleep(0.005)
        assert untimed(await collect(stream)) == untimed(unread)
        assert sum(isinstance(event, DenoiseStep) for event in unread) == 6
        (read,) = await front.submit([ask(1)], most_unread=7)
        assert len(await collect(read)) > len(unread)

    driven(make(), body)


class TestRefusal:
    def test_submitting_raises_before_anything_is_told(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            with pytest.raises(PromptError, match="prompt is empty"):
                await front.submit([ask(1), dataclasses.replace(ask(2), prompt=())])
            stats = await settled(front)
            assert stats.counters.ended == {}  # the first one was taken back
            (stream,) = await front.submit([ask(1)])
            gc.collect()  # drops the streams of what was refused, which must not cancel their namesake
            assert end_of(await collect(stream)).finish_reason == "length"

        driven(make(), body)

    def test_a_full_queue(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            running = await front.submit([ask(0, settings=LONG)])
            while not front.stats().running:
                await asyncio.sleep(0.005)
            waiting = await front.submit([ask(1, settings=LONG)])
            with pytest.raises(QueueFullError):
                await front.submit([ask(2)])
            for stream in (*running, *waiting):
                await stream.aclose()

        driven(make(slots=1, max_waiting=1), body)


class TestRun:
    def test_a_function_runs_between_forwards_on_the_model_thread(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            task = asyncio.create_task(collect(front.stream(ask(1))))
            assert await front.run(lambda: threading.current_thread().name) == "redraft-engine"
            assert end_of(await task).finish_reason == "length"

        driven(make(), body)

    def test_what_it_raises_is_raised_and_hurts_nobody(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            task = asyncio.create_task(collect(front.stream(ask(1))))
            with pytest.raises(ZeroDivisionError):
                await front.run(lambda: 1 // 0)
            assert end_of(await task).finish_reason == "length"
            assert front.healthy

        driven(make(), body)

    def test_forwards_that_nobody_waits_for_are_not_made(self, make: Make, model: Transformer) -> None:
        made = list[int]()

        async def body(front: AsyncEngine) -> None:
            task = asyncio.create_task(front.run(lambda: encode_for_ever(model, made)))
            while not made:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            count = len(made)
            assert await front.run(lambda: "free") == "free"
            assert len(made) <= count + 1

        driven(make(), body)

    def test_functions_that_never_cease_do_not_keep_requests_waiting(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            async def ask_again() -> None:
                while True:
                    await front.run(lambda: time.sleep(0.01))

            asking = [asyncio.create_task(ask_again()) for _ in range(3)]
            await asyncio.sleep(0.05)
            try:
                assert end_of(await asyncio.wait_for(collect(front.stream(ask(1))), 60)).finish_reason == "length"
            finally:
                for task in asking:
                    task.cancel()

        driven(make(), body)

    def test_its_forwards_take_turns_with_those_of_requests(self, make: Make, model: Transformer) -> None:
        """Whether these were there before it or come meanwhile: none waits for its end, and none has to hurry."""
        made = list[int]()

        async def body(front: AsyncEngine) -> None:
            early = asyncio.create_task(collect(front.stream(ask(1))))
            work = asyncio.create_task(front.run(lambda: encode_for_ever(model, made)))
            while not made:
                await asyncio.sleep(0.005)
            first = len(made), front.stats().counters.forwards
            for answer in (early, asyncio.create_task(collect(front.stream(ask(2))))):
                assert end_of(await asyncio.wait_for(answer, 60)).finish_reason == "length"
            assert len(made) - first[0] >= front.stats().counters.forwards - first[1] - 1
            work.cancel()

        driven(make(), body)

    def test_the_wait_behind_one_counts(self, make: Make) -> None:
        now, ticks, go_on = 0.0, itertools.count(), threading.Event()

        async def body(front: AsyncEngine) -> None:
            nonlocal now
            held = asyncio.create_task(front.run(lambda: go_on.wait(60)))
            await asyncio.sleep(0)
            submitting = asyncio.create_task(front.submit([ask(1), ask(2, timeout=0.3)]))
            await asyncio.sleep(0)
            now = 0.4
            go_on.set()
            whole, late = await submitting
            cut = end_of(await collect(late))
            assert (cut.finish_reason, cut.token_ids) == ("timeout", ())
            end = end_of(await collect(whole))
            assert end.finish_reason == "length"
            assert end.stats.seconds > end.stats.queue_seconds > 0.3
            await held

        driven(make(clock=lambda: now + 1e-6 * next(ticks)), body)


class TestClosing:
    def test_draining_finishes_what_was_accepted_and_refuses_the_rest(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            streams = await front.submit([ask(i) for i in range(4)])
            work = asyncio.create_task(front.run(lambda: "done"))
            await asyncio.sleep(0)
            closing = asyncio.create_task(front.close(drain=True))
            await asyncio.sleep(0)
            for late in (front.submit([ask(9)]), front.run(lambda: 1)):
                with pytest.raises(EngineError, match="shutting down"):
                    await late
            told = await asyncio.gather(*map(collect, streams))
            assert [end_of(events).finish_reason for events in told] == ["length"] * 4
            assert await work == "done"
            await closing

        driven(make(slots=2), body)

    def test_a_drain_that_takes_too_long_ends_what_is_left(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            (stream,) = await front.submit([ask(1, settings=dataclasses.replace(LONG, max_tokens=4000))])
            await front.close(drain=True, timeout=0.2)
            events = await collect(stream)
            assert end_of(events).finish_reason == "cancelled"
            assert all(isinstance(event, DenoiseStep | Commit | Finished) for event in events)

        driven(make(), body)

    def test_it_needs_none_of_the_loops_threads(self, make: Make) -> None:
        held = threading.Event()

        async def body(front: AsyncEngine) -> None:
            with ThreadPoolExecutor(1) as pool:
                asyncio.get_running_loop().set_default_executor(pool)
                waiting = asyncio.create_task(asyncio.to_thread(held.wait, 120))
                await asyncio.sleep(0)
                try:
                    await asyncio.wait_for(front.close(drain=True, timeout=1), 60)
                finally:
                    held.set()
                    await waiting

        driven(make(), body)

    def test_a_function_that_makes_forwards_does_not_keep_it_from_closing(self, make: Make, model: Transformer) -> None:
        made = list[int]()

        async def body(front: AsyncEngine) -> None:
            task = asyncio.create_task(front.run(lambda: encode_for_ever(model, made)))
            while not made:
                await asyncio.sleep(0.005)
            await front.close(drain=True, timeout=0.1)
            with pytest.raises(EngineError, match="has stopped"):
                await task

        driven(make(), body)

    def test_one_who_left_while_it_stopped_does_not_leave_others_waiting(self, make: Make) -> None:
        engine = make()
        held, running = threading.Event(), threading.Event()
        run_forward = engine.runner.run

        def held_forward(work: Sequence[Segment], meanwhile: Callable[[], None]) -> list[DenoiseResult]:
            running.set()
            held.wait(60)
            return run_forward(work, meanwhile)

        engine.runner.run = held_forward  # type: ignore[method-assign]

        async def body(front: AsyncEngine) -> None:
            kept = await front.submit([ask(1)])  # dropping it would cancel the request, perhaps before its forward
            assert await asyncio.to_thread(running.wait, 60)
            left, waiting = (asyncio.create_task(front.run(lambda: 1)) for _ in range(2))
            await asyncio.sleep(0.05)
            left.cancel()
            closing = asyncio.create_task(front.close(drain=False))
            await asyncio.sleep(0.05)
            held.set()
            await closing
            with pytest.raises(EngineError, match="has stopped"):
                await asyncio.wait_for(waiting, 60)
            del kept

        driven(engine, body)


def test_who_is_cancelled_while_being_added_leaves_nothing_behind(make: Make) -> None:
    """Also while somebody keeps the cancelled task, and with it the streams that nobody will read."""
    engine = make()
    add, begun, cancelled = engine.add_together, threading.Event(), threading.Event()

    def slowly(*given: Any, **named: Any) -> None:
        begun.set()
        cancelled.wait(60)
        add(*given, **named)

    async def body(front: AsyncEngine) -> None:
        task = asyncio.create_task(front.submit([ask(1, settings=LONG)]))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        cancelled.set()
        assert (await settled(front)).counters.ended == {"cancelled": 1}
        assert task.cancelled()

    engine.add_together = slowly  # type: ignore[method-assign]
    driven(engine, body)


def test_a_group_is_refused_without_a_trace(make: Make) -> None:
    async def body(front: AsyncEngine) -> None:
        (running,) = await front.submit([ask(0, settings=LONG)])
        (waiting,) = await front.submit([ask(1, settings=LONG)])
        with pytest.raises(QueueFullError):
            await front.submit([ask(2), ask(3)])
        with pytest.raises(SettingError, match="These are 4 answers; there is room for at most 3"):
            await front.submit([ask(number) for number in range(2, 6)])
        await running.aclose()
        await waiting.aclose()
        counters = (await settled(front)).counters
        assert (counters.refused, counters.ended) == (2, {"cancelled": 2})

    driven(make(slots=1, max_waiting=2), body)
