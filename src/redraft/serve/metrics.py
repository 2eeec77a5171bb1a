"""Prometheus metrics, including those specific to canvases. One registry per server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redraft.errors import EngineError

if TYPE_CHECKING:
    from redraft.engine.request import Finished
    from redraft.engine.stats import EngineStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
_TOKENS = (0.5, 1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of one server."""

    def __init__(self, engine: Callable[[], EngineStats | None]) -> None:
        """`engine` returns the engine's latest snapshot, or None while there is no engine."""
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        counter, histogram = self._counter, self._histogram
        self.requests = counter("redraft_requests", "HTTP requests by endpoint and status.", ("endpoint", "status"))
        self.seconds = histogram("redraft_request_seconds", "Time of a whole HTTP request.", _SECONDS, ("endpoint",))
        self.refused = counter("redraft_refused", "Requests that were refused, by reason.", ("reason",))
        self.answers = counter("redraft_answers", "Answers, by how they ended.", ("ending",))
        self.cancelled = counter("redraft_cancelled", "Requests whose client went away.")
        self._steps = histogram("redraft_steps_per_canvas", "Denoising steps that a canvas took.", _STEPS)
        self._density = histogram("redraft_tokens_per_forward", "Answer tokens per forward pass, by answer.", _TOKENS)
        self._first = histogram(
            "redraft_first_canvas_seconds", "From entering the queue to the first committed canvas.", _SECONDS
        )
        self._queue = histogram("redraft_queue_seconds", "Time spent waiting for room in the engine.", _SECONDS)
        self._whole = histogram("redraft_answer_seconds", "From entering the queue to the end of the answer.", _SECONDS)

    def observe(self, ended: Finished | EngineError) -> None:
        """Count an answer that has ended."""
        if isinstance(ended, EngineError):
            self.answers.labels("failed").inc()
            return
        stats = ended.stats
        self.answers.labels(ended.finish_reason).inc()
        for steps in stats.steps:
            self._steps.observe(steps)
        self._density.observe(stats.tokens_per_forward)
        self._queue.observe(stats.queue_seconds)
        self._whole.observe(stats.seconds)
        if stats.first_commit_seconds is not None:
            self._first.observe(stats.first_commit_seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, help, labels, buckets=buckets, registry=self.registry)


class _EngineCollector(Collector):
    """Reads the engine's own counts from its snapshot whenever metrics are requested."""

    def __init__(self, engine: Callable[[], EngineStats | None]) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine()
        if stats is None:
            return
        count = stats.counters
        counters = {
            "redraft_canvases": ("Canvases that were committed.", count.canvases),
            "redraft_canvas_steps": ("Denoising steps, one per canvas and forward.", count.canvas_steps),
            "redraft_forwards": ("Forward passes.", count.forwards),
            "redraft_tokens": ("Answer tokens.", count.tokens),
            "redraft_prompt_tokens": ("Prompt tokens of requests that had a slot and have ended.", count.prompt_tokens),
            "redraft_prefix_hit_tokens": (
                "Prompt tokens of requests that have ended, as far as they came from the prefix cache.",
                count.cached_tokens,
            ),
            "redraft_encoded_tokens": ("Prompt and commit tokens that were encoded.", count.encoded_tokens),
            "redraft_forward_seconds": ("Time in forward passes.", count.forward_seconds),
            "redraft_schedule_seconds": ("Time in the scheduler.", count.schedule_seconds),
        }
        gauges = {
            "redraft_slots": ("Requests that can be worked on at a time.", stats.slots),
            "redraft_running": ("Requests that are being worked on.", stats.running),
            "redraft_waiting": ("Requests that are waiting for room.", stats.waiting),
            "redraft_canvases_in_forward": (
                "Batch occupancy: canvases in the last forward.",
                count.canvases_in_forward,
            ),
        }
        for name, (help, value) in counters.items():
            yield CounterMetricFamily(name, help, value=value)
        for name, (help, value) in gauges.items():
            yield GaugeMetricFamily(name, help, value=value)
        yield _pages(stats)


def _pages(stats: EngineStats) -> GaugeMetricFamily:
    pages = GaugeMetricFamily(
        "redraft_pages", "Pages of keys and values by layer kind and use.", labels=("space", "use")
    )
    for space, total, used, cached in (
        ("full", stats.full_pages, stats.full_pages_used, stats.full_pages_cached),
        ("sliding", stats.sliding_pages, stats.sliding_pages_used, stats.sliding_pages_cached),
    ):
        for use, count in (("total", total), ("used", used), ("cached", cached)):
            pages.add_metric((space, use), count)
    return pages
