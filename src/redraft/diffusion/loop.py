"""One canvas from noise to text: the denoising loop, for a batch of requests at once.

    for each step:   i.   denoise      run the model on the canvas
                     ii.  predict      temper, find argmax, candidates and entropy
                     iii. accept       keep the most certain positions, renoise the rest
                     iv.  stop         stable and confident?
                     v.   condition    keep soft embeddings for the next step

Requests finish independently: a finished one leaves the batch, and because every random number is keyed by the
request's own seed and counters, its neighbours never notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.config import GenerationSettings
from redraft.diffusion import sampler, stopping
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.records import DenoiseStep
from redraft.diffusion.rng import draw
from redraft.diffusion.schedule import temperature
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


@dataclass(slots=True)
class _State:
    """The rows still being denoised; `rows` are their places in the job and in the cache."""

    rows: list[int]
    canvas: Tensor  # [B,L]
    soft: Tensor | None  # [B,L,D]
    argmax: Tensor | None  # [B,L] of the step before
    stable: Tensor  # [B] steps

    def keep(self, which: Tensor) -> _State:
        rows = [row for row, kept in zip(self.rows, which.tolist(), strict=True) if kept]
        soft = None if self.soft is None else self.soft[which]
        argmax = None if self.argmax is None else self.argmax[which]
        return _State(rows, self.canvas[which], soft, argmax, self.stable[which])


@torch.inference_mode()
def denoise_canvases(
    model: Transformer, cache: KVCache, job: CanvasJob, settings: GenerationSettings
) -> Iterator[DenoiseStep]:
    """Yield every step of every canvas; the last record of a request holds, in `argmax_canvas`, what to commit."""
    state = _begin(model, job)
    for step in range(settings.steps):
        last = step == settings.steps - 1
        state, records = _step(model, cache, job, settings, state, step, last)
        yield from records
        if not state.rows:
            return


def _begin(model: Transformer, job: CanvasJob) -> _State:
    """Canvases of uniform random tokens, with what is fixed in place."""
    seeds = torch.tensor(job.seeds, device=model.device)
    noise = draw(seeds, job.canvas_index, 0, job.length, model.config.vocab_size, "initial").tokens
    rows = list(range(len(job.seeds)))
    return _State(rows, _hold(job, rows, noise), None, None, torch.zeros_like(seeds))


def _step(
    model: Transformer,
    cache: KVCache,
    job: CanvasJob,
    settings: GenerationSettings,
    state: _State,
    step: int,
    last: bool,
) -> tuple[_State, list[DenoiseStep]]:
    seeds = torch.tensor([job.seeds[row] for row in state.rows], device=model.device)
    draws = draw(seeds, job.canvas_index, step, job.length, model.config.vocab_size, "step")
    heat = temperature(step, t_min=settings.t_min, t_max=settings.t_max, steps=settings.temperature_steps)

    hidden = model.denoise(state.canvas, cache.select(state.rows), state.soft)  # i.
    restrict = [c.restrict if (c := _constraint(job, row)) else None for row in state.rows]
    seen = sampler.predict(model, hidden, heat, draws.uniform, restrict, want_soft=not last)  # ii.
    accepted = sampler.accept(seen.entropy, settings.entropy_bound)  # iii.
    canvas = _hold(job, state.rows, sampler.renoise(seen.candidate, accepted, draws.tokens))
    stable, done = _judge(job, settings, state, seen)  # iv.

    records = _records(job, state, step, heat, seen, accepted, done)
    after = _State(state.rows, canvas, seen.soft, seen.argmax, stable)  # v.
    return after.keep(~done), records


def _judge(
    job: CanvasJob, settings: GenerationSettings, state: _State, seen: sampler.Prediction
) -> tuple[Tensor, Tensor]:
    """Stable steps [B] and whether each canvas is done [B]."""
    live = None
    if settings.stop_at_eos and job.eos_ids:
        live = stopping.live_positions(seen.argmax, torch.tensor(job.eos_ids, device=seen.argmax.device))
    stable = stopping.stable_steps(seen.argmax, state.argmax, state.stable, live)
    counted = _counted(job, state.rows, live, seen.entropy)
    entropy = stopping.mean_entropy(seen.entropy, counted)
    done = stopping.converged(
        stable,
        entropy,
        stability_threshold=settings.stability_threshold,
        confidence_threshold=settings.confidence_threshold,
    )
    return stable, done


def _counted(job: CanvasJob, rows: list[int], live: Tensor | None, entropy: Tensor) -> Tensor | None:
    """Positions [B,L] whose entropy counts: live and not pinned; None if all count."""
    masks = [c.free(job.length) if (c := _constraint(job, row)) else None for row in rows]
    if live is None and all(mask is None for mask in masks):
        return None
    counted = torch.ones_like(entropy, dtype=torch.bool) if live is None else live.clone()
    for index, mask in enumerate(masks):
        if mask is not None:
            counted[index] &= mask.to(counted.device)
    return counted


def _constraint(job: CanvasJob, row: int) -> CanvasConstraint | None:
    return job.constraints[row] if job.constraints else None


def _hold(job: CanvasJob, rows: list[int], canvas: Tensor) -> Tensor:
    held = [c.hold(canvas[i]) if (c := _constraint(job, row)) else canvas[i] for i, row in enumerate(rows)]
    return torch.stack(held)


def _records(
    job: CanvasJob,
    state: _State,
    step: int,
    heat: float,
    seen: sampler.Prediction,
    accepted: Tensor,
    done: Tensor,
) -> list[DenoiseStep]:
    columns = (state.canvas, seen.argmax, accepted, seen.entropy, done)
    canvas, argmax, kept, entropy, finished = (column.tolist() for column in columns)
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
            converged=finished[i],
        )
        for i, row in enumerate(state.rows)
    ]
