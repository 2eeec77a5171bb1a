"""One denoising step of one canvas, after the model's forward pass.

    ii.  predict      temper, find argmax, candidates, entropy and soft embeddings
    iii. accept       keep the most certain positions, renoise the rest
    iv.  stop         stable and confident?
    v.   condition    keep soft embeddings for the next step

The eager runner and `filling/settle.py` take their steps here; their counterparts on a GPU are `engine/graph_step.py`
and, for canvases with a constraint, `engine/constrained_step.py`. Shapes: L canvas, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from redraft.diffusion import sampler, stopping
from redraft.diffusion.constraint import CanvasConstraint
from redraft.model import Model
from redraft.settings import SETTINGS, Bias, GenerationSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRule:
    """How one step of one canvas decides. Temperatures divide the logits; entropies and thresholds are in nats.

    `last` says that no step follows whatever the outcome, so no soft embeddings are needed. `not_first` are tokens that
    the canvas may not begin with; a constraint says so itself. `logit_bias` is added to logits under any constraint.
    """

    temperature: float
    last: bool
    entropy_bound: float
    stability_threshold: int
    confidence_threshold: float
    stop_at_eos: bool
    eos_ids: tuple[int, ...]
    not_first: tuple[int, ...] = ()
    logit_bias: Bias = ()
    constraint: CanvasConstraint | None = None


_SET = tuple(field.name for field in fields(StepRule) if field.name in SETTINGS)


def rule_fields(settings: GenerationSettings) -> dict[str, Any]:
    """The fields of a `StepRule` that are settings: those of the same name."""
    return {name: getattr(settings, name) for name in _SET}


@dataclass(frozen=True, slots=True)
class CanvasState:
    """What a canvas keeps between its steps."""

    canvas: Tensor  # [L]
    soft: Tensor | None = None  # [L,D]; None before the first step
    argmax: Tensor | None = None  # [L] of the step before
    stable: Tensor | None = None  # [1] steps in a row with the same argmax


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step decided; all [L], `converged` [1]."""

    argmax: Tensor
    accepted: Tensor
    entropy: Tensor
    converged: Tensor


def begin(noise: Tensor, constraint: CanvasConstraint | None) -> CanvasState:
    """A canvas of uniform random tokens [L], with fixed tokens in place."""
    return CanvasState(_hold(noise, constraint))


def advance(
    model: Model, hidden: Tensor, state: CanvasState, rule: StepRule, uniform: Tensor, noise: Tensor
) -> tuple[CanvasState, StepOutcome]:
    """Take a step from the canvas' hidden states [L,D]; `uniform` fp64 and `noise` int64 [L] are its random numbers."""
    prediction = sampler.predict(  # ii.
        model, hidden, uniform, rule.temperature, rule.constraint, rule.not_first, rule.logit_bias,
        want_soft=not rule.last,
    )  # fmt: skip
    return decide(prediction, state, rule, noise)


def decide(
    prediction: sampler.Prediction, state: CanvasState, rule: StepRule, noise: Tensor
) -> tuple[CanvasState, StepOutcome]:
    """The rest of `advance`, given the forward's prediction for the canvas."""
    accepted = sampler.accept(prediction.entropy[None], rule.entropy_bound)[0]  # iii.
    canvas = _hold(sampler.renoise(prediction.candidate, accepted, noise), rule.constraint)
    stable, converged = _judge(prediction.argmax, prediction.entropy, state, rule)  # iv.
    after = CanvasState(canvas, prediction.soft, prediction.argmax, stable)  # v.
    return after, StepOutcome(prediction.argmax, accepted, prediction.entropy, converged)


def _judge(argmax: Tensor, entropy: Tensor, state: CanvasState, rule: StepRule) -> tuple[Tensor, Tensor]:
    """Stable steps [1] and whether the canvas is done [1]."""
    live = None
    if rule.stop_at_eos and rule.eos_ids:
        live = stopping.live_positions(argmax[None], rule.eos_ids)
    before = argmax.new_zeros(1) if state.stable is None else state.stable
    previous = None if state.argmax is None else state.argmax[None]
    stable = stopping.stable_steps(argmax[None], previous, before, live)
    mean = stopping.mean_entropy(entropy[None], _counted(live, rule.constraint, entropy))
    return stable, stopping.converged(
        stable, mean, stability_threshold=rule.stability_threshold, confidence_threshold=rule.confidence_threshold
    )


def _counted(live: Tensor | None, constraint: CanvasConstraint | None, entropy: Tensor) -> Tensor | None:
    """Positions [1,L] whose entropy counts: live and not pinned; None if all count."""
    rows = None if constraint is None else constraint.free(len(entropy), entropy.device)
    if rows is None:
        return live
    free = torch.zeros_like(entropy, dtype=torch.bool).index_fill_(0, rows, True)[None]
    return free if live is None else live & free


def _hold(canvas: Tensor, constraint: CanvasConstraint | None) -> Tensor:
    return canvas if constraint is None else constraint.hold(canvas)
