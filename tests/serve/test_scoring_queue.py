"""Requests that wait to be scored: which share a pass, and what becomes of the others when one leaves or fails."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import redraft
from redraft.diffusion.causal import TokenScore
from redraft.engine.async_engine import AsyncEngine
from redraft.errors import EngineError
from redraft.llm import LLM
from redraft.scoring import TOKENS_AT_ONCE, Pair, Scoring, score_tokens
from redraft.serve.scoring_queue import Prompts, Scores, ScoringQueue
from redraft.text.placing import EncodedPrompt

MODEL: Any = object()


def prompts(*lengths: int, model: Any = MODEL, top: int = 1) -> Prompts:
    """Texts of these lengths, of which each is one number."""
    return Prompts(model=model, pairs=[(EncodedPrompt((2,)), (length,) * (length - 1)) for length in lengths], top=top)


class Engine:
    """Scores a batch when it is told to; a token's log-probability is its id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[int]] = []
        self.left = 0
        self.refusal: Exception | None = None
        self._gate = asyncio.Semaphore(0)
        monkeypatch.setattr("redraft.serve.scoring_queue.scoring", self._score)

    def go_on(self, batches: int = 1) -> None:
        for _ in range(batches):
            self._gate.release()

    async def run(self, function: Callable[[], Any]) -> Any:
        if self.refusal is not None:
            raise self.refusal
        try:
            await self._gate.acquire()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return function()

    def _score(self, model: Any, pairs: Sequence[Pair], top: int) -> Scoring:
        """Pauses before texts of 100 and more."""
        if any(len(text) >= 99 for _, text in pairs):
            self.batches.append([])
            yield
        self.batches.append([len(text) + 1 for _, text in pairs])
        if len(pairs) > 1 and any(13 in text for _, text in pairs):
            raise RuntimeError("too much")
        if any(text[:1] == (13,) for _, text in pairs):
            raise ValueError("13")
        return [[TokenScore(token, float(token)) for token in text] for _, text in pairs]


def check(scores: Scores, *lengths: int) -> None:
    assert [[token.logprob for token in text] for text in scores] == [[float(n)] * (n - 1) for n in lengths]


def begin(queue: ScoringQueue, *asked: Prompts) -> list[asyncio.Task[Scores]]:
    return [asyncio.create_task(queue.score(each)) for each in asked]


def test_those_who_wait_are_scored_together_and_get_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        engine = Engine(monkeypatch)
        (first,) = begin(queue := ScoringQueue(engine.run), prompts(4))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = begin(queue, prompts(5, 6), prompts(7), prompts(8))
        engine.go_on(2)
        check(await first, 4)
        check(await others[0], 5, 6)
        check(await others[1], 7)
        check(await others[2], 8)
        assert engine.batches == [[4], [5, 6, 7, 8]]
        engine.go_on()
        check(await queue.score(prompts(9)), 9)

    asyncio.run(body())


def test_a_batch_has_so_many_tokens_and_one_model_and_one_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit comes next, whatever came after it; a request that never fits is a batch of its own."""

    async def body() -> None:
        engine, most = Engine(monkeypatch), TOKENS_AT_ONCE
        queue = ScoringQueue(engine.run)
        tasks = begin(
            queue, prompts(most - 20), prompts(21), prompts(3 * most), prompts(6, top=5), prompts(7, model=object()),
            prompts(20), prompts(8, top=5),
        )  # fmt: skip
        engine.go_on(100)
        await asyncio.gather(*tasks)
        assert engine.batches == [[], [most - 20, 20], [21], [], [3 * most], [6, 8], [7]]

    asyncio.run(body())


def test_fp8_on_a_cpu_is_scored_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a row's bits follow the number of rows."""
    model = redraft.load("tiny", device="cpu", quantization="fp8").model

    async def body() -> None:
        engine = Engine(monkeypatch)
        tasks = begin(ScoringQueue(engine.run), prompts(4, model=model), prompts(5, 6, model=model))
        engine.go_on(2)
        check(await tasks[0], 4)
        check(await tasks[1], 5, 6)
        assert engine.batches == [[4], [5, 6]]

    asyncio.run(body())


