"""Filling a hole between a prefix and a suffix: the suffix stands pinned in the canvas behind the hole.

The prefix is context; the canvas is [hole][suffix]. How long the hole should be is not known, so every length is
tried: one denoising step of each finds the surest of every range of lengths, those are denoised fully,
and the finished ones are compared by their causal likelihood together with the text that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.constraints.pins import Allowed
from redraft.model import Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """One guess: `length` free positions, then as much of the suffix as the canvas holds, then end-of-text."""

    length: int
    canvas_length: int
    suffix: tuple[int, ...]
    end_id: int
    forbidden: tuple[int, ...]

    def constraint(self) -> Allowed:
        """Pins for everything behind the hole; special tokens are forbidden inside it."""
        room = self.canvas_length - self.length
        behind = (self.suffix + (self.end_id,) * room)[:room]
        pins = {self.length + i: token for i, token in enumerate(behind)}
        return Allowed(pins, {position: self.forbidden for position in range(self.length)})


def causal_score(
    model: Transformer, cache: KVCache, last_hidden: Tensor, canvases: Tensor, counts: Sequence[int]
) -> list[float]:
    """log p of the first counts[b] tokens of canvases [B,L] after the cached context, by the causal pass, in nats.

    `last_hidden` [B,D] is the hidden state of each context's last token. The cache is extended.
    """
    hidden = model.encode(canvases[:, : max(counts)], cache, list(counts))  # [B,T,D]
    before = torch.cat((last_hidden[:, None], hidden[:, :-1]), 1)
    scores = []
    for row, count in enumerate(counts):
        logprobs = model.logits(before[row, :count]).log_softmax(-1)  # [count,V]
        scores.append(float(logprobs.gather(1, canvases[row, :count, None]).sum()))
    return scores
