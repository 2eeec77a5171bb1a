"""State shared by all endpoints: the model, whether it is loading, ready or stopping, and the open requests."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from fastapi import Request

import redraft
from redraft.engine.async_engine import AsyncEngine
from redraft.engine.request import Finished
from redraft.engine.stats import EngineStats
from redraft.errors import EngineError
from redraft.llm import LLM
from redraft.serve.answers import MOST_UNREAD, Answers
from redraft.serve.faults import Fault, busy, loading, stopping, timed_out
from redraft.serve.http import until_disconnect
from redraft.serve.logs import client_fault
from redraft.serve.metrics import Metrics
from redraft.serve.planning import AnswerPlan, Planner
from redraft.serve.scoring_queue import Prompts, Scores, ScoringQueue
from redraft.serve.settings import ServeSettings
from redraft.serve.shapes.common import hold_images
from redraft.serve.threads import LARGE, Threads

_log = logging.getLogger(__name__)

T = TypeVar("T")
Phase = Literal["loading", "ready", "stopping"]
Pool = Literal["answers", "tokens"]
"""Requests that need the model, and those that only tokenize text; the tag of their route says which."""
POOLS: tuple[Pool, ...] = get_args(Pool)
LINGER_SECONDS = 0.5
"""Minimum time for which a server that was told to stop keeps answering."""


class Service:
    """One model behind HTTP. All methods run on the event loop; only the loading itself runs in a thread."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.phase: Phase = "loading"
        self.metrics = Metrics(self._engine_stats)
        self._open_requests: Counter[Pool] = Counter()
        self.threads = Threads()
        self._scoring = ScoringQueue(lambda function: self.engine.run(function))
        self._end: float | None = None
        self._limits: set[asyncio.Timeout] = set()
        self._llm: LLM | None = None
        self._engine: AsyncEngine | None = None
        self._warming: AsyncEngine | None = None
        """The engine while it warms up, before requests are let in."""

    def start(self, llm: LLM, engine: AsyncEngine) -> None:
        """Let requests in, now that the model is loaded."""
        self._llm, self._engine, self._warming = llm, engine, None
        if self.phase == "loading":
            self.phase = "ready"

    async def load(self, load: Callable[[], LLM]) -> None:
        """Load the model and warm up its engine in threads, so that health checks still get an answer."""
        llm = await self.threads.call(load)
        asked = self.settings.engine
        # Every request that is let in fits in the engine's queue.
        settings = replace(asked, max_waiting=max(asked.max_waiting, self.settings.max_open))
        inner = await self.threads.call(functools.partial(llm.new_engine, settings))
        self._warming = engine = AsyncEngine(inner)
        await engine.run(inner.runner.warm_up)
        self.start(llm, engine)

    async def rehearse(self) -> None:
        """Compile ahead what the first fill, edit and decision would hold up other requests for."""
        try:
            await self.threads.call(self.llm.rehearse)
        except Exception:
            _log.exception("fill, edit and decide could not be compiled ahead; the first call of each may be slow")

    async def watch(self) -> None:
        """Wait until the engine ends. Raises `EngineError` unless the server was told to stop."""
        await self.engine.ended()
        if self.phase != "stopping":
            raise EngineError("The engine has stopped after repeated failures; the log says why.")

    async def stop(self, grace: float) -> None:
        """Refuse new requests, give open ones `grace` seconds to finish, and end the rest with a clear error.

        An engine that is still warming up, which may take a minute, is told to stop and not waited for; see `busy`.
        """
        self.phase = "stopping"
        loop = asyncio.get_running_loop()
        # Clients that could not yet know about the stop get an answer too, a 503.
        noticed, deadline = loop.time() + min(LINGER_SECONDS, grace), loop.time() + grace
        while loop.time() < noticed or (self._open_requests.total() and loop.time() < deadline):
            await asyncio.sleep(0.02)
        self._end_reading(loop.time())
        if self._warming is not None:
            self._warming.stop()
        if self._engine is not None:
            await self._engine.close(drain=False)

    @property
    def busy(self) -> bool:
        """Whether a thread is still loading or warming up the model, or reading an abandoned request."""
        engine = self._engine or self._warming
        return self.threads.busy or (engine is not None and engine.alive)

    def _end_reading(self, now: float) -> None:
        """Make every wait in `until_shutdown`, now or later, end with the error that the server is stopping."""
        self._end = now
        limits, self._limits = self._limits, set()
        for limit in limits:
            limit.reschedule(now)

    @asynccontextmanager
    async def admit(self, pool: Pool) -> AsyncIterator[None]:
        """Admit a request to its pool while the context is open; raises a `Fault` if the pool is full."""
        if self.phase == "stopping":
            raise stopping()
        if self.phase == "loading":
            raise loading()
        if self._open_requests[pool] >= self.settings.max_open:
            raise busy(f"{self._open_requests[pool]} requests are open, as many as this server takes; try again later.")
        self._open_requests[pool] += 1
        try:
            yield
        finally:
            self._open_requests[pool] -= 1

    @property
    def healthy(self) -> bool:
        """Whether requests can be answered; not once the engine has broken."""
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

    async def begin(
        self, make: Callable[[], AnswerPlan], timeout: float | None, *, size: int, facts: dict[str, Any]
    ) -> Answers:
        """Plan a request of `size` bytes and hand the plan to the engine; both add to `facts` for the log line.

        Raises a `Fault` if the request times out before it reaches the model's thread.
        """
        limit = self.settings.limit(timeout)
        return await _within(limit, self._begin(make, limit, size, facts))

    async def _begin(self, make: Callable[[], AnswerPlan], limit: float, size: int, facts: dict[str, Any]) -> Answers:
        loop = asyncio.get_running_loop()
        began = loop.time()
        plan = await self.read(make, size)
        if (left := limit - (loop.time() - began)) <= 0:
            raise timed_out(limit)
        facts |= {"prompt_tokens": plan.prompt_tokens, "answers": len(plan.requests), "tokens": 0}
        if self.settings.log_prompts:
            facts["prompts"] = [self.llm.tokenizer.decode(item.prompt) for item in plan.requests[:: plan.n]]

        def observe(ended: Finished | EngineError) -> None:
            self.metrics.observe(ended)
            if isinstance(ended, Finished):
                facts["tokens"] += ended.stats.tokens
                if self.settings.log_prompts:
                    facts.setdefault("texts", []).append(ended.text)

        requests = [replace(request, timeout=left) for request in plan.requests]
        streams = await self.engine.submit(requests, most_unread=MOST_UNREAD)
        return Answers(plan, streams, observe=observe, fault=functools.partial(self.stream_fault, facts))

    async def work(self, check: Callable[[], object], function: Callable[[], T], *, size: int) -> T:
        """Check a request of `size` bytes, then call `function`, which runs forward passes, in the model's thread.

        Raises a `Fault` if the two take longer than a request may; the thread then stops before its next forward pass.
        """

        async def checked() -> T:
            await self.read(check, size)
            return await self.engine.run(function)

        return await _within(self.settings.timeout, checked())

    async def score(self, prompts: Callable[[], Prompts], timeout: float | None, *, size: int) -> Scores:
        """Read the prompts of a request of `size` bytes, then score them together with those of other requests.

        Raises a `Fault` if this takes longer than the request's `timeout`, or than any may.
        """

        async def scored() -> Scores:
            return await self._scoring.score(await self.read(prompts, size))

        return await _within(self.settings.limit(timeout), scored())

    async def read(self, function: Callable[[], T], size: int) -> T:
        """Call `function`, which reads a request of `size` bytes, in a thread; raises as `until_shutdown` does."""
        return await self.until_shutdown(self.threads.read(function, size))

    async def until_shutdown(self, work: Awaitable[T]) -> T:
        """Await `work`; cancel it and raise a `Fault` once the server is stopping and the grace period is over."""
        limit = asyncio.timeout_at(self._end)
        self._limits.add(limit)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise stopping() from None
            raise
        finally:
            self._limits.discard(limit)

    def explained(self, error: Exception) -> Exception:
        """The error, or that the server is stopping: an engine that was closed on purpose has not failed."""
        return stopping() if isinstance(error, EngineError) and self.phase == "stopping" else error

    def stream_fault(self, facts: dict[str, Any], request_id: str, error: Exception) -> Fault:
        """What the client of a stream that has failed is told. As its status was sent long before, the error is counted
        here, and named in the facts of the log line."""
        fault = client_fault(request_id, self.explained(error))
        self.count_refusal(fault)
        facts["error"] = fault.reason
        return fault

    def count_refusal(self, fault: Fault) -> None:
        """Count a refused request."""
        self.metrics.refused.labels(fault.reason).inc()

    def _engine_stats(self) -> EngineStats | None:
        return None if self._engine is None else self._engine.stats()