def test_a_large_request_is_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is scored next waits for all of them, and for none of a request that has left."""

    async def body() -> None:
        engine = Engine(monkeypatch)
        large, leaving, small = begin(ScoringQueue(engine.run), prompts(100), prompts(101, top=2), prompts(4, top=3))
        engine.go_on()
        await asyncio.sleep(0.01)
        assert engine.batches == [[]]
        engine.go_on()
        check(await large, 100)
        engine.go_on()
        await asyncio.sleep(0.01)
        assert engine.batches == [[], [100], []]
        leaving.cancel()
        await asyncio.sleep(0.01)
        assert engine.left == 1
        engine.go_on()
        check(await small, 4)
        assert engine.batches == [[], [100], [], [4]]

    asyncio.run(body())


def test_other_calls_of_the_engine_get_their_turn_between_parts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers that the request has in one go."""
    asked = Prompts(model=llm.model, pairs=[(EncodedPrompt((2,)), (7,) * n) for n in (4, 5, 300, 310)], top=2)
    expected, order = score_tokens(llm.model, asked.pairs, 2), list[str]()
    begun, posted, together = threading.Event(), threading.Event(), redraft.scoring._together

    def slowly(*given: Any) -> Any:
        order.append("part")
        begun.set()
        assert posted.wait(60)
        return together(*given)

    async def body() -> None:
        engine = AsyncEngine(llm.new_engine())
        (task,) = begin(ScoringQueue(engine.run), asked)
        await asyncio.to_thread(begun.wait)
        other = asyncio.create_task(engine.run(lambda: order.append("other")))
        await asyncio.sleep(0)
        posted.set()
        await other
        assert await task == expected
        await engine.close(drain=False)

    monkeypatch.setattr("redraft.scoring._together", slowly)
    asyncio.run(body())
    assert order == ["part", "other", "part"]


def test_who_leaves_costs_nobody_else_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        engine = Engine(monkeypatch)
        queue = ScoringQueue(engine.run)
        tasks = begin(queue, prompts(4), prompts(5), prompts(6))
        await asyncio.sleep(0.01)
        tasks[0].cancel()  # of a batch that goes on
        waiting = begin(queue, prompts(7), prompts(8))
        await asyncio.sleep(0.01)
        waiting[0].cancel()  # before its batch
        await asyncio.sleep(0.01)
        assert engine.left == 0
        engine.go_on(2)
        check(await tasks[1], 5)
        check(await tasks[2], 6)
        check(await waiting[1], 8)
        assert engine.batches == [[4, 5, 6], [8]]

    asyncio.run(body())


def test_a_batch_for_which_nobody_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        engine = Engine(monkeypatch)
        queue = ScoringQueue(engine.run)
        tasks = begin(queue, prompts(4), prompts(5))
        await asyncio.sleep(0.01)
        (last,) = begin(queue, prompts(6))
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0.01)
        assert engine.left == 1
        engine.go_on()
        check(await last, 6)
        assert engine.batches == [[6]]

    asyncio.run(body())


def test_what_several_cannot_have_together_each_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an error is that of its own request, and nobody is overtaken."""

    async def body() -> None:
        engine = Engine(monkeypatch)
        queue = ScoringQueue(engine.run)
        tasks = begin(queue, prompts(4), prompts(13), prompts(5))
        await asyncio.sleep(0.01)
        (late,) = begin(queue, prompts(6))
        engine.go_on(100)
        check(await tasks[0], 4)
        with pytest.raises(ValueError, match="13"):
            await tasks[1]
        check(await tasks[2], 5)
        check(await late, 6)
        assert engine.batches == [[4, 13, 5], [4], [13], [5], [6]]

    asyncio.run(body())


def test_an_engine_that_takes_nothing_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        engine = Engine(monkeypatch)
        engine.refusal = EngineError("The engine has stopped.")
        for result in await asyncio.gather(
            *begin(ScoringQueue(engine.run), prompts(4), prompts(5)), return_exceptions=True
        ):
            assert result is engine.refusal

    asyncio.run(body())
