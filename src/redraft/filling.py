"""`fill`: the text between a prefix and a suffix, of a length that is found, not given."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.config import MAX_CANVAS, GenerationSettings, resolve_settings
from redraft.constraints.fill import Hole, causal_score
from redraft.diffusion.autoregression import prefill
from redraft.diffusion.loop import CanvasJob, denoise_canvases
from redraft.errors import PromptError, SettingError
from redraft.model import Transformer
from redraft.text.tokenizer import Tokenizer

DEFAULT_HOLE = 32
"""Longest hole tried when max_tokens is not given."""
FINALISTS = 6
"""Hole lengths that are denoised fully after one step of every length has ranked them."""
SCORED_SUFFIX = 8
"""Suffix tokens that take part in the final comparison: the filling must lead into what follows."""
BATCH = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class FillResult:
    """`text` is the filling, `full_text` prefix + filling + suffix, byte for byte. `lengths` were denoised fully."""

    text: str
    full_text: str
    token_ids: tuple[int, ...]
    lengths: tuple[int, ...]
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    hole: Hole
    tokens: tuple[int, ...]
    score: float
    steps: int


@dataclass(slots=True)
class _Context:
    """The prefix, encoded once, and what every guess shares."""

    model: Transformer
    ids: list[int]
    settings: GenerationSettings
    last_hidden: Tensor  # [1,D]
    cache: KVCache

    def caches(self, count: int) -> KVCache:
        """`count` requests that read the one encoded prefix."""
        return self.cache.select([0] * count)


def fill(
    model: Transformer,
    tokenizer: Tokenizer,
    prefix: str,
    suffix: str,
    defaults: GenerationSettings,
    *,
    max_tokens: int | None = None,
    **given: Any,
) -> FillResult:
    """Fill the hole between `prefix` and `suffix` with at most `max_tokens` tokens.

    Neither side is changed. The suffix' nearest tokens stand in the canvas behind the hole; what does not fit the
    canvas is not seen. Raises `PromptError` if both sides are empty or the prefix does not fit the context.
    """
    started = time.perf_counter()
    settings = resolve_settings(defaults, **given)
    if not prefix and not suffix:
        raise PromptError("There is nothing to fill between: prefix and suffix are both empty.")
    longest = _longest_hole(max_tokens)
    holes = _holes(tokenizer, suffix, longest, settings.canvas_length, model.config.canvas_length)
    context = _encode_prefix(model, tokenizer, prefix, settings, room=holes[0].canvas_length)
    finalists = _rank(context, holes)[:FINALISTS]
    candidates = _denoise(context, finalists)
    best = max(candidates, key=lambda candidate: candidate.score)
    text = tokenizer.decode(best.tokens)
    return FillResult(
        text=text,
        full_text=prefix + text + suffix,
        token_ids=best.tokens,
        lengths=tuple(sorted(candidate.hole.length for candidate in candidates)),
        steps=best.steps,
        seconds=time.perf_counter() - started,
    )


def _longest_hole(max_tokens: int | None) -> int:
    longest = DEFAULT_HOLE if max_tokens is None else max_tokens
    if not isinstance(longest, int) or not 1 <= longest <= MAX_CANVAS // 2:
        raise SettingError(f"max_tokens is {longest!r}; a filling may have 1 to {MAX_CANVAS // 2} tokens.")
    return longest


def _encode_prefix(
    model: Transformer, tokenizer: Tokenizer, prefix: str, settings: GenerationSettings, *, room: int
) -> _Context:
    ids = [tokenizer.bos_id, *tokenizer.encode(prefix, special=False)]
    limit = model.config.max_position_embeddings - room
    if len(ids) > limit:
        raise PromptError(f"The prefix has {len(ids)} tokens; at most {limit} fit beside a canvas.")
    cache = model.new_cache(1, len(ids) + room)
    return _Context(model, ids, settings, prefill(model, cache, [ids]), cache)


def _holes(tokenizer: Tokenizer, suffix: str, longest: int, canvas_length: int | None, usual: int) -> list[Hole]:
    """One guess per length 1..longest, all in canvases of one length."""
    ids = tuple(tokenizer.encode(suffix, special=False)) if suffix else ()
    length = canvas_length or usual
    if longest >= length:
        raise SettingError(f"canvas_length is {length}; it must be longer than the hole's {longest} tokens.")
    special = tuple(sorted(tokenizer.special_ids.values()))
    return [
        Hole(length=n, canvas_length=length, suffix=ids, end_id=tokenizer.eos_id, forbidden=special)
        for n in range(1, longest + 1)
    ]


def _rank(context: _Context, holes: list[Hole]) -> list[Hole]:
    """Holes by the mean entropy of their free positions after one step, surest first."""
    first = dataclasses.replace(context.settings, steps=1)
    doubt: dict[int, float] = {}
    for batch in _batches(holes):
        for record in denoise_canvases(context.model, context.caches(len(batch)), _job(batch, first), first):
            hole = batch[record.request_id]
            doubt[hole.length] = sum(record.entropy[: hole.length]) / hole.length
    return sorted(holes, key=lambda hole: doubt[hole.length])


def _denoise(context: _Context, holes: list[Hole]) -> list[_Candidate]:
    job = _job(holes, context.settings)
    last = {r.request_id: r for r in denoise_canvases(context.model, context.caches(len(holes)), job, context.settings)}
    canvases = [last[i].argmax_canvas for i in range(len(holes))]
    scores = [_score(context, hole, canvas) for hole, canvas in zip(holes, canvases, strict=True)]
    return [
        _Candidate(hole, canvas[: hole.length], score, last[i].step + 1)
        for i, (hole, canvas, score) in enumerate(zip(holes, canvases, scores, strict=True))
    ]


@torch.inference_mode()
def _score(context: _Context, hole: Hole, canvas: tuple[int, ...]) -> float:
    """Causal log-likelihood of the filling and the first suffix tokens behind it."""
    count = min(hole.length + min(SCORED_SUFFIX, len(hole.suffix) + 1), hole.canvas_length)
    cache = context.model.new_cache(1, len(context.ids) + hole.canvas_length)
    prefill(context.model, cache, [context.ids])
    tokens = torch.tensor([canvas], device=context.model.device)
    return causal_score(context.model, cache, context.last_hidden, tokens, [count])[0]


def _job(holes: list[Hole], settings: GenerationSettings) -> CanvasJob:
    return CanvasJob(
        length=holes[0].canvas_length,
        canvas_index=0,
        seeds=[settings.seed] * len(holes),
        request_ids=list(range(len(holes))),
        constraints=[hole.constraint() for hole in holes],
    )


def _batches(holes: list[Hole]) -> list[list[Hole]]:
    return [holes[i : i + BATCH] for i in range(0, len(holes), BATCH)]