async def _within(seconds: float, work: Awaitable[T]) -> T:
    """Await `work`; cancel it and raise a `Fault` if it takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise timed_out(seconds) from None


def service_of(request: Request) -> Service:
    """The service that handles a request."""
    return request.app.state.service


def request_cost(request: Request, body: object) -> int:
    """The bytes of a request, for `Threads.read`. One with images counts as large, since images unpack to any size."""
    size = request.state.context.size
    if size < LARGE and hold_images(getattr(body, "messages", getattr(body, "input", None))):
        return LARGE
    return size


async def parse(request: Request, function: Callable[[], T]) -> T:
    """Call `function`, which parses a request's body: in a thread if it is large, since it may have a million parts."""
    if request.state.context.size < LARGE:
        return function()
    service = service_of(request)
    parsing = service.until_shutdown(service.threads.parse(function))
    return await until_disconnect(request, _within(service.settings.timeout, parsing))


async def read(request: Request, body: object, function: Callable[[], T]) -> T:
    """Call `function`, which reads a request's body, in a thread, until its client leaves or it times out."""
    service = service_of(request)
    reading = service.read(function, request_cost(request, body))
    return await until_disconnect(request, _within(service.settings.timeout, reading))


def fingerprint(service: Service) -> str:
    """OpenAI's system fingerprint: as long as it stays the same, equal seeds give equal answers."""
    model = service.llm.model
    return f"redraft-{redraft.__version__}-{str(model.dtype).removeprefix('torch.')}-{model.device.type}"
