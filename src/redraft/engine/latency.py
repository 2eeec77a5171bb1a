"""How long a forward takes, learned from past ones, and how many steps fit before a deadline."""

from __future__ import annotations

FORGET = 0.98
"""How much older measurements count after each new one: a few dozen forwards are remembered."""


class StepClock:
    """Seconds of a forward as a line over its tokens, fitted to the latest forwards."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        """Learn from a forward of `tokens` that took `seconds`."""
        self._weight = FORGET * self._weight + 1
        self._x = FORGET * self._x + tokens
        self._y = FORGET * self._y + seconds
        self._xx = FORGET * self._xx + tokens * tokens
        self._xy = FORGET * self._xy + tokens * seconds

    def seconds(self, tokens: int) -> float | None:
        """Expected seconds of a forward of `tokens`; None before the first measurement."""
        if not self._weight:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x**2
        if spread < 1e-6 * mean_x**2:  # all of one size: assume time grows at most in proportion
            return mean_y * max(1.0, tokens / mean_x)
        slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread)
        return max(mean_y + slope * (tokens - mean_x), 0.1 * mean_y)


def steps_within(seconds: float, forward_seconds: float, most: int) -> int:
    """Steps that fit into `seconds`, at least 1 and at most `most`."""
    return max(1, min(most, int(seconds / forward_seconds + 0.01)))  # a hundredth of a step late still counts
