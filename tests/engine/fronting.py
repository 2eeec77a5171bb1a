"""An asynchronous front on an engine, for tests, and what its callers do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import torch

from redraft.engine.async_engine import AsyncEngine
from redraft.engine.engine import Engine
from redraft.engine.request import Event
from redraft.engine.stats import EngineStats
from redraft.model import Transformer


def driven(engine: Engine, body: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    """Run an async test body with a front on the engine, and close it."""

    async def main() -> None:
        front = AsyncEngine(engine)
        try:
            async with asyncio.timeout(120):
                await body(front)
        finally:
            await front.close(drain=False)
        assert not front._thread.is_alive()
        assert not engine.busy

    asyncio.run(main())


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def settled(front: AsyncEngine) -> EngineStats:
    """Wait until nothing is open; a cancelled request may cost the forward under way and no more."""
    forwards = await front.run(lambda: front._engine.counters.forwards)
    while await front.run(lambda: front._engine.busy):
        await asyncio.sleep(0.005)
    stats = await front.run(front._engine.stats)
    assert stats.running == stats.waiting == stats.full_pages_used == stats.sliding_pages_used == 0
    assert stats.counters.forwards <= forwards + 1
    return stats


def encode_for_ever(model: Transformer, made: list[int]) -> None:
    """Forwards without an end, each of which is noted."""
    while True:
        model.encode(torch.tensor([[1, 2]]), model.new_cache(1, 2))
        made.append(1)
