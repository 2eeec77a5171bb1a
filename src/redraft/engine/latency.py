"""How long a forward takes, learned from past ones, and how many steps fit before a deadline."""

from __future__ import annotations

FORGET = 0.98
"""How much older measurements count after each new one: a few dozen forwards are remembered."""


class StepClock:
    """Seconds of a forward as a line over its tokens, fitted to the latest forwards."""

    def __init__(self) -> None:
        self._sums = (0.0,) * 5
        """Weighted sums of 1, x, y, xx and xy; replaced as a whole, because other threads may be reading them."""

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a forward of `tokens` that took `seconds`."""
        latest = 1.0, tokens, seconds, tokens * tokens, tokens * seconds
        self._sums = tuple(FORGET * old + new for old, new in zip(self._sums, latest, strict=True))

    def seconds(self, tokens: int) -> float | None:
        """Expected seconds of a forward of `tokens`; None before the first measurement."""
        weight, *sums = self._sums
        if not weight:
            return None
        mean_x, mean_y, mean_xx, mean_xy = (one / weight for one in sums)
        spread = mean_xx - mean_x**2
        if spread < 1e-6 * mean_x**2:  # all of one size: assume time grows at most in proportion
            return mean_y * max(1.0, tokens / mean_x)
        slope = max(0.0, (mean_xy - mean_x * mean_y) / spread)
        return max(mean_y + slope * (tokens - mean_x), 0.1 * mean_y)


def steps_within(seconds: float, forward_seconds: float, most: int) -> int:
    """Steps that fit into `seconds`, at least 1 and at most `most`."""
    return max(1, min(most, int(seconds / forward_seconds + 0.01)))  # a hundredth of a step late still counts
