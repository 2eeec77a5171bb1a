"""What one forward is made of: segments of any requests, and what comes back. The seam between scheduler and runner.

A forward is a list of segments that run as one batch of tokens:

    Encode   causal; writes keys and values of its tokens into the request's pages (a prompt chunk, or a commit)
    Denoise  one step of one canvas; two-sided over the canvas and everything before it

Every layer writes the keys and values of all Encodes before any segment attends, so the commit of a canvas and the
first step of the next one, or several chunks of one prompt, may stand in the same forward.

A segment is run by the model with its `adapter`, None being the model itself; a request's segments have one adapter.
The scheduler decides what runs and where; a `Runner` (eager, or CUDA graphs) owns the tensors and does as it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redraft.cache.pages import PAGE
from redraft.diffusion.constraint import Constraint, TabledConstraint
from redraft.diffusion.step import StepRule
from redraft.text.images import PlacedImage

__all__ = ["PAGE", "Denoise", "Drafted", "Encode", "Limits", "Runner", "Segment", "TopTokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encode:
    """Tokens at positions `start` .. `start + len(token_ids)` of the request in `slot`.

    At most a page of a prompt or one longer image of it, or a committed canvas. `images` stand among the tokens, each
    of them wholly: its embeddings take the place of its tokens, which all see each other. Everything before `start` is
    encoded already, or by an Encode of the same forward.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    adapter: str | None = None

    @property
    def tokens(self) -> int:
        """Rows that the segment adds to the forward."""
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Denoise(StepRule):
    """Step `step` of the canvas at positions `start` .. `start + length` of the request in `slot`.

    Step 0 begins from noise (`rng.draw(..., purpose="initial")`, with what `constraint` fixes put in place); later
    steps go on from the canvas, soft embeddings, argmax and stable count that the runner kept for the slot. How the
    step decides is in the inherited fields. `logprobs` asks for log-probabilities once the canvas is done: of its
    tokens (0), and of the k most likely tokens too (k); None for none.
    """

    slot: int
    start: int
    length: int
    canvas_index: int
    step: int
    seed: int
    adapter: str | None = None
    constraint: TabledConstraint | None = None
    logprobs: int | None = None

    @property
    def tokens(self) -> int:
        """Rows that the segment adds to the forward."""
        return self.length


Segment = Encode | Denoise


@dataclass(frozen=True, kw_only=True, slots=True)
class TopTokens:
    """Log-probabilities (nats, of the step's tempered and constrained distribution) of one canvas.

    On a GPU they are of a product of their own: where the step's logits, rounded to the working dtype, were nearly the
    same for two tokens, the other one may come out as the likelier.

    `chosen` [L] are the canvas' own tokens'; `token_ids` and `logprobs` [L][k] the k most likely tokens, best first.
    """

    chosen: tuple[float, ...]
    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Drafted:
    """What a Denoise did; arrays [L] have one entry per canvas position. Fields as in `records.DenoiseStep`.

    `top` is there where it was asked for and the canvas is done: it has converged, or this was its last step.
    """

    slot: int
    canvas: NDArray[np.integer]
    argmax_canvas: NDArray[np.integer]
    accepted: NDArray[np.bool_]
    entropy: NDArray[np.float32]
    converged: bool
    top: TopTokens | None = None

    def __eq__(self, other: object) -> bool:
        """Whether both did the same, to the last bit."""
        return isinstance(other, Drafted) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a runner was built for.

    slots          requests that may hold pages at a time
    full_pages     pages of the space of the full layers
    sliding_pages  pages of the space of the sliding layers
    window         tokens that a sliding layer's token sees, itself included
    context        positions of one request at most, canvas included
    canvas         positions of one canvas at most
    forward        tokens of all segments of a forward at most
    prompt         prompt tokens of a forward that no canvas waits for, where that is more than the settings say
    """

    slots: int
    full_pages: int
    sliding_pages: int
    window: int
    context: int
    canvas: int
    forward: int
    prompt: int = 0


class Runner(Protocol):
    """Runs forwards. Owns the weights, the pages' tensors and what a slot's canvas keeps between its steps.

    It is called from one thread, but for `rehearse`, and never schedules, allocates pages or looks at requests.
    """

    @property
    def limits(self) -> Limits:
        """Fixed for the runner's life."""
        ...

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """From now on the request in `slot` has these pages: entry i of each list holds positions i*PAGE .. (i+1)*PAGE.

        Called before the forward that needs a change, always with the whole lists. They cover every position of the
        coming forward, the canvas included. In `sliding`, pages that lie behind every window have been given back and
        read -1. Several slots may share pages that hold the same tokens; shared pages are never written.
        """
        ...

    def release(self, slot: int) -> None:
        """The request in `slot` is gone: forget its pages and what its canvas kept."""
        ...

    def warm_up(self) -> None:
        """Do now what the first forwards would otherwise have to wait for, such as compiling kernels.

        Called before all of them, or not at all.
        """
        ...

    def rehearse(self, constraint: Constraint, length: int, max_tokens: int) -> None:
        """Do now what the first forward of an answer would wait for that obeys this; any thread may call it.

        `length` is that of its first canvas, `max_tokens` its own.
        """
        ...

    def run(self, work: Sequence[Segment]) -> list[Drafted]:
        """Run one forward; returns one result per Denoise, in the order of `work`.

        A slot has at most one Denoise in a forward. Its Encodes come before it and in the order of their positions.
        """
        ...
