"""What a call costs: fill, edit, decide, and an answer with and without log-probabilities, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from redraft.bench.quantile import spread
from redraft.errors import SettingError
from redraft.llm import LLM

CONTEXT = 1000
"""Tokens before the hole, and of the longer prompts."""
QUESTION = 200
"""Tokens of a short question."""
QUESTIONS = 16
STEPS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """One kind of call: the seconds of the first one, which may compile kernels, and of some later ones."""

    name: str
    first: float
    seconds: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in milliseconds."""
        later = spread([1e3 * value for value in self.seconds])
        return {"call": self.name, "ms": later["median"], "ms_spread": later, "first_ms": round(1e3 * self.first, 1)}


def calls(llm: LLM) -> Mapping[str, Callable[[], object]]:
    """The calls, by name. Their text is source code of this package, cut to fit the model's context.

    Raises `SettingError` for a context that is too short.
    """
    text = (files("redraft.engine") / "scheduler.py").read_text(encoding="utf-8")
    ids, config = llm.tokenizer.encode(text, special=False), llm.model.config
    context = min(CONTEXT, config.max_position_embeddings - 2 * config.canvas_length)
    question, length = min(QUESTION, context), min(16, config.canvas_length // 2)
    if context < QUESTIONS or len(ids) < context + QUESTION:
        raise SettingError(f"A context of {config.max_position_embeddings} tokens is too short for these calls.")
    before, behind = (llm.tokenizer.decode(part) for part in (ids[:context], ids[context + 20 : context + 80]))
    span = tuple(len(llm.tokenizer.decode(ids[:at])) for at in (context // 2, context // 2 + 12))
    answer: dict[str, Any] = {"max_tokens": config.canvas_length, "steps": STEPS, "seed": 0}
    made: dict[str, Callable[[], object]] = {
        "fill, length found": lambda: llm.fill(before, behind),
        f"fill, {length} tokens": lambda: llm.fill(before, behind, length=length),
        "fill, one of 3 choices": lambda: llm.fill(before, behind, choices=["return None", "pass", "raise ValueError"]),
        "edit of 12 tokens": lambda: llm.edit(before, (span[0], span[1]), "Use another name."),
        "decide": lambda: llm.decide(ids[:question], ["yes", "no"], reads=1),
        f"decide, {QUESTIONS} questions": lambda: llm.decide(
            [ids[at : at + question] for at in range(QUESTIONS)], ["yes", "no"], reads=1
        ),
        f"a canvas of {STEPS} steps": lambda: llm.generate(ids[:context], **answer),
        "the same with log-probabilities": lambda: llm.generate(ids[:context], logprobs=0, **answer),
    }
    if llm.template is None:
        del made["edit of 12 tokens"]
    return made


def measure_call(name: str, call: Callable[[], object], repeats: int) -> CallResult:
    """Time a call, once and then `repeats` times."""
    first, *later = (_seconds(call) for _ in range(1 + repeats))
    return CallResult(name=name, first=first, seconds=tuple(later))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
