"""When a canvas is done: its argmax has not changed for some steps, and the model is confident on average."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor


def live_positions(argmax_canvas: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """True up to and including the first end-of-text of each canvas [B,L]; all True if there is none.

    `eos_ids` must not be empty.
    """
    ended = reduce(torch.logical_or, (argmax_canvas == end for end in eos_ids))
    return ended.cumsum(-1) - ended.long() == 0


def stable_steps(argmax_canvas: Tensor, previous: Tensor | None, count: Tensor, live: Tensor | None) -> Tensor:
    """How many steps in a row each canvas' argmax [B,L] is unchanged (at `live` positions), after `count` [B]."""
    if previous is None:
        return torch.zeros_like(count)
    same = argmax_canvas == previous
    if live is not None:
        same = same | ~live
    return torch.where(same.all(-1), count + 1, torch.zeros_like(count))


def mean_entropy(entropy: Tensor, counted: Tensor | None) -> Tensor:
    """Mean entropy [B] of [B,L] nats over the `counted` positions (pinned ones and a dead tail do not count)."""
    if counted is None:
        return entropy.mean(-1)
    return (entropy * counted).sum(-1) / counted.sum(-1).clamp(min=1)


def converged(stable: Tensor, entropy: Tensor, *, stability_threshold: int, confidence_threshold: float) -> Tensor:
    """bool [B] from the stable steps [B] and the mean entropy [B]; a stability threshold of 0 switches it off."""
    return (stable >= stability_threshold) & (entropy < confidence_threshold)
