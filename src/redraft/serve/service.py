"""What all endpoints share: the model while it is loaded, ready or leaving, and how many requests are open."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

from fastapi import Request

import redraft
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Finished
from redraft.engine.stats import EngineStats
from redraft.llm import LLM
from redraft.serve.answers import Answers
from redraft.serve.faults import Fault, busy, loading, stopping, timed_out
from redraft.serve.metrics import Metrics
from redraft.serve.planning import Plan, Planner
from redraft.serve.settings import ServeSettings

T = TypeVar("T")
Phase = Literal["loading", "ready", "stopping"]
LINGER_SECONDS = 0.5
"""How long a server that was told to stop goes on answering at least."""


class Service:
    """One model behind HTTP. All methods but `load`'s work run on the event loop."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.phase: Phase = "loading"
        self.metrics = Metrics(self._engine_stats)
        self.open = 0
        self._llm: LLM | None = None
        self._engine: AsyncEngine | None = None

    def start(self, llm: LLM, engine: AsyncEngine) -> None:
        """The model is loaded: let requests in."""
        self._llm, self._engine = llm, engine
        if self.phase == "loading":
            self.phase = "ready"

    async def load(self, load: Callable[[], LLM]) -> None:
        """Load the model in a thread and warm its engine up, so that health checks are answered meanwhile."""
        llm = await _in_thread(load)
        asked = self.settings.engine
        # Whoever is let in finds room in the engine's queue.
        settings = replace(asked, max_waiting=max(asked.max_waiting, self.settings.max_open))
        inner = await _in_thread(functools.partial(llm.new_engine, settings))
        engine = AsyncEngine(inner)
        await engine.run(inner.runner.warm_up)
        self.start(llm, engine)

    async def stop(self, grace: float) -> None:
        """Let nobody in any more, give open requests `grace` seconds, and end clearly what is left then."""
        self.phase = "stopping"
        loop = asyncio.get_running_loop()
        # Requests that were sent before anybody could know are answered, too, with a 503.
        noticed, deadline = loop.time() + min(LINGER_SECONDS, grace), loop.time() + grace
        while loop.time() < noticed or (self.open and loop.time() < deadline):
            await asyncio.sleep(0.02)
        if self._engine is not None:
            await self._engine.close(drain=False)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place among the open requests; raises a `Fault` if there is none."""
        if self.phase == "stopping":
            raise stopping()
        if self.phase == "loading":
            raise loading()
        if self.open >= self.settings.max_open:
            raise busy(f"{self.open} requests are open, which is as many as this server takes; try again.")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    @property
    def healthy(self) -> bool:
        """Whether requests can be answered, which is over when the engine broke."""
        return self.phase == "ready" and self.engine.healthy

    @property
    def llm(self) -> LLM:
        """The model."""
        if self._llm is None:
            raise loading()
        return self._llm

    @property
    def engine(self) -> AsyncEngine:
        """The engine that runs it."""
        if self._engine is None:
            raise stopping() if self.phase == "stopping" else loading()
        return self._engine

    @property
    def planner(self) -> Planner:
        """Turns requests into plans for this model."""
        return Planner(self.llm, self.engine, self.settings)

    async def begin(self, plan: Plan, facts: dict[str, Any]) -> Answers:
        """Hand a plan to the engine; `facts` for the log line grow with the answers.

        Raises a `Fault` if the plan's time is over before the model's thread looks at it.
        """
        facts["tokens"] = 0

        def observe(finished: Finished) -> None:
            self.metrics.observe(finished)
            facts["tokens"] += finished.stats.tokens
            if self.settings.log_prompts:
                facts.setdefault("texts", []).append(finished.text)

        streams = await _within(plan.timeout, self.engine.submit(plan.requests))
        return Answers(plan, streams, observe=observe)

    async def work(self, function: Callable[[], T]) -> T:
        """Have the model's thread call `function`, which makes forwards of its own, for as long as a request may take.

        Raises a `Fault` if that is too short; the thread then ends the work before its next forward.
        """
        return await _within(self.settings.timeout, self.engine.run(function))

    def count_refusal(self, fault: Fault) -> None:
        """Count a request that was turned away."""
        self.metrics.refused.labels(fault.code or fault.kind).inc()

    def _engine_stats(self) -> EngineStats | None:
        return None if self._engine is None else self._engine.stats()


async def _within(seconds: float, work: Awaitable[T]) -> T:
    """Await `work`; cancel it and raise a `Fault` if it takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise timed_out(seconds) from None


async def _in_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread that nobody waits for at the end, so that a server can be stopped while it loads."""
    future: Future[T] = Future()

    def call() -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=call, name="redraft-load", daemon=True).start()
    return await asyncio.wrap_future(future)


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    return request.app.state.service


def fingerprint(service: Service) -> str:
    """What OpenAI calls a system fingerprint: equal seeds give equal answers while it stays the same."""
    model = service.llm.model
    return f"redraft-{redraft.__version__}-{str(model.dtype).removeprefix('torch.')}-{model.device.type}"
