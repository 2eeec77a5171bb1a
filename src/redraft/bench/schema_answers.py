"""Whether answers written by a model obey their JSON schemas, at several numbers of steps and canvas lengths.

Each schema is answered once, with the next pair of steps and canvas length, so a whole set covers all of them for the
price of one pass. A model with random weights is the hard case: it knows nothing about JSON.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from redraft.bench.constraints import problem
from redraft.constraints.build import build
from redraft.errors import ConstraintError
from redraft.llm import LLM
from redraft.model import Transformer
from redraft.model.presets import preset

STEPS = (1, 4, 16)
CANVASES = (16, 64, 128, 256)
PAIRS = tuple(itertools.product(STEPS, CANVASES))
MAX_TOKENS = 512
"""Schemas whose shortest answer is longer are not answered: steps over so many canvases would dominate the time."""


@dataclass(kw_only=True)
class AnswerFigures:
    """What one model wrote."""

    answers: int = 0
    by_steps: Counter[int] = field(default_factory=Counter)
    by_canvas: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    too_long: int = 0
    invalid: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        counts = {"by_steps": dict(self.by_steps), "by_canvas": dict(self.by_canvas)}
        return vars(self) | counts | {"seconds": round(self.seconds, 1)}


def measure_answers(
    llm: LLM,
    schemas: Sequence[tuple[str, Any]],
    *,
    validate: Callable[[Any, Any], str | None],
    seconds: float,
) -> AnswerFigures:
    """One answer to each schema, until `seconds` of process time have passed; `validate` says what is wrong."""
    figures, started = AnswerFigures(), time.process_time()
    for number, (name, schema) in enumerate(schemas):
        if figures.seconds > seconds:
            break
        steps, canvas = PAIRS[number % len(PAIRS)]
        try:
            constraint = build(llm.tokenizer, json_schema=schema, eos_ids=llm.eos_ids)
        except ConstraintError:
            figures.refused += 1
            continue
        assert constraint is not None
        if constraint.min_tokens > MAX_TOKENS:
            figures.too_long += 1
            continue
        length = max(2 * canvas, constraint.min_tokens)
        result = llm.generate("Write an example as JSON.", json_schema=schema, steps=steps, canvas_length=canvas,
                              max_tokens=length, seed=number)  # fmt: skip
        figures.answers += 1
        figures.by_steps[steps] += 1
        figures.by_canvas[canvas] += 1
        if wrong := problem(schema, result.text, validate):
            figures.invalid.append(f"{name}, {steps} steps, canvas {canvas}, seed {number}: {wrong}")
        figures.seconds = time.process_time() - started
    return figures


def with_random_weights(llm: LLM) -> LLM:
    """The smallest model with the same tokenizer and weights from a wide normal distribution."""
    config = dataclasses.replace(
        preset("nano"), vocab_size=llm.model.config.vocab_size, max_position_embeddings=4096, canvas_length=CANVASES[-1]
    )
    torch.manual_seed(0)
    model = Transformer(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return LLM(model, llm.tokenizer, llm.template, path=llm.path, eos_ids=llm.eos_ids)
