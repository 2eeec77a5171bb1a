"""What an edited span begins as: its own tokens, with noise where they are least certain, and room to grow or shrink.

One pass over the canvas with the draft in place tells how probable the model finds each of its tokens, given the
instruction and the text on both sides. Tokens that it doubts become noise. Because a better text may be longer or
shorter, there are several drafts, with more or fewer positions at the places of greatest doubt.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Iterator, Sequence

import torch

from redraft.filling.context import Context
from redraft.filling.hole import Draft, Hole
from redraft.kernels.vocabulary import NEVER

DOUBT = 0.5
"""A draft token that is less probable than this begins as noise."""
GROWTH = (-6, -4, -3, -2, -1, 1, 2, 3, 4, 6, 8, 12)
"""How many tokens a draft is lengthened or shortened by."""
REWRITES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Lengths, relative to the draft's, at which the whole span begins as noise."""


@torch.inference_mode()
def draft_probabilities(context: Context, hole: Hole, draft: Sequence[int]) -> list[float]:
    """How probable each draft token is in its place, given the whole draft; one pass."""
    guess = hole.guess(draft, len(draft) + context.view)
    canvas = torch.tensor([guess.tokens], device=context.model.device)  # [1,L]
    hidden = context.model.denoise(canvas, context.cache)[0, : len(draft)]  # [n,D]
    logits = context.model.logits(hidden)  # [n,V]
    logits[:, sorted(hole.tokenizer.special_ids.values())] = NEVER
    own = torch.tensor(list(draft), device=logits.device)[:, None]
    return logits.softmax(-1).gather(1, own)[:, 0].tolist()


def drafts_of(draft: Sequence[int], sure: Sequence[float], strength: float, longest: int) -> list[Draft]:
    """Drafts of several lengths up to `longest`, starting with the original length.

    `strength` is the minimum share of tokens that begin as noise, the most doubted first; at 1 nothing is kept, and
    only the lengths vary.
    """
    if not draft:
        return [(None,) * length for length in range(1, longest + 1)]
    noisy = _noisy(sure, strength)
    same: Draft = tuple(None if gone else token for token, gone in zip(draft, noisy, strict=True))
    found = [same]
    if strength < 1:
        for place in _places(sure, noisy):
            found += [_resized(same, place, more) for more in GROWTH]
    found += [(None,) * max(1, round(len(draft) * part)) for part in REWRITES]
    unique = dict.fromkeys(tuple(one) for one in found if 1 <= len(one) <= longest)
    return list(unique) or [(None,) * longest]


def _noisy(sure: Sequence[float], strength: float) -> list[bool]:
    """The doubted positions, and at least ceil(strength * n) of the least sure."""
    order = sorted(range(len(sure)), key=sure.__getitem__)
    least = set(order[: math.ceil(strength * len(sure) - 1e-9)])  # 0.1 * 30 is a little more than 3
    return [p < DOUBT or at in least for at, p in enumerate(sure)]


def _places(sure: Sequence[float], noisy: Sequence[bool], count: int = 2) -> list[tuple[int, int]]:
    """The `count` noisy runs [start, end) with the greatest doubt."""
    runs = sorted(_runs(noisy), key=lambda run: min(sure[run[0] : run[1]]))
    return runs[:count]


def _runs(noisy: Sequence[bool]) -> Iterator[tuple[int, int]]:
    start = None
    for at, gone in enumerate([*noisy, False]):
        if gone and start is None:
            start = at
        elif not gone and start is not None:
            yield start, at
            start = None


def _resized(draft: Draft, place: tuple[int, int], more: int) -> Draft:
    """The draft with `more` noisy positions at a place, or, if negative, that many fewer tokens there."""
    start, end = place
    if more > 0:
        return (*draft[:end], *[None] * more, *draft[end:])
    end = min(len(draft), max(end, start - more))
    return (*draft[: max(0, end + more)], *draft[end:])


def keeping(old: Sequence[int], price: float, new: Sequence[int]) -> float:
    """Minus `price` for every token that was replaced, added or removed."""
    return -price * sum(max(len(old[a]), len(new[b])) for a, b in _changes(old, new)) if price else 0.0


def mending(old: str, price: float, new: str) -> float:
    """Minus `price` for every byte of changed characters, multiplied by the length of the run that it is in.

    A slip is a letter here and there: without this factor, a rare name is more likely to be rewritten into a common
    one. Bytes count because a character may be as many tokens, each of which adds to the likelihood that is gained.
    """
    runs = (max(len(old[a].encode()), len(new[b].encode())) for a, b in _changes(old, new)) if price else ()
    return -price * sum(size**2 for size in runs)


def _changes(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[tuple[slice, slice]]:
    """All differing places of both."""
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield slice(a, b), slice(c, d)
