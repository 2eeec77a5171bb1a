"""What goes into the next forward: three answers behind one interface.

A policy sees what every request could do next and decides which to serve, in what order; the scheduler then fills the
forward as far as there is room. Policies are pure Python and know nothing about tokens or pages. docs/scheduling.md
compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ready:
    """What one request could do in the next forward: go on with its prompt, or take step `step` of a canvas.

    A request whose prompt is not encoded yet counts as being at step 0 of canvas 0. `order` rises with arrival;
    `waited` counts the forwards since the request was last served.
    """

    request_id: int
    canvas_index: int
    step: int
    order: int
    waited: int


class Policy(Protocol):
    """Chooses which requests to serve. It is called before every forward and may keep state between calls."""

    def choose(self, ready: Sequence[Ready]) -> list[Ready]:
        """Some of `ready` (at least one, unless it is empty), highest priority first."""
        ...


class Mixed:
    """Everyone, at any step: the model does not know the step, so canvases at different steps batch freely."""

    def choose(self, ready: Sequence[Ready]) -> list[Ready]:
        """All, the longest waiting first."""
        return sorted(ready, key=_longest_waiting_first)


class StepHomogeneous:
    """Only canvases at the same step share a forward, as a model with step conditioning would require.

    The step with the longest total wait goes first, so large groups come first and no one waits forever.
    """

    def choose(self, ready: Sequence[Ready]) -> list[Ready]:
        """The members of one step, the longest waiting first."""
        groups: dict[int, list[Ready]] = {}
        for one in ready:
            groups.setdefault(one.step, []).append(one)
        if not groups:
            return []
        chosen = max(groups.values(), key=lambda group: (sum(one.waited + 1 for one in group), -group[0].step))
        return sorted(chosen, key=_longest_waiting_first)


class RunToCompletion:
    """All ready requests start a canvas together; the next canvases start when the last of them is done."""

    def __init__(self) -> None:
        self._cohort: dict[int, int] = {}

    def choose(self, ready: Sequence[Ready]) -> list[Ready]:
        """The members of the running cohort that are still on their canvas, or a new cohort of all."""
        going_on = [one for one in ready if self._cohort.get(one.order) == one.canvas_index]
        if not going_on:
            going_on = list(ready)
            self._cohort = {one.order: one.canvas_index for one in going_on}
        return sorted(going_on, key=_longest_waiting_first)


def _longest_waiting_first(one: Ready) -> tuple[int, int]:
    return -one.waited, one.order


POLICIES: dict[str, type[Policy]] = {
    "mixed": Mixed,
    "step-homogeneous": StepHomogeneous,
    "run-to-completion": RunToCompletion,
}
"""Every policy by the name that settings call it."""
