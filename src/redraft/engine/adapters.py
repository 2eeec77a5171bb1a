"""Requests with different adapters in one engine: one forward per adapter, one after the other.

An adapter is a separate model that shares every weight it does not change (`model.adapters.with_adapter`). All adapters
use the same pages and slots; a request's segments have one adapter, and the adapter is part of every prefix key, so no
request reads what another adapter wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from redraft.diffusion.constraint import Constraint
from redraft.engine.work import Denoise, DenoiseResult, Runner, Segment, nothing


class RunnerByAdapter:
    """A `work.Runner` made of several; they all use the pages and slots of the first, which has no adapter."""

    def __init__(self, first: Runner, others: Mapping[str, Runner]) -> None:
        self._first, self.limits = first, first.limits
        self._runners: dict[str | None, Runner] = {None: first, **others}

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """See `work.Runner.assign`."""
        self._first.assign(slot, full, sliding)

    def release(self, slot: int) -> bool:
        """See `work.Runner.release`."""
        return self._first.release(slot)

    def warm_up(self) -> None:
        """See `work.Runner.warm_up`."""
        for runner in self._runners.values():
            runner.warm_up()

    def rehearse(self, constraint: Constraint, length: int, max_tokens: int, *, biased: bool = False) -> None:
        """See `work.Runner.rehearse`; all runners have the same kernels."""
        self._first.rehearse(constraint, length, max_tokens, biased=biased)

    def capture(self, work: Sequence[Segment]) -> None:
        """See `work.Runner.capture`."""
        for runner, segments in self._divided(work):
            runner.capture(segments)

    def prepare(self, work: Sequence[Segment]) -> None:
        """See `work.Runner.prepare`; with several adapters nothing is prepared."""
        adapters = {segment.adapter for segment in work}
        for adapter, runner in self._runners.items():
            runner.prepare(work if adapters == {adapter} else ())

    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None] = nothing) -> list[DenoiseResult]:
        """See `work.Runner.run`."""
        results = {}
        *firsts, (last, segments) = self._divided(work)
        for runner, own in firsts:
            results |= {result.slot: result for result in runner.run(own)}
        results |= {result.slot: result for result in last.run(segments, meanwhile)}
        return [results[segment.slot] for segment in work if isinstance(segment, Denoise)]

    def _divided(self, work: Sequence[Segment]) -> Iterator[tuple[Runner, Sequence[Segment]]]:
        """Each adapter's runner and its segments; all of them, as they are, if they have one adapter."""
        adapters = dict.fromkeys(segment.adapter for segment in work)
        for adapter in adapters:
            own = work if len(adapters) == 1 else [segment for segment in work if segment.adapter == adapter]
            yield self._runners[adapter], own
