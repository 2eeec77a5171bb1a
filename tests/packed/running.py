"""Runners of small packed models on a CPU, steps for them, and constraints of their vocabulary."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.automaton import Budget
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes
from redraft.constraints.tokens import Ending, compile_tokens
from redraft.constraints.vocabulary import Vocabulary
from redraft.diffusion.constraint import TabledConstraint
from redraft.diffusion.schedule import temperature
from redraft.diffusion.step import rule_fields
from redraft.engine.graph_runner import GraphRunner
from redraft.engine.work import Denoise, DenoiseResult, Limits
from redraft.model import Transformer
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import Bias, GenerationSettings
from steps import take_steps

STEPS = 6
SETTINGS = GenerationSettings(steps=STEPS, entropy_bound=4.0, t_max=0.9, t_min=0.3)


SPELLED = [bytes([number]) if number > 1 else b"" for number in range(256)]
SPELLED[128:256] = [bytes([97 + number % 26, 97 + number // 26]) for number in range(128)]


def constraint(pattern: str, pins: Mapping[int, int] | None = None) -> AutomatonConstraint:
    budget = Budget()
    dfa = compile_bytes(parse_regex(pattern, budget=budget), budget)
    automaton = compile_tokens(dfa, Vocabulary(SPELLED, {"<eos>": 1}), Ending((1,), (1,)), (), budget)
    return AutomatonConstraint(automaton, pins)


def new_runner(model: PackedTransformer, context: int = 512, kv_dtype: torch.dtype | None = None) -> GraphRunner:
    limits = Limits(slots=3, full_pages=9, sliding_pages=9, window=8, context=context, canvas=16, forward=32 * 16)
    runner = GraphRunner(model, limits, kv_dtype=kv_dtype)
    for slot, pages in enumerate(((4, 1), (7, 2), (3, 8))):
        runner.assign(slot, pages[: context // 256], pages[::-1][: context // 256])
    return runner


def step_of(slot: int, start: int, step: int, *, length: int = 16, canvas_index: int = 0, **more: object) -> Denoise:
    heat = temperature(step, t_min=SETTINGS.t_min, t_max=SETTINGS.t_max, steps=SETTINGS.temperature_steps)
    given = {
        "slot": slot, "start": start, "length": length, "canvas_index": canvas_index, "step": step, "seed": 100 + slot,
        "temperature": heat, "last": step == STEPS - 1, "eos_ids": (1, 16),
    }  # fmt: skip
    return Denoise(**(rule_fields(SETTINGS) | given | more))  # type: ignore[arg-type]


def ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple(torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def plainly(
    model: Transformer,
    prompt: tuple[int, ...],
    slot: int,
    *,
    length: int = 16,
    constraint: TabledConstraint | None = None,
    not_first: tuple[int, ...] = (),
    logit_bias: Bias = (),
) -> list[DenoiseResult]:
    """The steps of the eager runner."""
    settings = replace(SETTINGS, logit_bias=logit_bias)
    found = take_steps(
        model, [prompt], settings, seeds=[100 + slot], length=length, constraints=[constraint], not_first=not_first
    )
    return found[0]


def same(record: DenoiseResult, result: DenoiseResult) -> bool:
    """Equal decisions; entropies to rounding."""
    close = torch.allclose(torch.tensor(record.entropy), torch.tensor(result.entropy), atol=1e-4)
    names = "canvas", "argmax_canvas", "accepted", "converged"
    return close and all(np.array_equal(getattr(record, name), getattr(result, name)) for name in names)
