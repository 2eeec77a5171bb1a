"""How repeated measurements are summed up: one definition of p50 and p95, and of a spread, for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: the smallest value that `share` of all do not exceed; 0 if there are none."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1] if values else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum, to three digits after the point."""
    return {"min": round(min(values), 3), "median": round(median(values), 3), "max": round(max(values), 3)}
