"""Denoising canvases of which only some positions are free: given text costs attention, but no decisions.

It is the ordinary loop (`diffusion/step.py` takes the steps), run on the free positions alone: the head, the sampler
and the soft embeddings never see the given ones, whose soft embedding is their token's own. Because the caller decides
after every step who goes on, many guesses can begin and few finish.

Shapes: B guesses, L canvas, F free positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.config import GenerationSettings
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.records import DenoiseStep
from redraft.diffusion.rng import Draws, draw
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import CanvasState, Outcome, StepRule, advance, begin
from redraft.errors import NotFiniteError
from redraft.model import Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """A canvas with given tokens and free positions.

    tokens  all L token ids; at free positions the draft, which is ignored where the position begins as noise
    free    the F positions that are denoised, rising
    noisy   for each of them, whether it begins as noise
    limit   what may stand there; its positions count the free ones only
    """

    tokens: tuple[int, ...]
    free: tuple[int, ...]
    noisy: tuple[bool, ...]
    limit: CanvasConstraint | None = None


class Settling:
    """A batch of guesses, all of one canvas length, denoised step by step; request ids are their numbers."""

    def __init__(
        self, model: Transformer, cache: KVCache, guesses: Sequence[Guess], settings: GenerationSettings
    ) -> None:
        """`cache` has one row per guess."""
        self._model, self._cache, self._guesses, self._settings = model, cache, guesses, settings
        self._tokens = torch.tensor([guess.tokens for guess in guesses], device=model.device)  # [B,L]
        self._free = [torch.tensor(guess.free, device=model.device) for guess in guesses]  # B x [F]
        self._next = 0
        noise = self._drawn("initial").tokens  # [L]
        self._states = {row: self._begin(row, noise) for row in range(len(guesses))}

    @property
    def open(self) -> list[int]:
        """Numbers of the guesses that may go on."""
        return list(self._states) if self._next < self._settings.steps else []

    def keep(self, rows: Collection[int]) -> None:
        """Leave all other guesses as they are."""
        self._states = {row: state for row, state in self._states.items() if row in rows}

    @torch.inference_mode()
    def step(self) -> list[DenoiseStep]:
        """One step of every open guess."""
        rows, draws = list(self._states), self._drawn("step")
        canvas = torch.stack([self._canvas(row) for row in rows])  # [B,L]
        soft = torch.stack([self._soft(row) for row in rows]) if self._next else None  # [B,L,D]
        hidden = self._model.denoise(canvas, self._cache.select(rows), soft)
        rule_of = {row: self._rule(self._guesses[row].limit) for row in rows}
        records = []
        for i, row in enumerate(rows):
            free = self._free[row]
            state, outcome = advance(
                self._model, hidden[i, free], self._states[row], rule_of[row], draws.uniform[free], draws.tokens[free]
            )
            records.append(self._record(row, canvas[i], outcome, rule_of[row].temperature))
            self._states[row] = state
            if records[-1].converged:
                del self._states[row]
        self._next += 1
        return records

    def _begin(self, row: int, noise: Tensor) -> CanvasState:
        guess, free = self._guesses[row], self._free[row]
        noisy = torch.tensor(guess.noisy, device=self._model.device)
        return begin(torch.where(noisy, noise[free], self._tokens[row, free]), guess.limit)

    def _drawn(self, purpose: Literal["initial", "step"]) -> Draws:
        """The random numbers [L] of the next step. Every guess draws the same; they differ in what they hold."""
        seeds = torch.tensor([self._settings.seed], device=self._model.device)
        draws = draw(seeds, 0, self._next, self._tokens.shape[1], self._model.config.vocab_size, purpose)
        return Draws(draws.uniform[0], draws.tokens[0])

    def _canvas(self, row: int) -> Tensor:
        return self._tokens[row].index_copy(0, self._free[row], self._states[row].canvas)

    def _soft(self, row: int) -> Tensor:
        """Soft embeddings [L,D]: of a given position the embedding of its token."""
        soft = self._states[row].soft
        assert soft is not None, "every step but the last makes soft embeddings"
        return self._model.embed(self._tokens[row]).index_copy(0, self._free[row], soft)

    def _rule(self, limit: CanvasConstraint | None) -> StepRule:
        given = self._settings
        return StepRule(
            temperature=temperature(self._next, t_min=given.t_min, t_max=given.t_max, steps=given.temperature_steps),
            last=self._next == given.steps - 1,
            entropy_bound=given.entropy_bound,
            stability_threshold=given.stability_threshold,
            confidence_threshold=given.confidence_threshold,
            stop_at_eos=False,
            eos_ids=(),
            constraint=limit,
        )

    def _record(self, row: int, canvas: Tensor, outcome: Outcome, heat: float) -> DenoiseStep:
        free, length = self._guesses[row].free, self._tokens.shape[1]
        argmax = self._tokens[row].index_copy(0, self._free[row], outcome.argmax)
        entropy, accepted = [0.0] * length, [True] * length
        for at, value, kept in zip(free, outcome.entropy.tolist(), outcome.accepted.tolist(), strict=True):
            if not math.isfinite(value):
                raise NotFiniteError
            entropy[at], accepted[at] = value, kept
        return DenoiseStep(
            request_id=row,
            canvas_index=0,
            step=self._next,
            canvas=tuple(canvas.tolist()),
            argmax_canvas=tuple(argmax.tolist()),
            accepted=tuple(accepted),
            entropy=tuple(entropy),
            temperature=heat,
            converged=bool(outcome.converged),
        )
