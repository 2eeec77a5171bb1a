"""An answer as it is written: the loop's records go to the screen and the trace, and are added up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from redraft.diffusion.records import DenoiseStep, Record

if TYPE_CHECKING:
    from redraft.cli.trace import TraceWriter
    from redraft.engine.request import Stats
    from redraft.engine.result import GenerateResult

INTERRUPTED = "interrupted"
"""The finish reason of an answer stopped by Ctrl-C."""


@dataclass(slots=True)
class Tally:
    """What the records of one answer add up to. Only committed canvases count."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    latest: DenoiseStep | None = None
    result: GenerateResult | None = None
    """What the engine reports about a finished answer."""

    def add(self, record: Record) -> None:
        """Count one record."""
        self.seconds = time.perf_counter() - self.started
        if isinstance(record, DenoiseStep):
            self.latest = record
            return
        assert self.latest is not None, "a commit comes after its canvas' steps"
        self.text += record.text
        self.token_ids += record.token_ids
        if record.canvas_index == self.latest.canvas_index:  # else its canvas was abandoned before its first step
            self.steps.append(self.latest.step + 1)
        self.finish_reason = record.finish_reason

    def stats(self) -> Stats | None:
        """The cost in the shape of `GenerateResult.stats`; None before anything was committed."""
        from redraft.engine.request import Stats

        if self.result is not None:
            return self.result.stats
        if not self.steps:
            return None
        return Stats(
            canvases=len(self.steps),
            steps=tuple(self.steps),
            forwards=sum(self.steps),
            tokens=len(self.token_ids),
            seconds=self.seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields of a `GenerateResult`."""
        stats = self.stats()
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "stats": None if stats is None else stats.to_dict(),
        }


class Screen(Protocol):
    """Shows an answer as it is written; a context manager, so that the terminal is restored afterwards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def show(self, record: Record, tally: Tally) -> None:
        """Show one record, which `tally` has already counted."""
        ...

    def finish(self, tally: Tally) -> None:
        """End the answer, even if it was interrupted."""
        ...


def follow(records: Iterable[Record], screen: Screen, trace: TraceWriter | None = None) -> Tally:
    """Run an answer to its end or to Ctrl-C, whichever comes first; committed text is kept in both cases."""
    tally = Tally()
    with screen:
        try:
            for record in records:
                tally.add(record)
                if trace is not None:
                    trace.write(record)
                screen.show(record, tally)
        except KeyboardInterrupt:
            tally.finish_reason = INTERRUPTED
        finally:
            if (close := getattr(records, "close", None)) is not None:
                close()
        tally.result = getattr(records, "result", None)
        screen.finish(tally)
    return tally
