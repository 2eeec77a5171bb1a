"""`/v1/completions`: turns answers into OpenAI's bodies and chunks of plain text."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redraft.diffusion.records import Commit
from redraft.engine.request import AnswerStats, Finished
from redraft.engine.transcript import first_stop
from redraft.filling.api import fill_settings, longest_filling
from redraft.filling.result import FillResult
from redraft.serve.answers import Answers
from redraft.serve.http import sse_event
from redraft.serve.openai_common import completion_logprobs, extras, finish_reason, usage, usage_of
from redraft.serve.planning import AnswerPlan, Planner, rename_fields
from redraft.serve.scored_prompts import ScoredPrompt, read_prompts, text_of
from redraft.serve.service import Service
from redraft.serve.shapes.completions import CompletionRequest
from redraft.settings import GenerationSettings, resolve_settings
from redraft.text.tokenizer import Tokenizer


def plan_completion(planner: Planner, body: CompletionRequest) -> AnswerPlan:
    """Plan what a request without a suffix asks for; raises before any compute."""
    planner = planner.for_model(body.model)
    prompts = read_prompts(planner, body)
    with rename_fields(body.constraint_names):
        return planner.plan(
            prompts,
            places=body.places(),
            settings=body.settings() | {"max_tokens": body.max_tokens, "stop": body.stop, "logprobs": body.logprobs},
            constraints=body.constraints(),
            n=body.n or 1,
            seed=body.seed,
            temperature=body.temperature,
            timeout=body.timeout,
        )


@dataclass(slots=True)
class CompletionWriter:
    """Writes one response. All of its chunks have the same id and time.

    `score` returns the prompts' log-probabilities, for a request that asks for them.
    """

    body: CompletionRequest
    tokenizer: Tokenizer
    fingerprint: str
    request_id: str
    score: Callable[[], Awaitable[list[ScoredPrompt]]]
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        ended: dict[int, Finished] = {}
        try:
            echoes = await self._echoes(answers.plan)
            async for index, event in answers.events():
                if isinstance(event, Finished):
                    ended[index] = event
        finally:
            await answers.close()
        in_order = [ended[index] for index in range(len(ended))]
        choices = [
            _joined(echo, self._choice(i, f.text, f, answers.plan.requests[i].settings, after=echo["text"]))
            for i, (echo, f) in enumerate(zip(echoes, in_order, strict=True))
        ]
        return self._envelope() | {"choices": choices, "usage": usage(answers.plan, in_order)}

    async def events(self, answers: Answers) -> AsyncGenerator[str]:
        """Yield the events of a streamed answer; a failure along the way also becomes an event."""
        ended: dict[int, Finished] = {}
        try:
            echoes = await self._echoes(answers.plan)
            for echo in echoes if self.body.echo else ():
                yield self._chunk(echo)
            async for index, event in answers.events():
                if isinstance(event, Commit) and event.text:
                    yield self._chunk(self._choice(index, event.text))
                elif isinstance(event, Finished):
                    ended[index], settings = event, answers.plan.requests[index].settings
                    yield self._chunk(self._choice(index, "", event, settings, after=echoes[index]["text"]))
            if self.body.wants_usage:
                last = {"choices": [], "usage": usage(answers.plan, [ended[i] for i in range(len(ended))])}
                yield sse_event(self._envelope() | last)
            yield sse_event("[DONE]")
        except Exception as error:
            yield sse_event(answers.fault(self.request_id, error).openai())

    async def filled(self, service: Service, size: int) -> dict[str, Any]:
        """Return the body of a filled hole, for a request of `size` bytes; `Service.work` runs the filling."""
        body, began = self.body, time.perf_counter()
        planner = service.planner.for_model(body.model)
        assert isinstance(body.prompt, str)
        assert body.suffix is not None
        keywords, stop = _fill_keywords(planner, body), resolve_settings(planner.llm.defaults, stop=body.stop).stop
        settings = fill_settings(planner.llm.defaults, keywords)
        check = functools.partial(planner.check_text, {"prompt": body.prompt, "suffix": body.suffix})
        fill = functools.partial(planner.llm.fill, body.prompt, body.suffix, **keywords)
        with rename_fields(body.constraint_names):
            result = await service.work(check, fill, size=size)
        ended = _ended(result, settings, stop, time.perf_counter() - began)
        choice = self._choice(0, ended.text, ended, settings)
        usage = usage_of(ended.stats.prompt_tokens, ended.stats.tokens, ended.stats.cached_tokens)
        return self._envelope() | {"choices": [choice], "usage": usage}

    async def scored(self) -> dict[str, Any]:
        """Return the body of prompts that are only scored, with the likeliest next token if one is asked for."""
        scored = await self.score()
        choices = [one.choice(index) for index, one in enumerate(scored)]
        counts = usage_of(sum(one.read for one in scored), sum(one.written for one in scored), 0)
        return self._envelope() | {"choices": choices, "usage": counts}

    async def whole_events(self, whole: dict[str, Any]) -> AsyncGenerator[str]:
        """Stream a body whose choices are known as a whole, a filled hole or scored prompts: each is one chunk."""
        for choice in whole["choices"]:
            yield self._chunk(choice)
        if self.body.wants_usage:
            yield sse_event(self._envelope() | {"choices": [], "usage": whole["usage"]})
        yield sse_event("[DONE]")

    async def _echoes(self, plan: AnswerPlan) -> list[dict[str, Any]]:
        """What comes before each answer: its prompt, scored if that is asked for, or nothing."""
        texts, logprobs = [""] * len(plan.requests), [None] * len(plan.requests)
        if self.body.echo:
            texts = [text_of(prompt, self.tokenizer) for prompt in self.body.prompts() for _ in range(plan.n)]
        if self.body.is_scored:
            logprobs = [prompt.logprobs for prompt in await self.score() for _ in range(plan.n)]
        return [self._choice(i, text) | {"logprobs": logprobs[i]} for i, text in enumerate(texts)]

    def _choice(
        self,
        index: int,
        text: str,
        ended: Finished | None = None,
        settings: GenerationSettings | None = None,
        *,
        after: str = "",
    ) -> dict[str, Any]:
        """A choice; one that has `ended` after an echo says so, with what was asked for."""
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
        if ended is None or settings is None:
            return choice
        if self.body.logprobs is not None:
            choice["logprobs"] = completion_logprobs(ended, self.tokenizer, len(after))
        more = extras(ended, settings, self.tokenizer, confidence=self.body.confidence)
        return choice | {"finish_reason": finish_reason(ended), "redraft": more}

    def _envelope(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.body.model,
                "system_fingerprint": self.fingerprint}  # fmt: skip

    def _chunk(self, choice: dict[str, Any]) -> str:
        chunk = self._envelope() | {"choices": [choice]}
        return sse_event(chunk | {"usage": None} if self.body.wants_usage else chunk)


def _joined(echo: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The choice of an answer with what comes before it."""
    lists = answer["logprobs"]
    if echo["logprobs"] is not None:
        lists = {name: before + lists[name] for name, before in echo["logprobs"].items()}
    return answer | {"text": echo["text"] + answer["text"], "logprobs": lists}


