"""What an engine has done so far, for metrics and load decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redraft.engine.latency import StepClock
    from redraft.engine.request import Finished
    from redraft.engine.scheduler import Scheduler


@dataclass(slots=True)
class Counters:
    """Counters that only grow, and what the last forward did. `*_seconds` are sums.

    canvases_in_forward     canvases that the last forward denoised
    prompt_tokens           of requests that had a slot and have ended; cached_tokens of them were not encoded again
    encoded_tokens          prompt and commit tokens that were run
    ended                   requests by how they ended
    answer_seconds          of ended requests, including the time they waited
    schedule_seconds        time in the scheduler and in making events, some of it while a forward runs
    forward_seconds         time in the runner
    """

    forwards: int = 0
    canvases_in_forward: int = 0
    canvas_steps: int = 0
    canvases: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    encoded_tokens: int = 0
    refused: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    answer_seconds: float = 0.0
    schedule_seconds: float = 0.0
    forward_seconds: float = 0.0

    @property
    def mean_answer_seconds(self) -> float:
        """The mean over all ended requests, including the time they waited."""
        return self.answer_seconds / max(1, sum(self.ended.values()))

    def record_forward(self, canvases: int, encoded: int, seconds: float) -> None:
        """Count a forward with `canvases` steps and `encoded` causal tokens that took `seconds`."""
        self.forwards += 1
        self.canvases_in_forward = canvases
        self.canvas_steps += canvases
        self.encoded_tokens += encoded
        self.forward_seconds += seconds

    def record_release(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count the prompt of a request that has ended and had a slot; `cached_tokens` were not encoded again."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def record_end(self, finished: Finished) -> None:
        """Count a request that has ended."""
        stats = finished.stats
        self.tokens += stats.tokens
        self._ended(finished.finish_reason, stats.seconds)

    def record_failure(self, seconds: float) -> None:
        """Count a request that failed after `seconds`."""
        self._ended("failed", seconds)

    def _ended(self, how: str, seconds: float) -> None:
        self.answer_seconds += seconds
        self.ended[how] = self.ended.get(how, 0) + 1

    def snapshot(self, scheduler: Scheduler, clock: StepClock, canvas_length: int) -> EngineStats:
        """All counters and current values."""
        pages = scheduler.pages
        step = clock.seconds(canvas_length)
        return EngineStats(
            counters=replace(self, ended=dict(self.ended)),
            slots=scheduler.slots,
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            full_pages=pages.full.count,
            full_pages_used=pages.full.held,
            full_pages_cached=pages.full.kept,
            sliding_pages=pages.sliding.count,
            sliding_pages_used=pages.sliding.held,
            sliding_pages_cached=pages.sliding.kept,
            step_ms=None if step is None else 1e3 * step,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """A snapshot: a copy of the counters, and current values.

    waiting, running        requests in the queue; requests that hold a slot
    full_pages_used ...     pages held by requests; `*_cached` pages kept for reuse, which any request may take
    step_ms                 expected milliseconds of a forward with one canvas; None before the first forward
    """

    counters: Counters
    slots: int
    waiting: int
    running: int
    full_pages: int
    full_pages_used: int
    full_pages_cached: int
    sliding_pages: int
    sliding_pages_used: int
    sliding_pages_cached: int
    step_ms: float | None
