"""The model's own answers as training data: what it writes in many steps becomes what it should write in few.

This is the second stage of a training run. The answers are collected once, with a patient sampler, and only those that
settled by themselves are kept; then a recipe trains on them with much noise and rollouts, so that drafts go straight to
the answer (see `recipes/distill.toml`). Token ids are kept as they are, because the same text might be tokenised
differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redraft.errors import InputError, SettingError, TrainingError
from redraft.text.tokenizer import TURN_OPEN
from redraft.text.tools import CALL_CLOSE, RESPONSE_OPEN
from redraft.train.jsonl import ANSWER_IDS, PROMPT_IDS, read_jsonl


class DistilledLLM(Protocol):
    """The part of `redraft.llm.LLM` that distilling needs."""

    tokenizer: Any
    template: Any
    eos_ids: tuple[int, ...]

    def generate_batch(self, prompts: Any, **settings: Any) -> Sequence[Any]: ...


@dataclass(frozen=True, kw_only=True)
class Collected:
    """How many prompts were asked, how many answers were kept, and the mean steps of a kept canvas."""

    asked: int
    kept: int
    mean_steps: float


def prompts_of(path: Path, llm: DistilledLLM) -> Iterator[list[int]]:
    """The prompts of training data of kind `chat`, a JSON-lines file; answers are dropped, holes are refused.

    Raises `InputError` that names file and line.
    """
    shard = read_jsonl(path, text=False, tokenizer=llm.tokenizer, template=llm.template, limits=None)
    if shard.suffix_lengths.any():
        raise InputError(f"{path} holds texts with holes, which are not prompts.")
    for document in range(len(shard)):
        yield shard.pieces(document)[0]


def collect(
    llm: DistilledLLM, prompts: Sequence[list[int]], out: Path, *, steps: int, batch_size: int = 16, seed: int = 0,
    progress: Callable[[int], None] = lambda done: None, **settings: Any,
) -> Collected:  # fmt: skip
    """Answer every prompt with at most `steps` steps and write what is worth learning to `out`, a JSON-lines file.

    Answers are kept if they ended by themselves and all their canvases settled before the last step. Raises
    `SettingError` for fewer than 2 steps, which leave no trajectory to shorten, and `TrainingError` if nothing is kept;
    then `out` is not created.
    """
    if steps < 2:
        raise SettingError(f"steps is {steps}; distillation needs at least 2.")
    kept, taken = 0, []
    partial = unfinished(out)
    with partial.open("w", encoding="utf-8") as file:
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            answers = llm.generate_batch(batch, seed=seed, steps=steps, **settings)
            for prompt, answer in zip(batch, answers, strict=True):
                if answer.finish_reason == "stop" and max(answer.stats.steps) < steps:
                    kept += 1
                    taken += answer.stats.steps
                    ids = [*answer.token_ids, _end(prompt, answer.text, llm.tokenizer)]
                    file.write(json.dumps({PROMPT_IDS: prompt, ANSWER_IDS: ids}) + "\n")
            progress(start + len(batch))
    if not kept:
        partial.unlink()
        raise TrainingError(
            f"None of {len(prompts)} answers settled within {steps} steps; allow more steps or use other prompts."
        )
    partial.replace(out)
    return Collected(asked=len(prompts), kept=kept, mean_steps=sum(taken) / len(taken))


def unfinished(out: Path) -> Path:
    """Where `collect` keeps its results until `out` is complete."""
    return out.with_name(out.name + ".partial")


def _end(prompt: list[int], text: str, tokenizer: Any) -> int:
    """The token that ends an answer, which the answer itself does not include: in plain text there are no turns."""
    if text.endswith(CALL_CLOSE):
        return tokenizer.special_id(RESPONSE_OPEN)
    return tokenizer.turn_end_id if tokenizer.special_ids.get(TURN_OPEN) in prompt else tokenizer.eos_id
