"""Denoising canvases of which only some positions are free: given text costs attention, but no decisions.

It is the ordinary loop (`diffusion/step.py` takes the steps), run on the free positions alone: the head, the sampler
and the soft embeddings never see the given positions, whose soft embedding is their token's own. Because the caller
decides after every step which guesses go on, many can begin and few finish.

Shapes: B guesses, L canvas, F free positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from redraft.cache import KVCache
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.records import DenoiseStep
from redraft.diffusion.rng import Draws, draw
from redraft.diffusion.sampler import Prediction, predict_together, rows_at_once
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import CanvasState, StepOutcome, StepRule, begin, decide, rule_fields
from redraft.errors import NotFiniteError
from redraft.model import Model
from redraft.settings import GenerationSettings

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """A canvas with given tokens and free positions.

    tokens  all L token ids; at free positions the draft, which is ignored where the position begins as noise
    free    the F positions that are denoised, ascending
    noisy   for each of them, whether it begins as noise
    limit   what is allowed there; its positions count only the free ones
    """

    tokens: tuple[int, ...]
    free: tuple[int, ...]
    noisy: tuple[bool, ...]
    limit: CanvasConstraint | None = None


class Settling:
    """A batch of guesses denoised step by step; their indices are the request ids."""

    def __init__(self, model: Model, cache: KVCache, guesses: Sequence[Guess], settings: GenerationSettings) -> None:
        """`cache` has one row per guess."""
        self._model, self._cache, self._guesses, self._settings = model, cache, guesses, settings
        self._tokens = [torch.tensor(guess.tokens, device=model.device) for guess in guesses]  # B x [L]
        self._free = [torch.tensor(guess.free, device=model.device) for guess in guesses]  # B x [F]
        self._next = 0
        noise = self._drawn("initial").tokens  # [L] of the longest
        self._states = {row: self._begin(row, noise) for row in range(len(guesses))}

    @property
    def open(self) -> list[int]:
        """The indices of the guesses that may go on."""
        return list(self._states) if self._next < self._settings.steps else []

    def keep(self, rows: Collection[int]) -> None:
        """Stop all other guesses."""
        self._states = {row: state for row, state in self._states.items() if row in rows}

    @torch.inference_mode()
    def step(self) -> list[DenoiseStep]:
        """One step of every open guess."""
        rows, draws = list(self._states), self._drawn("step")
        canvases = [self._canvas(row) for row in rows]
        soft = pad_sequence([self._soft(row) for row in rows], batch_first=True) if self._next else None  # [B,L,D]
        padded, lengths = pad_sequence(canvases, batch_first=True), list(map(len, canvases))  # [B,L]
        hidden = self._model.denoise(padded, self._cache.select(rows), soft, lengths)
        rules = [self._rule(self._guesses[row].limit) for row in rows]
        free = [hidden[i, self._free[row]] for i, row in enumerate(rows)]  # B x [F,D]
        predictions = self._predict(free, rows, rules, draws.uniform)
        decided = [
            decide(prediction, self._states[row], rule, draws.tokens[self._free[row]])
            for row, rule, prediction in zip(rows, rules, predictions, strict=True)
        ]
        records = self._records(rows, [outcome for _, outcome in decided], rules[0].temperature)
        for record, (state, _) in zip(records, decided, strict=True):
            self._states[record.request_id] = state
            if record.converged:
                del self._states[record.request_id]
        self._next += 1
        return records

    def _predict(
        self, hidden: Sequence[Tensor], rows: Sequence[int], rules: Sequence[StepRule], uniform: Tensor
    ) -> list[Prediction]:
        """The predictions for the guesses' free positions from hidden states B x [F,D], as many at once as fit."""
        drawn, limits = [uniform[self._free[row]] for row in rows], [rule.constraint for rule in rules]
        heat, want_soft, predictions = rules[0].temperature, not rules[0].last, list[Prediction]()
        for part in _runs(list(map(len, hidden)), rows_at_once(self._model)):
            predictions += predict_together(
                self._model, hidden[part], drawn[part], heat, limits[part], want_soft=want_soft
            )
        return predictions

    def _begin(self, row: int, noise: Tensor) -> CanvasState:
        guess, free = self._guesses[row], self._free[row]
        noisy = torch.tensor(guess.noisy, device=self._model.device)
        return begin(torch.where(noisy, noise[free], self._tokens[row][free]), guess.limit)

    def _drawn(self, purpose: Literal["initial", "step"]) -> Draws:
        """The random numbers [L] of the next step. Every guess draws the same ones; they differ in their content."""
        seeds = torch.tensor([self._settings.seed], device=self._model.device)
        length, vocabulary = max(map(len, self._tokens)), self._model.config.vocab_size
        draws = draw(seeds, 0, self._next, length, vocabulary, purpose)
        return Draws(draws.uniform[0], draws.tokens[0])

    def _canvas(self, row: int) -> Tensor:
        return self._tokens[row].index_copy(0, self._free[row], self._states[row].canvas)

    def _soft(self, row: int) -> Tensor:
        """Soft embeddings [L,D]; a given position has the embedding of its token."""
        soft = self._states[row].soft
        assert soft is not None, "every step but the last makes soft embeddings"
        return self._model.embed(self._tokens[row]).index_copy(0, self._free[row], soft)

    def _rule(self, limit: CanvasConstraint | None) -> StepRule:
        given = self._settings
        return StepRule(
            temperature=temperature(self._next, t_min=given.t_min, t_max=given.t_max, steps=given.temperature_steps),
            last=self._next == given.steps - 1,
            eos_ids=(),
            constraint=limit,
            **rule_fields(given),
        )

    def _records(self, rows: Sequence[int], outcomes: Sequence[StepOutcome], heat: float) -> list[DenoiseStep]:
        """What a step decided about the guesses, fetched from the device in one transfer."""
        columns = [
            torch.stack(
                [
                    part.double()
                    for part in (self._states[row].canvas, outcome.argmax, outcome.entropy, outcome.accepted)
                ]
            )
            for row, outcome in zip(rows, outcomes, strict=True)
        ]  # B x [4,F]; a double holds each of these numbers
        converged = torch.cat([outcome.converged for outcome in outcomes])[None].double()  # [1,B]
        values = torch.cat([column.flatten() for column in (*columns, converged)]).tolist()
        records = []
        for row, done in zip(rows, values[-len(rows) :], strict=True):
            size = len(self._guesses[row].free)
            canvas, argmax, entropy, accepted = (values[at * size : (at + 1) * size] for at in range(4))
            del values[: 4 * size]
            if not all(map(math.isfinite, entropy)):
                raise NotFiniteError
            given = self._guesses[row].tokens
            records.append(
                DenoiseStep(
                    request_id=row,
                    canvas_index=0,
                    step=self._next,
                    canvas=self._placed(row, given, map(int, canvas)),
                    argmax_canvas=self._placed(row, given, map(int, argmax)),
                    accepted=self._placed(row, [True] * len(given), map(bool, accepted)),
                    entropy=self._placed(row, [0.0] * len(given), entropy),
                    temperature=heat,
                    converged=bool(done),
                )
            )
        return records

    def _placed(self, row: int, given: Sequence[_T], free: Iterable[_T]) -> tuple[_T, ...]:
        """A value for each of the L positions, with `free` at those that are denoised."""
        whole = list(given)
        for at, value in zip(self._guesses[row].free, free, strict=True):
            whole[at] = value
        return tuple(whole)


def _runs(sizes: Sequence[int], most: int) -> list[slice]:
    """Runs of neighbours whose sizes add up to at most `most`, or single ones."""
    runs, first, total = list[slice](), 0, 0
    for at, size in enumerate(sizes):
        if at > first and total + size > most:
            runs.append(slice(first, at))
            first, total = at, 0
        total += size
    return [*runs, slice(first, len(sizes))]
