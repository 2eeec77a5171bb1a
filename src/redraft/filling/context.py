"""The committed text before a hole, and how much of it is taken back for the hole to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.diffusion.prefill import prefill
from redraft.filling.seams import LONGEST, Seam, Seams
from redraft.model import Model
from redraft.settings import GenerationSettings

VIEW = 32
"""Canvas positions after the filling, for the nearest given text, when many lengths are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What all guesses of a hole share: the encoded text before it, room for the text after it, the longest canvas."""

    model: Model
    cache: KVCache  # of one request
    last_hidden: Tensor  # [1,D]
    view: int
    canvas: int
    settings: GenerationSettings


@torch.inference_mode()
def open_seam(
    model: Model, seams: Seams, ids: Sequence[int], room: int
) -> tuple[int, Seam | None, KVCache, Tensor, int]:
    """Encode the tokens before a hole, without those that the hole's first token may replace.

    Of the possible seams, the causal pass chooses the likeliest: a text goes on either with one token that starts with
    the last n tokens' bytes, or keeps all but the last and replaces it by a token that begins with its bytes.
    Returns the number of tokens that stay, the seam, their cache with `room` for more, the last hidden state [1,D], and
    how many passes it took.
    """
    found = seams.before(ids[1:])  # <bos> stays
    safe = max(1, len(ids) - LONGEST)
    cache = model.new_cache(1, len(ids) + room)
    last = prefill(model, cache, [list(ids[:safe])])  # [1,D]
    rest = list(ids[safe:])
    taken = _likeliest(model, cache, last, rest, found) if len(found) > 1 else len(found)
    kept = rest[: len(rest) - taken]
    if kept:
        last = model.encode(torch.tensor([kept], device=model.device), cache)[:, -1]
    passes = 1 + (len(found) > 1) + bool(kept)
    return len(ids) - taken, found[taken - 1] if taken else None, cache, last, passes


def _likeliest(model: Model, cache: KVCache, last: Tensor, rest: list[int], found: list[Seam]) -> int:
    """How many of the tokens `rest` the hole should take back, by the probability of all continuations of that kind."""
    hidden = model.encode(torch.tensor([rest], device=model.device), cache.copy([0]))[0]  # [T,D]
    logprobs = model.logits(torch.cat((last, hidden[:-1]))).log_softmax(-1)  # [T,V], row t before token t
    given = logprobs.gather(1, torch.tensor(rest, device=model.device)[:, None])[:, 0].cumsum(0)  # [T]
    scores = []
    for count, seam in enumerate(found, 1):
        at = len(rest) - count
        grown = logprobs[at, torch.tensor(seam.tokens, device=model.device)].logsumexp(0)
        scores.append(float(grown) + (float(given[at - 1]) if at else 0.0))
    return max(range(len(scores)), key=scores.__getitem__) + 1
