"""From what the model says to how sure one should be.

*Contextual calibration* (Zhao et al. 2021, arXiv 2102.09690): some labels are likelier than others regardless of the
question. What the model says about a question without content is that bias, which is subtracted. *Temperature* (Guo et
al. 2017, arXiv 1706.04599) divides the log-odds; `fit_temperature` finds it from examples with known answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from redraft.errors import SettingError

CONTENT_FREE = "N/A"
"""The question that asks nothing."""
_LOWEST, _HIGHEST, _TRIES = 0.05, 20.0, 60


class HasProbabilities(Protocol):
    """The part of a reading that a temperature is fitted to."""

    @property
    def probabilities(self) -> Mapping[str, float]: ...


def calibrated(logprobs: Sequence[float], bias: Sequence[float] | None, temperature: float) -> list[float]:
    """Probabilities of the choices from their log-probabilities, minus the bias, at a temperature."""
    free = logprobs if bias is None else [value - off for value, off in zip(logprobs, bias, strict=True)]
    peak = max(free)
    weights = [math.exp((value - peak) / temperature) for value in free]
    total = sum(weights)
    return [weight / total for weight in weights]


def fit_temperature(readings: Sequence[HasProbabilities], answers: Sequence[str]) -> float:
    """The temperature at which the readings (made at temperature 1) give their known answers the highest likelihood.

    Raises `SettingError` without examples, or if an answer was not one of the choices.
    """
    if isinstance(answers, str) or not (isinstance(readings, Sequence) and isinstance(answers, Sequence)):
        raise SettingError("Give a list of readings and a list with the answer of each.")
    if not readings or len(readings) != len(answers):
        raise SettingError(f"There are {len(readings)} readings and {len(answers)} answers; give one answer for each.")
    for reading, answer in zip(readings, answers, strict=True):
        if answer not in reading.probabilities:
            raise SettingError(f"The answer {answer!r} is not one of the choices {', '.join(reading.probabilities)}.")
    examples = [(_logs(reading), answer) for reading, answer in zip(readings, answers, strict=True)]
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    for _ in range(_TRIES):  # the loss is convex in 1/temperature, so it has one minimum in the logarithm too
        third = (high - low) / 3
        if _loss(examples, math.exp(low + third)) < _loss(examples, math.exp(high - third)):
            high -= third
        else:
            low += third
    return math.exp((low + high) / 2)


def _logs(reading: HasProbabilities) -> dict[str, float]:
    return {choice: math.log(max(p, 1e-300)) for choice, p in reading.probabilities.items()}


def _loss(examples: Sequence[tuple[dict[str, float], str]], temperature: float) -> float:
    """Negative log-likelihood of the answers."""
    total = 0.0
    for logs, answer in examples:
        scaled = {choice: value / temperature for choice, value in logs.items()}
        peak = max(scaled.values())
        total += peak + math.log(sum(math.exp(value - peak) for value in scaled.values())) - scaled[answer]
    return total
