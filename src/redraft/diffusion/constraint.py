"""The seam for everything that limits what a canvas may hold. Implementations live in `redraft.constraints`."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class CanvasConstraint(Protocol):
    """What one request's canvas may hold. Called at every step, so that text is held in the input, in the
    distribution (and with it in acceptance, self-conditioning and output), and out of the stopping statistics."""

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] as it may enter the model, with fixed tokens put back."""
        ...

    def restrict(self, logits: Tensor, start: int) -> None:
        """Lower in place, to `sampler.MASKED`, what may not stand at positions start .. start+R of logits [R,V]."""
        ...

    def free(self, length: int) -> Tensor | None:
        """bool [L]: positions whose entropy counts in the stop test; None if all do."""
        ...
