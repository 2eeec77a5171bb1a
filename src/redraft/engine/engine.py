"""The synchronous engine: requests in, events out, one forward per `step`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from redraft.checks import require_type
from redraft.engine.answer import Answer
from redraft.engine.canvas_lengths import next_length
from redraft.engine.iterators import Iterators
from redraft.engine.latency import StepClock
from redraft.engine.request import Ending, Event, Failed, Finished, OnEvent, Request, check_distinct
from redraft.engine.scheduler import ForwardPlan, Scheduler
from redraft.engine.settings import EngineSettings
from redraft.engine.stats import Counters, EngineStats
from redraft.engine.transcript import Transcript
from redraft.engine.work import Denoise, DenoiseResult, Runner, Segment
from redraft.errors import EngineError, InputError, NotFiniteError, PromptError, QueueFullError, SettingError
from redraft.model.placement import without_autocast
from redraft.text.marks import Decoder
from redraft.text.prompt import thought_open

_log = logging.getLogger(__name__)


class Engine:
    """Writes many answers at once. Only `now`, `answer`, `rehearse` and `stats` are thread-safe; see `AsyncEngine`.

    canvas_length  the model's, for requests that do not set one
    adapters       names that requests may ask for
    weights        returns something that changes whenever the model's weights do; prefixes are then forgotten
    clock          in seconds
    """

    def __init__(
        self,
        runner: Runner,
        decoder: Decoder,
        *,
        vocab_size: int,
        canvas_length: int,
        eos_ids: tuple[int, ...],
        settings: EngineSettings | None = None,
        adapters: Collection[str] = (),
        weights: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings or EngineSettings()
        self.runner, self.decoder = runner, decoder
        self.scheduler = Scheduler(runner.limits, self.settings)
        self.counters = Counters()
        self._vocab_size, self._canvas_length, self._eos_ids = vocab_size, canvas_length, eos_ids
        self._adapters = adapters
        self._weights, self._seen_weights = weights, weights()
        self._clock, self._step_clock = clock, StepClock()
        self._open: dict[int, Answer] = {}
        self._timed: dict[int, Answer] = {}  # those of them that have a timeout
        self._ahead: tuple[ForwardPlan, list[Segment]] | None = None
        self._iterators = Iterators()

    def now(self) -> float:
        """The engine's clock, in seconds; any thread may ask."""
        return self._clock()

    def add(self, request: Request, on_event: OnEvent, *, since: float | None = None) -> None:
        """Queue a request; see `add_together`."""
        self.add_together([request], [on_event], since=since)

    def add_together(
        self, requests: Sequence[Request], on_events: Sequence[OnEvent], *, since: float | None = None
    ) -> None:
        """Queue several requests or none, and tell the events of each to its function of `on_events`.

        Their time runs from `since` (by `now`), or from this moment. Raises an `InputError` for what can never be
        answered (with the numbers), and `QueueFullError` when too many are waiting. While nobody waits, there is room
        for as many as there are slots and places in the queue, even if they must all wait for pages: so whoever tries
        again gets in at last. Refused requests leave nothing behind.
        """
        started = self.now() if since is None else since
        try:
            self._check_queue(len(requests))
            check_distinct(requests)
            answers = [self.new_answer(*one, started) for one in zip(requests, on_events, strict=True)]
        except (InputError, QueueFullError):
            self.counters.refused += 1
            raise
        for answer in answers:
            self.open(answer)
            self.queue(answer)

    def answer(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Check all requests at once, then answer them; closing the iterator cancels what is left.

        Several such iterators may be open on one engine, even in several threads; each gets its own events. Requests
        that do not fit in the queue are queued as others end. If a request breaks, its iterator raises the
        `EngineError`. An exception in a forward ends all requests that hold a slot, since there is no telling how far
        their canvases got: the iterator that ran it raises it, and their other iterators raise an `EngineError`. An
        iterator whose requests all wait goes on. Ctrl-C waits for the end of a forward that serves others too, and ends
        only the iterator that it meets; a second one does not wait. An iterator raises a `SettingError` on starting
        if one of its request ids is already being answered.
        """
        return self._iterators.answer(self, requests)

    def rehearse(self, request: Request) -> None:
        """Compile what a request's constraint needs on a GPU: in its first forward, all others would wait for that.

        Any thread may call it.

        Raises `ConstraintError` if `max_tokens` is too small for the constraint.
        """
        constraint, settings = request.constraint, request.settings
        length = next_length(settings, settings.canvas_length or self._canvas_length, settings.max_tokens)
        if constraint is not None and length <= self.runner.limits.canvas:
            constraint.check(settings.max_tokens)
            self.runner.rehearse(constraint, length, settings.max_tokens, biased=bool(settings.logit_bias))

    def step(self) -> None:
        """Run one forward of whatever is ready, and deliver what happened. After an exception, call `fail_running`."""
        started = self._clock()
        self._expire(started)
        self._admit(started)
        plan = self.scheduler.plan()
        if not plan.turns:
            return
        work = self._work(plan, started)
        planned = self._clock()
        self.runner.capture(work)
        before = self._clock()
        with without_autocast():
            results = self.runner.run(work, partial(self._look_ahead, plan, work))
        after = self._clock()
        self._record_forward(plan, after - before)
        self._process_results(plan, results, after)
        self.counters.schedule_seconds += (planned - started) + (self._clock() - after)

    def cancel(self, request_id: int) -> None:
        """End a request now; its pages return at once. Unknown and ended ids are ignored."""
        if (answer := self._open.get(request_id)) is not None:
            self._break_off(answer, "cancelled")

    def cancel_all(self, request_ids: Iterable[int]) -> None:
        """Cancel several. If that fails for one, it has still ended, and the others are cancelled too."""
        with ExitStack() as rest:
            for request_id in request_ids:
                rest.callback(self.cancel, request_id)

    def fail_all(self, request_ids: Iterable[int], error: EngineError) -> None:
        """End several with this error, as `cancel_all` does."""
        with ExitStack() as rest:
            for request_id in request_ids:
                rest.callback(self._end_failed, self._open[request_id], error)

    def fail_running(self, error: BaseException) -> list[int]:
        """After `step` has raised this: end the requests that hold a slot, and return their ids.

        There is no telling how far their canvases got, or what is in their pages. Those that wait can go on.
        """
        running = list(self.scheduler.running)
        for job in self.scheduler.running.values():
            self.scheduler.distrust(job)
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        self.fail_all(running, EngineError(f"A forward failed with {reason}"))
        return running

    def new_answer(self, request: Request, on_event: OnEvent, since: float) -> Answer:
        """The answer for a request, not yet open. Raises what `add` raises, except for a full queue."""
        self._check(request)
        transcript = Transcript(
            self.decoder,
            request.settings.stop,
            chat=request.chat,
            reasoning_open=request.chat and thought_open(request.prompt, self.decoder),
        )
        answer = Answer.begin(request, transcript, on_event, self._eos_ids, self._canvas_length, since)
        self.scheduler.check(answer.job)
        return answer

    def check_id(self, request_id: int) -> None:
        """Raise `SettingError` for the id of a request that is open."""
        if request_id in self._open:
            raise SettingError(f"request_id {request_id} is already being answered.")

    def open(self, answer: Answer) -> None:
        """From now on an answer that `new_answer` has made can end, as others do; only once queued can it begin."""
        assert answer.request.request_id not in self._open
        self._open[answer.request.request_id] = answer
        if answer.request.timeout is not None:
            self._timed[answer.request.request_id] = answer

    def queue(self, answer: Answer) -> None:
        """Queue an open answer."""
        self.scheduler.add(answer.job)

    @property
    def open_ids(self) -> KeysView[int]:
        """Requests that have not ended: those being answered, in the queue, or waiting to be fed into it."""
        return self._open.keys()

    @property
    def queue_full(self) -> bool:
        """Whether as many requests are waiting as are allowed."""
        return len(self.scheduler.waiting) >= self.settings.max_waiting

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._open)

    def stats(self) -> EngineStats:
        """A snapshot of counters and page use; any thread may ask, and may meet the middle of a step."""
        return self.counters.snapshot(self.scheduler, self._step_clock, self._canvas_length)

    def _check_queue(self, count: int) -> None:
        """Raise `QueueFullError` or `SettingError` if there is no room for `count` requests, now or ever."""
        slots, most = self.scheduler.slots, self.settings.max_waiting
        if count > slots + most:
            sentence = f"These are {count} answers; there is room for at most {slots + most}, of which {most} may wait."
            raise SettingError(sentence, "n")
        if self._too_many(count):
            self._admit(self.now())  # some may already have room and not have been admitted yet
        if self._too_many(count):
            waiting = len(self.scheduler.waiting)
            rounds = waiting / slots
            raise QueueFullError(
                f"{waiting} requests are already waiting; the queue holds at most {most}.",
                retry_after=max(1.0, rounds * self.counters.mean_answer_seconds),
            )

    def _too_many(self, count: int) -> bool:
        """Whether some requests are waiting, and with `count` more it would be more than may."""
        waiting = len(self.scheduler.waiting)
        return waiting > 0 and waiting + count > self.settings.max_waiting

    def _check(self, request: Request) -> None:
        """Raise an `InputError` for what is wrong with a request itself, wherever there is room for it."""
        if not request.prompt:
            raise PromptError("The prompt is empty.", "prompt")
        low, high = min(request.prompt), max(request.prompt)
        if low < 0 or high >= self._vocab_size:
            bad = low if low < 0 else high
            raise PromptError(f"Token id {bad} is outside the vocabulary of {self._vocab_size}.", "prompt")
        self.check_id(request.request_id)
        if request.timeout is not None:
            require_type("timeout", request.timeout, int, float)
            if not request.timeout > 0:  # NaN fails every comparison
                raise SettingError(f"timeout is {request.timeout}; it must be above 0.", "timeout")
        if request.adapter is not None and request.adapter not in self._adapters:
            raise SettingError(
                f"There is no adapter {request.adapter!r}; there are {', '.join(self._adapters) or 'none'}."
            )
        length, most = request.settings.canvas_length or self._canvas_length, self.runner.limits.canvas
        if length > most:
            raise SettingError(
                f"canvas_length is {length}; this engine's canvases have at most {most} positions.", "canvas_length"
            )
        request.settings.check_vocabulary(self._vocab_size)
        if request.constraint is not None:
            request.constraint.check(request.settings.max_tokens)

    def _expire(self, now: float) -> None:
        for answer in list(self._timed.values()):
            timeout = answer.request.timeout
            assert timeout is not None
            if now - answer.added >= timeout:
                self._break_off(answer, "timeout")

    def _admit(self, now: float) -> None:
        if self.scheduler.may_admit:
            self._notice_weights()
        for job in self.scheduler.admit():
            self._open[job.request_id].started = now

    def _notice_weights(self) -> None:
        if (weights := self._weights()) != self._seen_weights:
            self._seen_weights = weights
            self.scheduler.forget_prefixes()

    def _work(self, plan: ForwardPlan, now: float) -> list[Segment]:
        """The plan's segments, for which the runner knows the pages."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is plan:
            return ahead[1]
        for job in plan.moved:
            self.runner.assign(job.slot, job.table.full, job.table.sliding)
        work: list[Segment] = []
        expected = self._step_clock.seconds(plan.tokens)
        for turn in plan.turns:
            answer = self._open[turn.job.request_id]
            answer.pick_steps(now, expected)
            work += answer.segments(turn)
        return work

    def _look_ahead(self, plan: ForwardPlan, work: Sequence[Segment]) -> None:
        """While a forward runs: prepare the next one, which it will be if no canvas is done and nobody comes or goes.

        The host's part of most steps of few canvases is then over before the device has to wait for it. Forwards of
        prompts alone may borrow pages, which whoever is admitted before them may need, so they are not prepared.
        """
        started = self._clock()
        self.scheduler.ran(plan)
        last = any(isinstance(segment, Denoise) and segment.last for segment in work)
        if not last and not self.scheduler.prompts_alone:
            self._prepare(self.scheduler.plan(), started)
        self.counters.schedule_seconds += self._clock() - started

    def _prepare(self, plan: ForwardPlan, now: float) -> None:
        """Prepare a forward, unless step caps in it follow from the time at which it will begin."""
        if not any(self._open[turn.job.request_id].settings.latency_budget_ms for turn in plan.turns):
            work = self._work(plan, now)
            self._ahead = plan, work
            self.runner.prepare(work)

    def _record_forward(self, plan: ForwardPlan, seconds: float) -> None:
        self._step_clock.observe(plan.tokens, seconds)
        canvases = sum(turn.denoise for turn in plan.turns)
        encoded = sum(stop - first for first, stop in (turn.encode for turn in plan.turns))
        self.counters.record_forward(canvases, encoded, seconds)

    def _process_results(self, plan: ForwardPlan, results: list[DenoiseResult], now: float) -> None:
        """Process the results of a forward in the order of its turns. A failure ends only its own answer."""
        steps = [turn for turn in plan.turns if turn.denoise]
        for turn, result in zip(steps, results, strict=True):
            assert result.slot == turn.job.slot
            answer = self._open[turn.job.request_id]
            try:
                self._after_step(answer, result, now)
            except Exception as error:
                self._fail(answer, error)

    def _after_step(self, answer: Answer, result: DenoiseResult, now: float) -> None:
        """Tell what the canvas did in its step; if it is done, commit it and end the answer or begin the next one."""
        job, step = answer.job, answer.job.step - 1
        if not np.isfinite(result.entropy).all():
            raise NotFiniteError()
        answer.follow(result, step)
        if answer.request.drafts:
            answer.on_event(answer.record(result, step))
        if not result.converged and job.step < answer.budget:
            return
        answer.on_event(answer.commit(result, now))
        self.counters.canvases += 1
        if answer.ended is not None:
            self._finish(answer)
        else:
            self.scheduler.next_canvas(job, len(result.argmax_canvas), answer.go_on())

    def _break_off(self, answer: Answer, ending: Ending) -> None:
        try:
            for commit in answer.break_off(ending):
                answer.on_event(commit)
        except Exception as error:
            self._fail(answer, error)
        else:
            self._finish(answer)

    def _finish(self, answer: Answer) -> None:
        """End an answer as `answer.ended` says."""
        finished = answer.finished(self._clock())
        self.counters.record_end(finished)
        self._end(answer, finished)

    def _fail(self, answer: Answer, error: Exception) -> None:
        """End an answer that cannot go on; the others can. If it had ended, freeing it failed, and that is logged."""
        if not isinstance(error, NotFiniteError):
            _log.error("an answer failed: %s", error, exc_info=error)
            error = EngineError(f"The answer failed with {type(error).__name__}: {error}")
        else:
            self.scheduler.distrust(answer.job)
        if answer.job.request_id in self._open:
            self._end_failed(answer, error)

    def _end_failed(self, answer: Answer, error: EngineError) -> None:
        self.counters.record_failure(self._clock() - answer.added)
        self._end(answer, Failed(request_id=answer.request.request_id, error=error))

    def _end(self, answer: Answer, last: Finished | Failed) -> None:
        """Free an answer, and tell its last event, also if that fails."""
        if answer.job.slot >= 0:
            self.counters.record_release(len(answer.request.prompt), answer.cached_tokens)
        try:
            self._free(answer)
        finally:
            answer.on_event(last)

    def _free(self, answer: Answer) -> None:
        """Return the slot and pages of an answer that has ended, also if the runner fails at it."""
        job = answer.job
        if self._ahead is not None:
            self._ahead = None
            self.runner.prepare(())  # what was prepared would keep the answer's constraint
        clean = False
        try:
            clean = job.slot < 0 or self.runner.release(job.slot)
        finally:
            if not clean:
                self.scheduler.distrust(job)
            self.scheduler.remove(job)
            del self._open[job.request_id]
            self._timed.pop(job.request_id, None)
