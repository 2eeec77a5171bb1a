"""What every evaluation returns: counts, the cost, and one record per item, so that failures can be examined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemRecord:
    """One item: what the model wrote, whether it was right, and what it cost. ``steps`` has one entry per canvas.

    ``confidence`` is the probability that the model gave its answer, if it gives one.
    """

    id: str
    solved: bool
    output: str
    expected: str
    steps: tuple[int, ...]
    tokens: int
    forwards: int
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """``mean_steps`` is per canvas; ``tokens_per_forward`` is over all items; ``seconds`` is wall time."""

    solved: int
    total: int
    mean_steps: float
    tokens_per_forward: float
    seconds: float
    records: tuple[ItemRecord, ...]

    @classmethod
    def of(cls, records: Sequence[ItemRecord], seconds: float) -> EvalResult:
        """Sums up ``records``."""
        steps = [count for record in records for count in record.steps]
        forwards = sum(record.forwards for record in records)
        return cls(
            solved=sum(record.solved for record in records),
            total=len(records),
            mean_steps=sum(steps) / len(steps) if steps else 0.0,
            tokens_per_forward=sum(record.tokens for record in records) / forwards if forwards else 0.0,
            seconds=seconds,
            records=tuple(records),
        )

    @property
    def calibration_error(self) -> float | None:
        """Mean distance between confidence and the share that was right, over ten bins of confidence (Guo et al. 2017).

        None if no confidence was given.
        """
        sure = [(record.confidence, record.solved) for record in self.records if record.confidence is not None]
        bins = [[pair for pair in sure if min(int(pair[0] * 10), 9) == number] for number in range(10)]
        total = sum(abs(sum(p for p, _ in inside) - sum(right for _, right in inside)) for inside in bins)
        return total / len(sure) if sure else None

    def summary(self) -> dict[str, Any]:
        """The figures without the records, ready for JSON."""
        error = self.calibration_error
        return ({} if error is None else {"calibration_error": round(error, 4)}) | {
            "solved": self.solved,
            "total": self.total,
            "accuracy": round(self.solved / self.total, 4) if self.total else 0.0,
            "mean_steps": round(self.mean_steps, 3),
            "tokens_per_forward": round(self.tokens_per_forward, 3),
            "seconds": round(self.seconds, 3),
        }
