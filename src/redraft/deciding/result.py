"""What deciding returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redraft.errors import SettingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One slot of one question.

    choice         the most likely one, and `confidence` its calibrated probability
    probabilities  of every choice, in the order given, calibrated; `raw` before calibration and temperature
    entropy        nats, of the calibrated probabilities
    reads          the number of reads, each with different noise
    agreement      the share of these reads in which the choice came first
    """

    name: str
    choice: str
    probabilities: Mapping[str, float]
    raw: Mapping[str, float]
    reads: int
    agreement: float

    @property
    def confidence(self) -> float:
        """The probability of `choice`."""
        return self.probabilities[self.choice]

    @property
    def entropy(self) -> float:
        """Of `probabilities`, in nats."""
        return sum(-p * math.log(p) for p in self.probabilities.values() if p > 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "choice": self.choice,
            "confidence": round(self.confidence, 6),
            "probabilities": {choice: round(p, 6) for choice, p in self.probabilities.items()},
            "raw": {choice: round(p, 6) for choice, p in self.raw.items()},
            "entropy": round(self.entropy, 6),
            "reads": self.reads,
            "agreement": round(self.agreement, 4),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer to one question. `text` is the template with its slots filled; `forwards` canvases were read.

    That includes canvases of the question without content, which `calibrate` reads and several questions may share.
    """

    text: str
    readings: tuple[Reading, ...]
    forwards: int

    @property
    def choice(self) -> str:
        """The most probable choice of the only slot. Raises `SettingError` if there are several."""
        return self._only.choice

    @property
    def confidence(self) -> float:
        """The probability of `choice`."""
        return self._only.confidence

    @property
    def probabilities(self) -> Mapping[str, float]:
        """Of every choice of the only slot; they sum to 1."""
        return self._only.probabilities

    @property
    def values(self) -> dict[str, str]:
        """The choice of every slot."""
        return {reading.name: reading.choice for reading in self.readings}

    @property
    def _only(self) -> Reading:
        if len(self.readings) > 1:
            raise SettingError(f"This decision has {len(self.readings)} slots; use `values` or `readings`.")
        return next(iter(self.readings))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "text": self.text,
            "values": self.values,
            "readings": [reading.to_dict() for reading in self.readings],
            "forwards": self.forwards,
        }
