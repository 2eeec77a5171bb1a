"""`fill`: the text between a prefix and a suffix, of a length that is found, not given."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.config import MAX_CANVAS, GenerationSettings, resolve_settings
from redraft.constraints.fill import Hole, causal_score
from redraft.diffusion.autoregression import prefill
from redraft.diffusion.loop import CanvasJob, denoise_canvases
from redraft.diffusion.records import DenoiseStep
from redraft.errors import PromptError, SettingError
from redraft.model import Transformer
from redraft.text.tokenizer import Tokenizer

DEFAULT_HOLE = 32
"""Longest hole tried when max_tokens is not given; half a canvas where that is less."""
DEFAULT_STEPS = 12
"""Step cap when none is given: the right length settles early; wrong ones may never settle and must not cost 48."""
SCORED_SUFFIX = 8
"""Suffix tokens that take part in the final comparison: the filling must lead into what follows."""
BATCH = 8

OnRecord = Callable[[DenoiseStep], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FillResult:
    """`text` is the filling, `full_text` prefix + filling + suffix, byte for byte. `lengths` were denoised fully.

    `steps` are those of the chosen length. `forwards` are all canvas passes: of every length to rank it, of the
    finalists to denoise and to score them; passes that run as one batch count each, and the prefix' do not.
    """

    text: str
    full_text: str
    token_ids: tuple[int, ...]
    lengths: tuple[int, ...]
    steps: int
    forwards: int
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
    on_record: OnRecord | None = None,
    **given: Any,
) -> FillResult:
    """Fill the hole between `prefix` and `suffix` with at most `max_tokens` tokens.

    Neither side is changed. The suffix' nearest tokens stand in the canvas behind the hole; what does not fit the
    canvas is not seen. `on_record` is called with every step of the finalists, while they are denoised together;
    `request_id` is a finalist's rank, 0 for the most promising length.
    Raises `PromptError` if both sides are empty or the prefix does not fit the context.
    """
    started = time.perf_counter()
    settings = resolve_settings(dataclasses.replace(defaults, steps=min(defaults.steps, DEFAULT_STEPS)), **given)
    if not prefix and not suffix:
        raise PromptError("There is nothing to fill between: prefix and suffix are both empty.")
    length = settings.canvas_length or model.config.canvas_length
    holes = _holes(tokenizer, suffix, _longest_hole(max_tokens, length), length)
    context = _encode_prefix(model, tokenizer, prefix, settings, room=holes[0].canvas_length)
    finalists = _finalists(context, holes)
    candidates = _denoise(context, finalists, on_record)
    best = max(candidates, key=lambda candidate: candidate.score)
    text = tokenizer.decode(best.tokens)
    return FillResult(
        text=text,
        full_text=prefix + text + suffix,
        token_ids=best.tokens,
        lengths=tuple(sorted(candidate.hole.length for candidate in candidates)),
        steps=best.steps,
        forwards=len(holes) + sum(candidate.steps + 1 for candidate in candidates),
        seconds=time.perf_counter() - started,
    )


def _longest_hole(max_tokens: int | None, canvas_length: int) -> int:
    if max_tokens is None:
        return min(DEFAULT_HOLE, canvas_length // 2)
    if not isinstance(max_tokens, int) or not 1 <= max_tokens <= MAX_CANVAS // 2:
        raise SettingError(f"max_tokens is {max_tokens!r}; a filling may have 1 to {MAX_CANVAS // 2} tokens.")
    if max_tokens >= canvas_length:
        raise SettingError(f"canvas_length is {canvas_length}; it must be longer than the hole's {max_tokens} tokens.")
    return max_tokens


def _encode_prefix(
    model: Transformer, tokenizer: Tokenizer, prefix: str, settings: GenerationSettings, *, room: int
) -> _Context:
    ids = [tokenizer.bos_id, *tokenizer.encode(prefix, special=False)]
    limit = model.config.max_position_embeddings - room
    if len(ids) > limit:
        raise PromptError(f"The prefix has {len(ids)} tokens; at most {limit} fit beside a canvas.")
    cache = model.new_cache(1, len(ids) + room)
    return _Context(model, settings, prefill(model, cache, [ids]), cache)


def _holes(tokenizer: Tokenizer, suffix: str, longest: int, canvas_length: int) -> list[Hole]:
    """One guess per length 1..longest, all in canvases of one length."""
    ids = tuple(tokenizer.encode(suffix, special=False)) if suffix else ()
    special = tuple(sorted(tokenizer.special_ids.values()))
    return [
        Hole(length=n, canvas_length=canvas_length, suffix=ids, end_id=tokenizer.eos_id, forbidden=special)
        for n in range(1, longest + 1)
    ]


def _finalists(context: _Context, holes: list[Hole]) -> list[Hole]:
    """The surest hole of every range of lengths, surest first: 1, 2, ... 7, then 8-9, 10-11, ... 16-18 and so on.

    One step tells neighbouring lengths apart, but not short from long: a short hole always looks surer.
    """
    doubt = _doubts(context, holes)
    chosen, start = [], 0
    while start < len(holes):
        end = start + 1 + holes[start].length // 8
        chosen.append(min(holes[start:end], key=lambda hole: doubt[hole.length]))
        start = end
    return sorted(chosen, key=lambda hole: doubt[hole.length])


def _doubts(context: _Context, holes: list[Hole]) -> dict[int, float]:
    """Mean entropy of the free positions after one step, by hole length."""
    first = dataclasses.replace(context.settings, steps=1)
    doubt: dict[int, float] = {}
    for batch in _batches(holes):
        for record in denoise_canvases(context.model, context.caches(len(batch)), _job(batch, first), first):
            hole = batch[record.request_id]
            doubt[hole.length] = sum(record.entropy[: hole.length]) / hole.length
    return doubt


def _denoise(context: _Context, holes: list[Hole], on_record: OnRecord | None) -> list[_Candidate]:
    job = _job(holes, context.settings)
    last: dict[int, DenoiseStep] = {}
    for record in denoise_canvases(context.model, context.caches(len(holes)), job, context.settings):
        last[record.request_id] = record
        if on_record is not None:
            on_record(record)
    canvases = [last[i].argmax_canvas for i in range(len(holes))]
    scores = _scores(context, holes, canvases)
    return [
        _Candidate(hole, canvas[: hole.length], score, last[i].step + 1)
        for i, (hole, canvas, score) in enumerate(zip(holes, canvases, scores, strict=True))
    ]


@torch.inference_mode()
def _scores(context: _Context, holes: list[Hole], canvases: list[tuple[int, ...]]) -> list[float]:
    """Causal log-likelihoods of the fillings, each with the first suffix tokens behind it."""
    counts = [min(h.length + min(SCORED_SUFFIX, len(h.suffix) + 1), h.canvas_length) for h in holes]
    cache = context.cache.copy([0] * len(holes))
    tokens = torch.tensor(canvases, device=context.model.device)  # [B,L]
    return causal_score(context.model, cache, context.last_hidden.expand(len(holes), -1), tokens, counts)


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
