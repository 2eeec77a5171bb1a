"""What goes into a forward (segments of any requests) and what comes back: the seam between scheduler and runner.

A forward is a list of segments that run as one batch of tokens:

    Encode   causal; writes keys and values of its tokens into the request's pages (a prompt chunk, or a commit)
    Denoise  one step of one canvas; two-sided over the canvas and everything before it

Every layer writes the keys and values of all Encodes before any segment attends, so the commit of a canvas and the
first step of the next one, or several chunks of one prompt, may share a forward.

A segment is run by the model with its `adapter` (None for the model itself); a request's segments have one adapter.
The scheduler decides what runs and where; a `Runner` (eager, or CUDA graphs) owns the tensors and does as it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redraft.diffusion.constraint import Constraint, TabledConstraint
from redraft.diffusion.sampler import TopTokens
from redraft.diffusion.step import StepRule
from redraft.text.images import PlacedImage


@dataclass(frozen=True, kw_only=True, slots=True)
class Encode:
    """Tokens at positions `start` .. `start + len(token_ids)` of the request in `slot`.

    At most a page of a prompt, or one longer image in it, or a committed canvas. `images` are those among the tokens,
    each of them complete: its embeddings replace its tokens, which all see each other. Everything before `start` is
    already encoded, or is encoded by another Encode of the same forward.
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

    Step 0 begins from noise (`rng.draw(..., purpose="initial")`, with the tokens that `constraint` fixes put in place);
    later steps continue from the canvas, soft embeddings, argmax and stable count that the runner kept for the slot.
    The inherited fields say how the step decides. `logprobs` asks for log-probabilities once the canvas is done: of its
    tokens (0), or also of the k most likely tokens (k); None asks for nothing.
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DenoiseResult:
    """What a Denoise did; arrays [L] have one entry per canvas position. Fields as in `records.DenoiseStep`.

    `top` is set if it was requested and the canvas is done: it has converged, or this was its last step.
    """

    slot: int
    canvas: NDArray[np.integer]
    argmax_canvas: NDArray[np.integer]
    accepted: NDArray[np.bool_]
    entropy: NDArray[np.float32]
    converged: bool
    top: TopTokens | None = None

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same results, bit for bit."""
        return isinstance(other, DenoiseResult) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a runner was built for.

    slots          requests that may hold pages at the same time
    full_pages     pages for the full layers
    sliding_pages  pages for the sliding layers
    window         tokens that a token sees in a sliding layer, including itself
    context        the most positions of a request, including the canvas
    canvas         the most positions of a canvas
    forward        the most tokens in a forward, over all segments
    prompt         the most prompt tokens in a forward that no canvas waits for; 0 for what the settings say
    """

    slots: int
    full_pages: int
    sliding_pages: int
    window: int
    context: int
    canvas: int
    forward: int
    prompt: int = 0


def nothing() -> None:
    """What to do meanwhile if there is nothing to do."""


class Runner(Protocol):
    """Runs forwards. Owns the weights, the tensors of the pages and the state of each slot's canvas between steps.

    One thread at a time calls it, except for `rehearse`. It never schedules, allocates pages or looks at requests.
    """

    @property
    def limits(self) -> Limits:
        """Fixed for the runner's life."""
        ...

    def assign(self, slot: int, full: Sequence[int], sliding: Sequence[int]) -> None:
        """From now on the request in `slot` has these pages: entry i of each list holds positions i*256 .. (i+1)*256.

        Called before the next forward for every slot whose pages have changed, whether it runs in it or not, always
        with the whole lists. They cover every position of its segments there, including the canvas. In `sliding`, -1
        stands for pages that no window reaches any more and that have been given back. Several slots may share pages
        with the same tokens; shared pages are never written.
        """
        ...

    def release(self, slot: int) -> bool:
        """The request in `slot` is gone: forget its pages and what its canvas kept.

        Returns False if its own pages held numbers that are not finite, which nobody may take for a prefix.
        """
        ...

    def warm_up(self) -> None:
        """Capture graphs and compile kernels for all sizes that forwards can have.

        Called before the first forward, or not at all.
        """
        ...

    def rehearse(self, constraint: Constraint, length: int, max_tokens: int, *, biased: bool = False) -> None:
        """Compile the kernels that an answer's first forward under this constraint needs; any thread may call it.

        `length` is that of the answer's first canvas, `max_tokens` is the answer's; `biased` if it has a bias, too.
        """
        ...

    def capture(self, work: Sequence[Segment]) -> None:
        """Capture the graphs that this forward needs and that have not been, so that timing `run` excludes it."""
        ...

    def prepare(self, work: Sequence[Segment]) -> None:
        """Do what can be done for this forward while the one before it runs, and forget what was prepared before.

        `run` may get it next, or another; without segments, nothing is prepared.
        """
        ...

    def run(self, work: Sequence[Segment], meanwhile: Callable[[], None] = nothing) -> list[DenoiseResult]:
        """Run one forward; returns one result per Denoise, in the order of `work`.

        A slot has at most one Denoise in a forward. Its Encodes come before it and in the order of their positions. A
        canvas whose last result says that it has converged takes no other step.
        `meanwhile` is called once, while the device works if it can work alone; an exception in it is the forward's.
        """
        ...
