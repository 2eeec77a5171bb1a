"""What reads requests: who builds a large constraint makes room for others, and ends when nobody waits."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from redraft.constraints.automaton import Budget
from redraft.serve.threads import LARGE, MOST, MOST_LARGE, MOST_SLOW, SLOW_SECONDS, Threads


class Building:
    """A constraint that is being built for ever, and for long already; how many of them are at work."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self._at_work, self.most, self._lock = 0, 0, threading.Lock()

    def __call__(self) -> None:
        budget = Budget(seconds=1e9, started=time.thread_time() - 60)
        self.begun.release()
        budget.check(0)
        with self._lock:
            self._at_work += 1
            self.most = max(self.most, self._at_work)
        try:
            while True:
                budget.check(0)
                time.sleep(0.001)
        finally:
            with self._lock:
                self._at_work -= 1


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not what():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("count", [1, 3 * MOST])
def test_slow_ones_hold_nobody_up_and_end_with_their_callers(count: int) -> None:
    building = Building()

    async def main() -> None:
        threads = Threads()
        slow = [asyncio.create_task(threads.read(building, 1)) for _ in range(count)]
        for _ in range(count):
            await _until(lambda: building.begun.acquire(blocking=False))
        assert await asyncio.wait_for(threads.read(lambda: "quick", 1), 60) == "quick"
        await _until(lambda: building.most > 0)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        await _until(lambda: not threads.busy)

    asyncio.run(main())
    assert building.most <= MOST_SLOW


class Held:
    """Functions that wait until they are let go, after they have built something for `seconds`; how many have begun."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._go = seconds, threading.Event()
        self.begun = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        Budget(seconds=1e9, started=time.thread_time() - self._seconds).check(0)
        with self._lock:
            self.begun += 1
        assert self._go.wait(120)
        return "read"

    def let_go(self) -> None:
        self._go.set()


@pytest.mark.parametrize(
    ("size", "seconds", "most"), [(LARGE - 1, 0.0, MOST), (LARGE, 0.0, MOST_LARGE), (1, 2 * SLOW_SECONDS, MOST_SLOW)]
)
def test_so_many_are_read_at_a_time_and_small_ones_do_not_wait_for_large_or_slow_ones(
    size: int, seconds: float, most: int
) -> None:
    async def main() -> None:
        threads, held = Threads(), Held(seconds)
        reading = [asyncio.create_task(threads.read(held, size)) for _ in range(MOST + 2)]
        await _until(lambda: held.begun == most)
        if most < MOST:
            assert await asyncio.wait_for(threads.read(lambda: "small", 1), 60) == "small"
        await asyncio.sleep(0.1)
        assert held.begun == most
        held.let_go()
        assert await asyncio.wait_for(asyncio.gather(*reading), 60) == ["read"] * len(reading)
        assert not threads.busy

    asyncio.run(main())


def test_a_thread_that_cannot_be_started_keeps_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        threads = Threads()
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            for _ in range(MOST + 1):
                with pytest.raises(RuntimeError, match="new thread"):
                    await asyncio.wait_for(threads.read(lambda: None, 1), 60)
        assert not threads.busy
        assert await asyncio.wait_for(threads.read(lambda: "read", 1), 60) == "read"

    asyncio.run(main())
