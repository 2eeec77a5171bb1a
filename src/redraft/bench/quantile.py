"""One definition of p50 and p95 for all measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: the smallest value that `share` of all do not exceed; 0 if there are none."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1] if values else 0.0
