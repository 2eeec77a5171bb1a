"""One request while it is answered: its segments, what its canvases did, and the events they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from redraft.cache.pages import PAGE
from redraft.cache.prefix import prefix_keys
from redraft.diffusion.records import Commit, DenoiseStep, FinishReason, TokenConfidence
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import rule_fields
from redraft.engine.canvas_lengths import canvas_positions, next_length
from redraft.engine.latency import steps_within
from redraft.engine.request import AnswerStats, Ending, Finished, OnEvent, Request
from redraft.engine.scheduler import Job, JobTurn
from redraft.engine.transcript import Transcript
from redraft.engine.work import Denoise, DenoiseResult, Encode, Segment
from redraft.settings import GenerationSettings

if TYPE_CHECKING:
    from redraft.diffusion.constraint import ConstraintState, TabledConstraint


@dataclass(slots=True)
class Answer:
    """A request's progress. `budget` is the step cap of the current canvas; times are by the engine's clock."""

    request: Request
    job: Job
    transcript: Transcript
    on_event: OnEvent
    eos_ids: tuple[int, ...]
    canvas_length: int
    added: float
    started: float | None = None
    first_commit: float | None = None
    ended: Ending | None = None
    budget: int = 0
    steps: list[int] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    tokens: list[TokenConfidence] = field(default_factory=list)
    _committing: tuple[int, ...] = ()
    _draft: NDArray[np.integer] = field(default_factory=lambda: np.empty(0, np.int64))
    _settled: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _deadline: float | None = None
    _constraint: ConstraintState | None = None
    _canvas_constraint: TabledConstraint | None = None

    @classmethod
    def begin(
        cls,
        request: Request,
        transcript: Transcript,
        on_event: OnEvent,
        eos_ids: tuple[int, ...],
        canvas_length: int,
        added: float,
    ) -> Answer:
        """A fresh answer and its job. `canvas_length` is the model's, for settings that name none."""
        settings = request.settings
        canvas_length = settings.canvas_length or canvas_length
        first = next_length(settings, canvas_length, settings.max_tokens)
        job = Job(
            request_id=request.request_id,
            prompt_length=len(request.prompt),
            positions=len(request.prompt) + canvas_positions(settings, canvas_length),
            length=first,
            keys=prefix_keys(request.prompt, request.adapter, request.images),
            images=[image.positions for image in request.images],
        )
        answer = cls(request, job, transcript, on_event, eos_ids, canvas_length, added, budget=settings.steps)
        answer._constraint = None if request.constraint is None else request.constraint.begin()
        answer._constrain(first)
        return answer

    @property
    def settings(self) -> GenerationSettings:
        return self.request.settings

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not encoded again."""
        return self.job.table.reused * PAGE

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be written under max_tokens."""
        return self.settings.max_tokens - len(self.transcript.tokens)

    @property
    def canvases_left(self) -> int:
        """Canvases that may still be denoised, including the current one."""
        return 1 + -(-max(0, self.tokens_left - self.job.length) // self.canvas_length)

    def pick_steps(self, now: float, forward_seconds: float | None) -> None:
        """With a latency budget, set the step cap to what fits in the canvas' share of the remaining time."""
        budget = self.settings.latency_budget_ms
        if budget is None or forward_seconds is None:
            return
        step = self.job.step
        if step == 0 or self._deadline is None:
            self._deadline = now + (self.added + budget / 1e3 - now) / self.canvases_left
        self.budget = step + steps_within(self._deadline - now, forward_seconds, self.settings.steps - step)

    def segments(self, turn: JobTurn) -> list[Segment]:
        """The turn as work for the runner. Tokens come from the prompt, or from the canvas being committed."""
        job, work = turn.job, list[Segment]()
        for first, stop in turn.chunks():
            tokens = self._committing if job.commit else self.request.prompt[first:stop]
            images = tuple(image for image in self.request.images if first <= image.start < stop)
            work.append(
                Encode(slot=job.slot, start=first, token_ids=tokens, images=images, adapter=self.request.adapter)
            )
        if turn.denoise:
            work.append(self._denoise(turn.encode[1]))
        return work

    def record(self, result: DenoiseResult, step: int) -> DenoiseStep:
        """The step that was just taken, as a record."""
        return DenoiseStep(
            request_id=self.request.request_id,
            canvas_index=self.job.canvas_index,
            step=step,
            canvas=tuple(result.canvas.tolist()),
            argmax_canvas=tuple(result.argmax_canvas.tolist()),
            accepted=tuple(result.accepted.tolist()),
            entropy=tuple(result.entropy.tolist()),
            temperature=self._temperature(step),
            converged=result.converged,
        )

    def follow(self, result: DenoiseResult, step: int) -> None:
        """Note since which step each position of the draft has held its token."""
        now = result.argmax_canvas
        self._settled = np.zeros(len(now), np.int64) if step == 0 else np.where(now == self._draft, self._settled, step)
        self._draft = now

    def commit(self, result: DenoiseResult, now: float) -> Commit:
        """The canvas is done: take its tokens up to the first end-of-text, and never more than max_tokens."""
        canvas = tuple(result.argmax_canvas.tolist())
        end = next((i for i, token in enumerate(canvas) if token in self.eos_ids), None)
        room = self.tokens_left
        taken = canvas[:end][:room]
        if self._constraint is not None:
            self._constraint.advance(taken)
        new = self.transcript.add(taken, self._reason(len(taken), end, room))
        self.tokens += self._confidence(result, len(taken))
        self._committing = canvas
        self.steps.append(self.job.step)
        self.budgets.append(self.budget)
        self.ended = new.finish_reason
        self.first_commit = now if self.first_commit is None else self.first_commit
        return self._new_commit(new.token_ids, new.text, new.finish_reason)

    def break_off(self, ending: Ending) -> list[Commit]:
        """End the answer mid-canvas; commits text that was held back as a possible stop string, if there is any."""
        self.ended = ending
        new = self.transcript.close()
        return [self._new_commit(new.token_ids, new.text, None)] if new.text or new.token_ids else []

    def go_on(self) -> int:
        """Prepare the canvas after the last committed one; returns its length."""
        length = next_length(self.settings, self.canvas_length, self.tokens_left)
        self._constrain(length)
        return length

    def finished(self, now: float) -> Finished:
        """The last event. If the answer was broken off, it holds what had been committed."""
        assert self.ended is not None
        token_ids = tuple(self.transcript.tokens)
        steps, budgets = self.steps, self.budgets
        if self.job.step and self.ended in ("cancelled", "timeout"):  # mid-canvas
            steps, budgets = [*steps, self.job.step], [*budgets, self.budget]
        stats = AnswerStats(
            canvases=len(steps),
            steps=tuple(steps),
            forwards=sum(steps),
            tokens=len(token_ids),
            seconds=now - self.added,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            queue_seconds=(now if self.started is None else self.started) - self.added,
            first_commit_seconds=None if self.first_commit is None else self.first_commit - self.added,
            step_budgets=tuple(budgets),
        )
        return Finished(
            request_id=self.request.request_id,
            finish_reason=self.ended,
            stop_text=self.transcript.stop_text,
            text=self.transcript.text,
            token_ids=token_ids,
            tokens=tuple(self.tokens[: len(token_ids)]),
            stats=stats,
        )

    def _new_commit(self, token_ids: tuple[int, ...], text: str, finish_reason: FinishReason | None) -> Commit:
        return Commit(
            request_id=self.request.request_id,
            canvas_index=self.job.canvas_index,
            token_ids=token_ids,
            text=text,
            finish_reason=finish_reason,
        )

    def _constrain(self, length: int) -> None:
        """Ask the constraint what the next canvas may hold."""
        if self._constraint is not None:
            self._canvas_constraint = self._constraint.canvas(length, self.tokens_left)

    def _denoise(self, start: int) -> Denoise:
        settings, job = self.settings, self.job
        return Denoise(
            slot=job.slot,
            start=start,
            length=job.length,
            canvas_index=job.canvas_index,
            step=job.step,
            seed=settings.seed,
            adapter=self.request.adapter,
            temperature=self._temperature(job.step),
            last=job.step + 1 >= self.budget,
            **rule_fields(settings),
            eos_ids=self.eos_ids,
            not_first=self.eos_ids if settings.forbid_empty and job.canvas_index == 0 else (),
            constraint=self._canvas_constraint,
            logprobs=settings.logprobs,
        )

    def _temperature(self, step: int) -> float:
        settings = self.settings
        return temperature(step, t_min=settings.t_min, t_max=settings.t_max, steps=settings.temperature_steps)

    def _reason(self, taken: int, end: int | None, room: int) -> FinishReason | None:
        """Why the answer ends with a canvas of which `taken` tokens fit in `room`; None if it goes on.

        `end` is where the canvas has its first end-of-text. Stop strings are not looked for.
        """
        if taken == end:
            return "stop"
        if taken < room:
            return None
        return "stop" if self._constraint is not None and self._constraint.closed else "length"

    def _confidence(self, result: DenoiseResult, count: int) -> list[TokenConfidence]:
        top, settled = result.top, self._settled.tolist()
        columns = zip(result.argmax_canvas[:count].tolist(), result.entropy.tolist(), settled, strict=False)
        if top is None:
            return [TokenConfidence(*token) for token in columns]
        likely = (tuple(zip(*both, strict=True)) for both in zip(top.token_ids, top.logprobs, strict=True))
        return [
            TokenConfidence(*token, logprob, pairs)
            for token, logprob, pairs in zip(columns, top.chosen, likely, strict=False)
        ]
