"""How many steps canvases take: recorded distributions as input for the scheduler's simulation.

`SHORT`, `REASONING` and `LONG_TAIL` are interpolated between quantiles that users of the 26B model published; `TINY`
lists the counts of the embedded model's own canvases on everyday questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

Quantiles = Sequence[tuple[float, float]]

SHORT: Quantiles = ((0.0, 2), (0.5, 4), (1.0, 8))
"""Short replies: 2 to 8 steps."""

REASONING: Quantiles = ((0.0, 4), (0.1, 9.2), (0.5, 13.7), (0.9, 22.3), (1.0, 48))
"""Graduate-level questions with thinking: median 13.7, 10 % below 9.2, 10 % above 22.3."""

LONG_TAIL: Quantiles = ((0.0, 8), (0.4, 17), (0.79, 44), (0.79, 48), (1.0, 48))
"""The same questions measured elsewhere: mean 26.6, in two clusters, and 21 % of the canvases hit the cap of 48."""

TINY: tuple[int, ...] = (
    2, 2, 4, 4, 16, 22, 23, 19, 20, 26, 29, 29, 36, 36, 15, 22, 46, 47, 48, 48, 48, 48, 48, 48,
)  # fmt: skip
"""Canvases of the embedded model on everyday questions, at most 256 tokens, with the default settings of a version
before 3, which allowed 48 steps; later ones allow 16."""

QUANTILES = {"short": SHORT, "reasoning": REASONING, "long-tail": LONG_TAIL}
NAMES = (*QUANTILES, "tiny")


def draw_steps(name: str, luck: random.Random) -> int:
    """The steps of one canvas of the distribution `name`."""
    if name == "tiny":
        return luck.choice(TINY)
    place, points = luck.random(), QUANTILES[name]
    (low, fewer), (high, more) = next(pair for pair in pairwise(points) if place <= pair[1][0])
    return round(fewer + (more - fewer) * (place - low) / (high - low)) if high > low else round(more)
