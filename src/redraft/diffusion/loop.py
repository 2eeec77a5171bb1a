"""One canvas from noise to text: the denoising loop, for a batch of requests at once.

    for each step:   i.         denoise   run the model on the canvases
                     ii. - v.   advance   decide, canvas by canvas (`step.py`)

Requests finish independently: a finished one leaves the batch, and because every random number is keyed by the
request's own seed and counters, its neighbours never notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from redraft.cache import KVCache
from redraft.config import GenerationSettings
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.records import DenoiseStep
from redraft.diffusion.rng import draw
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import CanvasState, Outcome, StepRule, advance, begin
from redraft.model import Transformer


@dataclass(kw_only=True)
class CanvasJob:
    """A batch of canvases at one canvas index, all of `length` positions; row b belongs to request `request_ids[b]`."""

    length: int
    canvas_index: int
    seeds: list[int]
    request_ids: list[int]
    constraints: list[CanvasConstraint | None] = field(default_factory=list)
    eos_ids: tuple[int, ...] = ()


@torch.inference_mode()
def denoise_canvases(
    model: Transformer, cache: KVCache, job: CanvasJob, settings: GenerationSettings
) -> Iterator[DenoiseStep]:
    """Yield every step of every canvas; the last record of a request holds, in `argmax_canvas`, what to commit."""
    states = _begin(model, job)
    for step in range(settings.steps):
        rules = [_rule(job, settings, row, step) for row in states]
        states, records = _step(model, cache, job, states, rules, step)
        yield from records
        if not states:
            return


def _begin(model: Transformer, job: CanvasJob) -> dict[int, CanvasState]:
    """Canvases of uniform random tokens by row, with what is fixed in place."""
    seeds = torch.tensor(job.seeds, device=model.device)
    noise = draw(seeds, job.canvas_index, 0, job.length, model.config.vocab_size, "initial").tokens
    return {row: begin(noise[row], _constraint(job, row)) for row in range(len(job.seeds))}


def _step(
    model: Transformer,
    cache: KVCache,
    job: CanvasJob,
    states: dict[int, CanvasState],
    rules: list[StepRule],
    step: int,
) -> tuple[dict[int, CanvasState], list[DenoiseStep]]:
    """One step of the open rows; returns those that go on."""
    seeds = torch.tensor([job.seeds[row] for row in states], device=model.device)
    draws = draw(seeds, job.canvas_index, step, job.length, model.config.vocab_size, "step")
    canvas = torch.stack([state.canvas for state in states.values()])
    soft = None if step == 0 else torch.stack([state.soft for state in states.values()])  # type: ignore[misc]
    hidden = model.denoise(canvas, cache.select(list(states)), soft)  # i.
    taken = {
        row: advance(model, hidden[i], state, rules[i], draws.uniform[i], draws.tokens[i])
        for i, (row, state) in enumerate(states.items())
    }
    records = _records(job, states, [outcome for _, outcome in taken.values()], step, rules[0].temperature)
    done = {row for (row, record) in zip(states, records, strict=True) if record.converged}
    return {row: after for row, (after, _) in taken.items() if row not in done}, records


def _rule(job: CanvasJob, settings: GenerationSettings, row: int, step: int) -> StepRule:
    return StepRule(
        temperature=temperature(step, t_min=settings.t_min, t_max=settings.t_max, steps=settings.temperature_steps),
        last=step == settings.steps - 1,
        entropy_bound=settings.entropy_bound,
        stability_threshold=settings.stability_threshold,
        confidence_threshold=settings.confidence_threshold,
        stop_at_eos=settings.stop_at_eos,
        eos_ids=job.eos_ids,
        constraint=_constraint(job, row),
    )


def _constraint(job: CanvasJob, row: int) -> CanvasConstraint | None:
    return job.constraints[row] if job.constraints else None


def _records(
    job: CanvasJob, states: dict[int, CanvasState], outcomes: list[Outcome], step: int, heat: float
) -> list[DenoiseStep]:
    columns = zip(*((o.argmax, o.accepted, o.entropy, o.converged) for o in outcomes), strict=True)
    argmax, kept, entropy, finished = (torch.stack(column).tolist() for column in columns)
    canvas = torch.stack([state.canvas for state in states.values()]).tolist()
    return [
        DenoiseStep(
            request_id=job.request_ids[row],
            canvas_index=job.canvas_index,
            step=step,
            canvas=tuple(canvas[i]),
            argmax_canvas=tuple(argmax[i]),
            accepted=tuple(kept[i]),
            entropy=tuple(entropy[i]),
            temperature=heat,
            converged=finished[i][0],
        )
        for i, row in enumerate(states)
    ]
