"""Answers of any length: canvases one after the other.

prefill      encode the prompt, in chunks
for each canvas:
    denoise  until stable and confident (`loop.denoise_canvases`)
    commit   encode the argmax canvas, unless the answer ends with it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.config import GenerationSettings
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.loop import CanvasJob, denoise_canvases
from redraft.diffusion.records import DenoiseStep, FinishReason
from redraft.model import Transformer

PREFILL_CHUNK = 512

Constrain = Callable[[int], CanvasConstraint | None]
"""canvas_index -> what that canvas may hold."""


@dataclass(kw_only=True, slots=True)
class Answer:
    """One request while it is answered. `tokens` grows by a canvas at a time and ends before end-of-text."""

    request_id: int
    prompt: list[int]
    seed: int
    constrain: Constrain | None = None
    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class CanvasTokens:
    """What a finished canvas added to an answer, before it is turned into text."""

    answer: Answer
    canvas_index: int
    token_ids: list[int]


@torch.inference_mode()
def prefill(model: Transformer, cache: KVCache, prompts: list[list[int]]) -> Tensor:
    """Encode prompts of any lengths in chunks; returns each one's last hidden state [B,D]."""
    final = torch.zeros(len(prompts), model.config.hidden_size, dtype=model.dtype, device=model.device)
    for start in range(0, max(map(len, prompts)), PREFILL_CHUNK):
        counts = [max(0, min(len(prompt) - start, PREFILL_CHUNK)) for prompt in prompts]
        width = max(counts)
        chunk = [(prompt[start : start + n] + [0] * (width - n)) for prompt, n in zip(prompts, counts, strict=True)]
        hidden = model.encode(torch.tensor(chunk, device=model.device), cache, counts)  # [B,T,D]
        for row, n in enumerate(counts):
            if n:
                final[row] = hidden[row, n - 1]
    return final


def write_answers(
    model: Transformer,
    answers: list[Answer],
    settings: GenerationSettings,
    *,
    length: int,
    eos_ids: tuple[int, ...],
) -> Iterator[DenoiseStep | CanvasTokens]:
    """Denoise and commit canvas after canvas of `length` until every answer has a finish reason.

    After each `CanvasTokens` the consumer may set `answer.finish_reason` itself (a stop string, a cancelled request).
    """
    canvases = -(-settings.max_tokens // length)
    cache = model.new_cache(len(answers), max(len(answer.prompt) for answer in answers) + (canvases - 1) * length)
    prefill(model, cache, [answer.prompt for answer in answers])
    open_answers = list(answers)
    for canvas_index in range(canvases):
        argmax: dict[int, tuple[int, ...]] = {}
        job = _job(open_answers, canvas_index, length, eos_ids)
        for record in denoise_canvases(model, cache, job, settings):
            argmax[record.request_id] = record.argmax_canvas
            yield record
            if record.converged or record.step == settings.steps - 1:
                _answer_of(open_answers, record).steps.append(record.step + 1)
        for answer in open_answers:
            yield _take(answer, canvas_index, argmax[answer.request_id], settings.max_tokens, eos_ids)
        going_on = [row for row, answer in enumerate(open_answers) if answer.finish_reason is None]
        if not going_on:
            return
        committed = [argmax[open_answers[row].request_id] for row in going_on]
        open_answers, cache = [open_answers[row] for row in going_on], cache.select(going_on)
        with torch.inference_mode():
            model.encode(torch.tensor(committed, device=model.device), cache)


def _job(answers: list[Answer], canvas_index: int, length: int, eos_ids: tuple[int, ...]) -> CanvasJob:
    return CanvasJob(
        length=length,
        canvas_index=canvas_index,
        seeds=[answer.seed for answer in answers],
        request_ids=[answer.request_id for answer in answers],
        constraints=[answer.constrain(canvas_index) if answer.constrain else None for answer in answers],
        eos_ids=eos_ids,
    )


def _answer_of(answers: list[Answer], record: DenoiseStep) -> Answer:
    return next(answer for answer in answers if answer.request_id == record.request_id)


def _take(
    answer: Answer, canvas_index: int, canvas: tuple[int, ...], max_tokens: int, eos_ids: tuple[int, ...]
) -> CanvasTokens:
    """Add a finished canvas to its answer: up to the first end-of-text, and never past max_tokens."""
    end = next((i for i, token in enumerate(canvas) if token in eos_ids), None)
    room = max_tokens - len(answer.tokens)
    taken = list(canvas[:end])[:room]
    answer.tokens += taken
    if end is not None and end <= room:
        answer.finish_reason = "stop"
    elif len(answer.tokens) >= max_tokens:
        answer.finish_reason = "length"
    return CanvasTokens(answer, canvas_index, taken)
