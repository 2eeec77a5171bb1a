"""Reading label probabilities from a short canvas: what the model says at the one position where choices diverge.

The canvas holds the answer as far as all choices agree on it, before and after the branch, and noise where they differ.
One pass over it gives the odds at the branch. All branches of all questions form one batch.

Shapes: R rows (branches to read), L canvas, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.cache import KVCache
from redraft.deciding.form import Branch, Strings, branches
from redraft.diffusion.rng import draw
from redraft.errors import SettingError
from redraft.model import Model
from redraft.settings import MAX_CANVAS, MIN_CANVAS

BATCH = 32
"""Canvases per forward pass."""


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch of one question: `question` is its row of the cache, `canvas` L tokens, of which None is noise."""

    question: int
    branch: Branch
    canvas: tuple[int | None, ...]


def rows_of(question: int, strings: Strings, filler: int | None) -> list[BranchRow]:
    """Everything that has to be read to tell the strings apart, followed by `filler`, or by noise if it is None.

    Raises `SettingError` if they are longer than a canvas can be.
    """
    length = max(MIN_CANVAS, max(map(len, strings)))
    if length > MAX_CANVAS:
        raise SettingError(
            f"The answer has {length} tokens up to this choice; a canvas has at most {MAX_CANVAS}.", "choices"
        )
    return [BranchRow(question, branch, _agreed(branch, strings, length, filler)) for branch in branches(strings)]


def _agreed(branch: Branch, strings: Strings, length: int, filler: int | None) -> tuple[int | None, ...]:
    """What all choices of a branch agree on; after strings of different lengths nothing is known."""
    passing = [strings[number] for number in branch.choices]
    if len({len(ids) for ids in passing}) > 1:
        return (*passing[0][: branch.at], *[None] * (length - branch.at))
    agreed = [column[0] if len(set(column)) == 1 else None for column in zip(*passing, strict=True)]
    return (*agreed, *[filler] * (length - len(agreed)))


@torch.inference_mode()
def branch_logprobs(model: Model, cache: KVCache, rows: Sequence[BranchRow], seed: int) -> list[list[float]]:
    """log p of each of a branch's tokens, normalised over them, in nats, for every row; `seed` chooses the noise."""
    odds: list[list[float]] = []
    for batch in _batches(rows):
        canvas = torch.stack([_canvas(model, row.canvas, seed) for row in batch])  # [R,L]
        hidden = model.denoise(canvas, cache.select([row.question for row in batch]))  # [R,L,D]
        at = torch.tensor([row.branch.at for row in batch], device=model.device)
        logits = model.logits(hidden[torch.arange(len(batch), device=model.device), at])  # [R,V]
        odds += [
            logits[i, torch.tensor(row.branch.tokens, device=model.device)].log_softmax(-1).tolist()
            for i, row in enumerate(batch)
        ]
    return odds


def _batches(rows: Sequence[BranchRow]) -> Iterator[Sequence[BranchRow]]:
    """Runs of rows with equal canvas lengths."""
    start = 0
    while start < len(rows):
        end = start + 1
        while end < min(len(rows), start + BATCH) and len(rows[end].canvas) == len(rows[start].canvas):
            end += 1
        yield rows[start:end]
        start = end


def _canvas(model: Model, tokens: tuple[int | None, ...], seed: int) -> Tensor:
    """The canvas [L]: given tokens, and noise that depends on nothing but the seed."""
    seeds = torch.tensor([seed], device=model.device)
    noise = draw(seeds, 0, 0, len(tokens), model.config.vocab_size, "initial").tokens[0]
    given = torch.tensor([token is not None for token in tokens], device=model.device)
    return torch.where(given, torch.tensor([token or 0 for token in tokens], device=model.device), noise)


def choice_logprobs(count: int, rows: Sequence[BranchRow], odds: Sequence[Sequence[float]]) -> list[float]:
    """log p of each of `count` choices: the sum along its path through the branches."""
    total = [0.0] * count
    for row, logprobs in zip(rows, odds, strict=True):
        for group, logprob in zip(row.branch.members, logprobs, strict=True):
            for number in group:
                total[number] += logprob
    return total
