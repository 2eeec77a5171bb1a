"""What fails ends no more than it has to, and an engine that keeps failing stops."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from asking import Make, ask, end_of, run, untimed
from fronting import collect, driven, encode_for_ever, settled

from redraft.engine.async_engine import MOST_FAILURES, AsyncEngine
from redraft.errors import EngineError
from redraft.model import Transformer


class Broken:
    """A runner whose next forwards fail."""

    def __init__(self, runner: object, failures: int) -> None:
        self.runner, self.failures = runner, failures

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def run(self, work: object, meanwhile: Callable[[], None]) -> object:
        if self.failures:
            self.failures -= 1
            raise MemoryError("no room")
        return self.runner.run(work, meanwhile)  # type: ignore[attr-defined]


class Unkept:
    """A constraint that limits nothing and cannot follow what was written."""

    min_tokens, closed = 1, False

    def check(self, max_tokens: int) -> None: ...

    def begin(self) -> "Unkept":
        return self

    def canvas(self, length: int, left: int) -> None: ...

    def advance(self, token_ids: Sequence[int]) -> None:
        raise ValueError("a token too many.")


class TestFailure:
    def test_a_failed_forward_ends_its_requests_and_not_the_engine(self, make: Make) -> None:
        engine = make()
        engine.runner = Broken(engine.runner, 1)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            first = await asyncio.gather(*(collect(front.stream(ask(i))) for i in range(3)), return_exceptions=True)
            assert any(isinstance(error, EngineError) and "MemoryError: no room" in str(error) for error in first)
            assert end_of(await collect(front.stream(ask(9)))).finish_reason == "length"
            assert front.healthy
            await settled(front)

        driven(engine, body)

    def test_those_who_wait_for_a_slot_miss_nothing(self, make: Make) -> None:
        requests = [ask(i) for i in range(5)]
        expected = run(make(), requests)
        engine = make(slots=2)
        engine.runner = Broken(engine.runner, 1)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            first, second, *waiting = await front.submit(requests)
            for one in (first, second):
                with pytest.raises(EngineError, match="MemoryError: no room"):
                    await collect(one)
            for request, one in zip(requests[2:], waiting, strict=True):
                assert untimed(await collect(one)) == untimed(expected[request.request_id])
            assert (await settled(front)).counters.ended == {"failed": 2, "length": 3}

        driven(engine, body)

    def test_those_who_still_wait_when_it_gives_up_are_told_why(self, make: Make) -> None:
        engine = make(slots=1)
        engine.runner = Broken(engine.runner, 100)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            streams = await front.submit([ask(i) for i in range(MOST_FAILURES + 2)])
            for i, one in enumerate(streams):
                why = "MemoryError: no room" if i < MOST_FAILURES else "engine has stopped"
                with pytest.raises(EngineError, match=why):
                    await asyncio.wait_for(collect(one), 60)
            await front.ended()

        driven(engine, body)
        assert engine.stats().running == engine.stats().waiting == engine.stats().full_pages_used == 0

    def test_an_engine_that_keeps_failing_stops_and_says_so(self, make: Make) -> None:
        engine = make()
        engine.runner = Broken(engine.runner, 100)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            for i in range(MOST_FAILURES):
                with pytest.raises(EngineError):
                    await collect(front.stream(ask(i)))
            while front.healthy:
                await asyncio.sleep(0.005)
            with pytest.raises(EngineError, match="engine has stopped"):
                await collect(front.stream(ask(99)))
            with pytest.raises(EngineError, match="engine has stopped"):
                await front.run(lambda: 1)

        driven(engine, body)

    def test_forwards_of_calls_count_like_those_of_requests(self, make: Make, model: Transformer) -> None:
        """Until one succeeds; what a call does wrong besides, or without a forward, does not count."""

        def encode(then: Exception | None) -> None:
            model.encode(torch.tensor([[1, 2]]), model.new_cache(1, 2))
            if then is not None:
                raise then

        def idle() -> None:
            raise NotImplementedError

        async def body(front: AsyncEngine) -> None:
            broken, wrong, large = RuntimeError("CUDA error"), ValueError("a bug"), torch.OutOfMemoryError("too much")
            for error in (broken, wrong, broken, None, broken, large, broken, wrong, broken):
                assert front.healthy
                for _ in range(MOST_FAILURES):
                    with pytest.raises(NotImplementedError):
                        await front.run(idle)
                assert await front.run(lambda: 1) == 1
                told = await asyncio.gather(front.run(lambda: encode(error)), return_exceptions=True)  # noqa: B023
                assert told == [error]
            await asyncio.wait_for(front.ended(), 60)
            with pytest.raises(EngineError, match="engine has stopped"):
                await front.run(lambda: 1)

        driven(make(), body)

    @pytest.mark.parametrize("slots", [1, 8])
    def test_one_whose_pages_cannot_be_cleaned_stops_and_nobody_waits(self, make: Make, slots: int) -> None:
        """As after an error that leaves a GPU unusable: whatever the runner does next fails, too."""
        engine = make(slots=slots)

        class Dead(Broken):
            def release(self, slot: int) -> bool:
                raise RuntimeError("unusable")

        engine.runner = Dead(engine.runner, 100)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            answers = (collect(front.stream(ask(i))) for i in range(3))
            told = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 60)
            assert all(isinstance(error, EngineError) for error in told)
            while front.healthy:
                await asyncio.sleep(0.005)
            with pytest.raises(EngineError, match="engine has stopped"):
                await collect(front.stream(ask(9)))

        driven(engine, body)
        assert engine.stats().running == engine.stats().full_pages_used == 0

    def test_one_who_leaves_and_cannot_be_cleaned_up_is_logged(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody waits for a cancellation, so nobody else would hear of it."""
        engine = make()

        class Unclean(Broken):
            def release(self, slot: int) -> bool:
                self.runner.release(slot)  # type: ignore[attr-defined]
                raise RuntimeError("unclean")

        engine.runner = Unclean(engine.runner, 0)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            stream = front.stream(ask(1))
            await anext(stream)
            await stream.aclose()
            assert (await settled(front)).counters.ended == {"cancelled": 1}

        driven(engine, body)
        assert "a cancelled request could not be cleaned up: unclean" in caplog.text

    def test_an_answer_that_cannot_go_on_ends_alone(self, make: Make) -> None:
        async def body(front: AsyncEngine) -> None:
            whole, broken = await front.submit([ask(1), ask(2, constraint=Unkept())])
            with pytest.raises(EngineError, match=r"The answer failed with ValueError: a token too many\."):
                await collect(broken)
            assert end_of(await collect(whole)).finish_reason == "length"
            stats = await settled(front)
            assert stats.counters.ended == {"failed": 1, "length": 1}

        driven(make(), body)

    def test_one_that_fails_while_it_is_told_to_stop_stops(self, make: Make, model: Transformer) -> None:
        engine, made = make(), list[int]()
        runs, closing = threading.Event(), threading.Event()

        class Slow(Broken):
            def run(self, work: object, meanwhile: Callable[[], None]) -> object:
                runs.set()
                closing.wait(60)
                return super().run(work, meanwhile)

        engine.runner = Slow(engine.runner, 1)  # type: ignore[assignment]

        async def body(front: AsyncEngine) -> None:
            answer = asyncio.create_task(collect(front.stream(ask(0))))
            while not runs.is_set():
                await asyncio.sleep(0.005)
            work = asyncio.create_task(front.run(lambda: encode_for_ever(model, made)))
            stop = asyncio.create_task(front.close(drain=False))
            await asyncio.sleep(0.05)
            closing.set()
            await asyncio.wait_for(stop, 60)
            await asyncio.gather(answer, work, return_exceptions=True)
            assert not made

        driven(engine, body)
