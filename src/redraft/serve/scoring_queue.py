"""Prompts of several requests that wait to be scored are scored together: evaluation harnesses send many at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from redraft.diffusion.causal import TokenScore
from redraft.model import Model
from redraft.model.packed.transformer import PackedTransformer
from redraft.scoring import TOKENS_AT_ONCE, Pair, go_on, scoring

T = TypeVar("T")
Scores = list[list[TokenScore]]


class Run(Protocol):
    """`AsyncEngine.run`."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """What one request wants scored: see `redraft.scoring.score_tokens`."""

    model: Model
    pairs: Sequence[Pair]
    top: int

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return sum(len(prompt) + len(text) for prompt, text in self.pairs)

    def joins(self, other: Prompts) -> bool:
        """Whether one pass can score both without changing a bit.

        With another `top`, equally likely tokens might come in another order. Packed weights on a CPU, which are in
        FP8, have products that round by their number of rows.
        """
        exact = not isinstance(self.model, PackedTransformer) or self.model.device.type != "cpu"
        return exact and self.model is other.model and self.top == other.top


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request's prompts, and where their scores will be. It shares a pass with others unless `alone`."""

    prompts: Prompts
    scores: asyncio.Future[Scores] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    alone: bool = False


class ScoringQueue:
    """Scores what requests ask for in batches of `TOKENS_AT_ONCE`, first come, first served; a larger request is one
    batch. Scores are those of each request by itself. All methods run on the event loop.
    """

    def __init__(self, run: Run) -> None:
        """`run` is the engine's: texts that share forwards are one call, so that other calls get their turn between."""
        self._run = run
        self._waiting: deque[_Waiting] = deque()
        self._working: asyncio.Task[None] | None = None

    async def score(self, prompts: Prompts) -> Scores:
        """The scores of each pair. If the caller is cancelled, they are not computed any more, or not waited for."""
        waiting = _Waiting(prompts)
        self._waiting.append(waiting)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await waiting.scores

    async def _work(self) -> None:
        """Score batch after batch until nobody waits."""
        while batch := self._next_batch():
            call = asyncio.ensure_future(self._scored([waiting.prompts for waiting in batch]))
            for waiting in batch:
                waiting.scores.add_done_callback(partial(_give_up, call, batch))
            await asyncio.wait((call,))
            self._deliver(batch, call)

    async def _scored(self, several: Sequence[Prompts]) -> list[Scores]:
        """The scores of one batch."""
        first, pairs = several[0], [pair for prompts in several for pair in prompts.pairs]
        work = scoring(first.model, pairs, first.top)
        while (found := await self._run(partial(go_on, work))) is None:
            pass
        scores = iter(found)
        return [[next(scores) for _ in prompts.pairs] for prompts in several]

    def _next_batch(self) -> list[_Waiting]:
        """Take the first in the queue, and those behind it that can be scored with it; empty if nobody waits."""
        batch, left, tokens = list[_Waiting](), deque[_Waiting](), 0
        for waiting in self._waiting:
            prompts = waiting.prompts
            if waiting.scores.done():  # its caller has gone
                continue
            joins = not batch or (not batch[0].alone and not waiting.alone and prompts.joins(batch[0].prompts))
            if joins and (not batch or tokens + prompts.tokens <= TOKENS_AT_ONCE):
                batch.append(waiting)
                tokens += prompts.tokens
            else:
                left.append(waiting)
        self._waiting = left
        return batch

    def _deliver(self, batch: Sequence[_Waiting], call: asyncio.Future[list[Scores]]) -> None:
        """Hand out what a call returned or raised. What several could not have together, each is to have alone."""
        still = [(i, waiting) for i, waiting in enumerate(batch) if not waiting.scores.done()]
        if call.cancelled():  # nobody was left
            return
        if (error := call.exception()) is None:
            for i, waiting in still:
                waiting.scores.set_result(call.result()[i])
        elif len(batch) == 1:
            for _, waiting in still:
                waiting.scores.set_exception(error)
        else:
            for _, waiting in reversed(still):
                waiting.alone = True
                self._waiting.appendleft(waiting)


def _give_up(call: asyncio.Future[list[Scores]], batch: Sequence[_Waiting], _: object) -> None:
    """End a call for which nobody waits any more."""
    if all(waiting.scores.done() for waiting in batch):
        call.cancel()
