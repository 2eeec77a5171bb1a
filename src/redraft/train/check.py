"""Looking at a recipe's data before any compute: what its sources contain, and the canvases that training would see."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from redraft.diffusion.corruption import generator_for
from redraft.text.tokenizer import Tokenizer
from redraft.train.batch import Batch
from redraft.train.objective import Objective
from redraft.train.packing import Packer
from redraft.train.recipe import Recipe
from redraft.train.sources import Extent

BATCHES = 4
"""Batches from which the figures are computed."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One canvas as training sees it.

    `context` is the end of the clean text before it; the spans are (text, learned) pairs in order, given where not
    learned; `noisy` is what the model is shown at noise level `level`.
    """

    source: str
    context: str
    start: int
    spans: tuple[tuple[str, bool], ...]
    noisy: str
    level: float


@dataclass(frozen=True, kw_only=True)
class SourceFigures:
    """Means over the first batches: share of rows, and of a row's tokens and canvases that are used and learned.

    `documents`, `tokens` and `answer_canvases` are all that there is to train on, without what is held out. In
    `epoch_steps` steps of one process as many canvases are trained as answers have; of plain text, as many tokens are
    in rows as there are. All four are None for a source whose documents are new each time.
    """

    source: str
    rows: float
    clean_tokens: float
    canvases: float
    learned_tokens: float
    documents: int | None
    tokens: int | None
    answer_canvases: int | None
    epoch_steps: float | None


def figures(recipe: Recipe, packer: Packer) -> list[SourceFigures]:
    """What the first batches consist of, by source."""
    batches = [packer.batch(index) for index in range(BATCHES)]
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    out = []
    for number, source in enumerate(recipe.data.sources):
        mine = joined["source"] == number
        count = max(1, int(mine.sum()))
        extent = packer.sources[number].extent
        canvases = None if extent is None else int(np.ceil(extent.answers / recipe.model.canvas_length).sum())
        out.append(
            SourceFigures(
                source=source.name,
                rows=float(mine.mean()),
                clean_tokens=float((joined["document"][mine] >= 0).sum() / count),
                canvases=float((joined["canvas_document"][mine] >= 0).sum() / count),
                learned_tokens=float((joined["canvas_weight"][mine] > 0).sum() / count),
                documents=extent and extent.documents,
                tokens=extent and extent.tokens,
                answer_canvases=canvases,
                epoch_steps=extent and _epoch_steps(recipe, number, extent, canvases),
            )
        )
    return out


def _epoch_steps(recipe: Recipe, number: int, extent: Extent, canvases: int | None) -> float:
    data = recipe.data
    share = data.sources[number].share / sum(source.share for source in data.sources)
    rows = data.rows * data.accumulate * share
    return canvases / (rows * data.canvases) if canvases else extent.tokens / (rows * data.tokens)


def samples(recipe: Recipe, packer: Packer, tokenizer: Tokenizer | None, count: int) -> Iterator[Sample]:
    """Canvases of the first batch, alternating between sources; without a tokenizer, numbers stand for tokens."""
    batch = Batch.from_arrays(packer.batch(0)).to(torch.device("cpu"))
    noise = Objective(recipe.objective, recipe.model).noisy(batch, generator_for("cpu", recipe.run.seed, 0))
    taken: Counter[int] = Counter()
    rows = [(row, canvas) for canvas in range(recipe.data.canvases) for row in range(recipe.data.rows)]
    for row, canvas in rows:
        source, document = int(batch.source[row]), int(batch.canvas_document[row, canvas])
        if document < 0 or taken[source] >= count:
            continue
        taken[source] += 1
        start = int(batch.canvas_start[row, canvas])
        before = batch.tokens[row][batch.document[row] == document][:start]
        yield Sample(
            source=recipe.data.sources[source].name,
            context=_text(before.tolist(), tokenizer),
            start=start,
            spans=tuple(
                _spans(batch.canvas_target[row, canvas].tolist(), batch.canvas_weight[row, canvas] > 0, tokenizer)
            ),
            noisy=_text(noise.tokens[row, canvas].tolist(), tokenizer),
            level=float(noise.level[row, canvas]),
        )


def _spans(target: list[int], learned: torch.Tensor, tokenizer: Tokenizer | None) -> Iterator[tuple[str, bool]]:
    edges = [0, *(torch.nonzero(learned[1:] != learned[:-1]).flatten() + 1).tolist(), len(target)]
    for low, high in itertools.pairwise(edges):
        yield _text(target[low:high], tokenizer), bool(learned[low])


def _text(ids: Sequence[int], tokenizer: Tokenizer | None) -> str:
    return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(list(ids))
