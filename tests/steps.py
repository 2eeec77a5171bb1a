"""Denoising steps of whole canvases through the eager runner, without a scheduler: what tests compare others with."""

from collections.abc import Sequence

from redraft.cache.pages import PAGE
from redraft.diffusion.constraint import TabledConstraint
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import rule_fields
from redraft.engine.runner import EagerRunner
from redraft.engine.work import Denoise, DenoiseResult, Encode, Limits
from redraft.model import Transformer
from redraft.settings import GenerationSettings


def take_steps(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    *,
    seeds: Sequence[int],
    length: int,
    constraints: Sequence[TabledConstraint | None] | None = None,
    eos_ids: tuple[int, ...] = (),
    not_first: tuple[int, ...] = (),
) -> list[list[DenoiseResult]]:
    """Every step of the first canvas behind each prompt, of at most a page of tokens; all prompts together."""
    runner, slots = _runner(model, len(prompts)), range(len(prompts))
    runner.run([Encode(slot=slot, start=0, token_ids=tuple(prompts[slot])) for slot in slots])
    found: list[list[DenoiseResult]] = [[] for _ in slots]
    for step in range(settings.steps):
        going = [slot for slot in slots if not (found[slot] and found[slot][-1].converged)]
        work = [
            Denoise(
                slot=slot, start=len(prompts[slot]), length=length, canvas_index=0, step=step, seed=seeds[slot],
                temperature=temperature(
                    step, t_min=settings.t_min, t_max=settings.t_max, steps=settings.temperature_steps
                ),
                last=step == settings.steps - 1, eos_ids=eos_ids, not_first=not_first,
                constraint=None if constraints is None else constraints[slot], **rule_fields(settings),
            )
            for slot in going
        ]  # fmt: skip
        for result in runner.run(work) if work else []:
            found[result.slot].append(result)
    return found


def _runner(model: Transformer, slots: int) -> EagerRunner:
    """A runner with two pages of each kind for every slot."""
    limits = Limits(
        slots=slots, full_pages=2 * slots, sliding_pages=2 * slots, window=model.config.sliding_window,
        context=2 * PAGE, canvas=PAGE, forward=4096,
    )  # fmt: skip
    runner = EagerRunner(model, limits)
    for slot in range(slots):
        runner.assign(slot, (2 * slot, 2 * slot + 1), (2 * slot + 1, 2 * slot))
    return runner
