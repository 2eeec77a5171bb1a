"""The interface for everything that limits what an answer may hold. Implementations are in `redraft.constraints`.

    Constraint        what a request asked for: immutable, shared by every request that asks for the same
    ConstraintState   one answer being written: where it stands between two canvases
    CanvasConstraint  one canvas being denoised: called at every step; an answer's is a TabledConstraint, and data too

What a canvas constraint returns is on the device it is asked for, and stays there: a copy at every step would make the
host wait for the device. The order of calls for an answer of at most `max_tokens` tokens:

    state = constraint.begin()                       # after `constraint.check(max_tokens)` on the request
    for each canvas:
        limit = state.canvas(length, tokens_left)    # None: anything is allowed
        for each step:
            limit.hold(canvas)                       # what enters the model
            distribution = limit.restrict(logits)    # tempered, of all free positions
        state.advance(committed)                     # what the canvas has added to the answer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from redraft.diffusion.sampler import Distribution
    from redraft.kernels.triton.constrained import AutomatonTables, CanvasTables


class CanvasConstraint(Protocol):
    """What one request's canvas may hold. Called at every step to keep fixed text in the input and in the distribution
    (and so in acceptance, self-conditioning and output), and out of the stopping statistics."""

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] as it may enter the model, with fixed tokens put back."""
        ...

    def free(self, length: int, device: torch.device) -> Tensor | None:
        """The positions that have a choice, int64 [F], ascending; None if all of `length` do. The others hold what
        `hold` says, take no part in `restrict`, and do not count in the stop test."""
        ...

    def tokens(self, device: torch.device) -> Tensor | None:
        """The only tokens that can be anywhere, int64 [W], ascending, if they are few enough to ignore all others."""
        ...

    def restrict(self, logits: Tensor) -> Distribution:
        """What is left of the distributions of all F free positions, from tempered logits, which may be overwritten.

        The logits and the resulting probabilities are [F,V], or [F,W] for `tokens` only. The argmax is the free
        positions' part of the canvas that is most likely as a whole.
        """
        ...


class TabledConstraint(CanvasConstraint, Protocol):
    """A canvas constraint that is also available as data, as the engine's are.

    On a GPU, steps use the data instead of the calls, for several canvases together. The data is always an automaton's,
    if only of one state, as in `constraints.pins.Allowed`; what no automaton can say of a canvas runs on a CPU alone.
    """

    def tables(self, device: torch.device, vocab_size: int) -> tuple[AutomatonTables, CanvasTables]:
        """The automaton (one object for all canvases that obey it) and this canvas' part in it."""
        ...


class ConstraintState(Protocol):
    """Where one answer stands in its constraint."""

    @property
    def closed(self) -> bool:
        """Whether what is committed is a complete valid answer that nothing can be added to."""
        ...

    def canvas(self, length: int, tokens_left: int) -> TabledConstraint | None:
        """The limit for the next canvas of `length` positions, when the answer may still grow by `tokens_left` tokens
        (fewer than `length` if the last canvas is cut); None if anything is allowed."""
        ...

    def advance(self, token_ids: Sequence[int]) -> None:
        """Move past the tokens of a committed canvas: those before its first end-of-text that `max_tokens` allows."""
        ...


class Constraint(Protocol):
    """What an answer must be. Immutable; one object may serve many requests at once."""

    @property
    def min_tokens(self) -> int:
        """Tokens of the shortest valid answer."""
        ...

    def check(self, max_tokens: int) -> None:
        """Raise `ConstraintError`, saying how many tokens are needed, if no valid answer fits in `max_tokens`."""
        ...

    def begin(self) -> ConstraintState:
        """A fresh answer."""
        ...
