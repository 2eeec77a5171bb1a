"""What goes into the next forward: three answers behind one interface.

A policy sees what every request could do next and decides which to serve, in what order; the scheduler then fills the
forward as far as there is room. Policies are pure Python and know nothing about tokens or pages. docs/scheduling.md
compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


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
        for request in ready:
            groups.setdefault(request.step, []).append(request)
        if not groups:
            return []
        chosen = max(groups.values(), key=lambda group: (sum(request.waited + 1 for request in group), -group[0].step))
        return sorted(chosen, key=_longest_waiting_first)


class RunToCompletion:
    """All ready requests start a canvas together; the next canvases start when the last of them is done."""

    def __init__(self) -> None:
        self._cohort: dict[int, int] = {}

    def choose(self, ready: Sequence[Ready]) -> list[Ready]:
        """The members of the running cohort that are still on their canvas, or a new cohort of all."""
        going_on = [request for request in ready if self._cohort.get(request.order) == request.canvas_index]
        if not going_on:
            going_on = list(ready)
            self._cohort = {request.order: request.canvas_index for request in going_on}
        return sorted(going_on, key=_longest_waiting_first)


def _longest_waiting_first(request: Ready) -> tuple[int, int]:
    return -request.waited, request.order


PolicyName = Literal["mixed", "step-homogeneous", "run-to-completion"]
POLICIES: dict[PolicyName, type[Policy]] = {
    "mixed": Mixed,
    "step-homogeneous": StepHomogeneous,
    "run-to-completion": RunToCompletion,
}
"""Every policy by the name that settings call it."""
