"""Counter-based random numbers: every draw is a pure function of (seed, canvas, step, position, purpose).

So a request draws the same numbers alone or in any batch, on any device, eagerly or inside a CUDA graph.
The generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), in int64
tensors that hold 32-bit words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from redraft.kernels.philox import philox

PURPOSES = {"initial": 0, "step": 1}


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one step: `uniform` fp64 in [0,1) picks candidates, `tokens` int64 renoises; both [B,L]."""

    uniform: Tensor
    tokens: Tensor


def draw(
    seeds: Tensor, canvas_index: int, step: int, length: int, vocab_size: int, purpose: Literal["initial", "step"]
) -> Draws:
    """Numbers for canvases of `length` positions of requests with int64 `seeds` [B]."""
    position = torch.arange(length, device=seeds.device)[None]  # [1,L]
    seed = seeds[:, None].expand(-1, length)  # [B,L]
    constant = torch.zeros_like(seed)
    words = philox(seed, (position + constant, constant + step, constant + canvas_index, constant + PURPOSES[purpose]))
    uniform = (words[0] * 2**21 + (words[1] >> 11)).double() * 2.0**-53
    return Draws(uniform, words[2] * vocab_size >> 32)