def _ended(result: FillResult, settings: GenerationSettings, stop: Sequence[str], seconds: float) -> Finished:
    """The filling of one hole as an answer that took `seconds` with reading and waiting, cut before a `stop` string.

    A newline in such a string is also found where the text around the hole made it another line end.
    Its prompt is the text around the hole that the model saw.
    """
    (filling,) = result.fillings
    spelled = {word.replace("\n", end): word for end in ("\r\n", "\r", "\n") for word in stop}
    at, found = first_stop(filling.text, tuple(spelled)) or (None, "")
    begins = (start for start, _ in filling.offsets)
    tokens = tuple(token for token, start in zip(filling.tokens, begins, strict=True) if at is None or start < at)
    stats = AnswerStats(
        canvases=1, steps=(filling.steps,), forwards=filling.forwards, tokens=len(tokens), seconds=seconds,
        prompt_tokens=1 + filling.before + filling.behind, cached_tokens=0, queue_seconds=seconds - result.seconds,
        first_commit_seconds=seconds, step_budgets=(settings.steps,),
    )  # fmt: skip
    return Finished(
        request_id=0, finish_reason="stop", stop_text=spelled.get(found), text=filling.text[:at],
        token_ids=tuple(token.token_id for token in tokens), tokens=tokens, stats=stats,
    )  # fmt: skip


def _fill_keywords(planner: Planner, body: CompletionRequest) -> dict[str, Any]:
    """The arguments of `LLM.fill`. `max_tokens` is an upper bound, so more than a canvas can hold is not an error."""
    settings, most = body.settings(), body.max_tokens
    if most is not None:
        most = min(most, longest_filling(body.canvas_length or planner.llm.model.config.canvas_length))
    keywords = settings | planner.temperatures(settings, body.temperature) | {"max_tokens": most, "seed": body.seed}
    return body.constraints() | {name: value for name, value in keywords.items() if value is not None}
