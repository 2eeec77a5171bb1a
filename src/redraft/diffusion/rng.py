"""Counter-based random numbers: every draw is a pure function of (seed, canvas, step, position, purpose).

So a request draws the same numbers alone or in any batch, on any device, eagerly or in a CUDA graph.
The generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011); on a GPU a
draw is one launch of `kernels/triton/philox.py`, which gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from redraft.kernels.triton import philox

Purpose = Literal["initial", "step"]
PURPOSES: dict[Purpose, int] = {"initial": philox.INITIAL, "step": philox.STEP}


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one step: `uniform` fp64 in [0,1) picks candidates, `tokens` int64 renoises; both [B,L]."""

    uniform: Tensor
    tokens: Tensor


def draw(seeds: Tensor, canvas_index: int, step: int, length: int, vocab_size: int, purpose: Purpose) -> Draws:
    """Numbers for canvases of `length` positions of requests with int64 `seeds` [B]."""
    return Draws(*philox.draw(seeds, canvas_index, step, length, vocab_size, PURPOSES[purpose]))
