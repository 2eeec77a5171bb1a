"""Packing: the batches of a recipe, rows of each source in proportion, as numpy arrays.

Batch i is a pure function of (seed, i), so a resumed run sees what it would have seen.
"""

from __future__ import annotations

import numpy as np

from redraft.errors import SettingError
from redraft.train.canvases import Fillers, chat_canvases, text_canvases
from redraft.train.recipe import Recipe, SourceSettings
from redraft.train.segments import Arrays, chat_segments, clean_rows, text_segments
from redraft.train.sources import ChatSource, Part, TextShard, open_sources

_STREAMS: dict[Part, int] = {"train": 0, "heldout": 1}


class Packer:
    """Makes the batches of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        """Opens the sources. Raises as `open_sources` does, and `SettingError` if there is nothing to evaluate on."""
        self.recipe, self.data = recipe, recipe.data
        self.sources = open_sources(recipe.data, recipe.model.vocab_size, recipe.model.canvas_length)
        shares = np.array([source.share for source in recipe.data.sources])
        self._edges = np.concatenate([[0.0], np.cumsum(shares) / shares.sum()])
        self._edges[-1] = 1.0
        if recipe.run.evaluate_every:
            self._check_heldout()

    def batch(self, index: int, part: Part = "train") -> Arrays:
        """Arrays of batch `index`, named as fields of `Batch`; a pure function of the seed and its arguments."""
        if part == "heldout":
            self._check_heldout()
        rng = np.random.default_rng((self.recipe.run.seed, _STREAMS[part], index))
        parts = []
        for number, (first, rows) in enumerate(self.rows_of(index)):
            if rows:
                parts.append(self._source_rows(number, first, rows, rng, part) | self._common(number, rows))
        order = rng.permutation(self.data.rows)
        return {name: np.concatenate([p[name] for p in parts])[order] for name in parts[0]}

    def _check_heldout(self) -> None:
        """Raises `SettingError` for a source that uses all its documents for training."""
        for settings, source in zip(self.data.sources, self.sources, strict=True):
            if not source.holds_out:
                raise SettingError(
                    f"source {settings.name}: no document is held out for evaluation; raise heldout above 0 and give "
                    "at least two documents, or set run.evaluate_every to 0."
                )

    def _common(self, number: int, rows: int) -> Arrays:
        """The arrays that are the same in all rows of source `number`."""
        out: Arrays = {"source": np.full(rows, number, np.int64)}
        if self.data.rolls_out:
            out["rollout"] = np.full(rows, self.data.sources[number].rollout, np.float32)
        return out

    def rows_of(self, index: int) -> list[tuple[int, int]]:
        """For each source (about how many rows came in earlier batches, how many come in batch `index`)."""
        before = self._edges * (self.data.rows * index)
        # One shared random-looking phase per batch distributes the fractions of rows fairly.
        phase = (0.5 + index * 0.754_877_666_246_692_7) % 1.0
        edges = np.floor(self._edges * self.data.rows + phase).astype(int)
        return list(zip(np.diff(before).astype(int).tolist(), np.diff(edges).tolist(), strict=True))

    def _source_rows(self, number: int, first: int, rows: int, rng: np.random.Generator, part: Part) -> Arrays:
        settings, source = self.data.sources[number], self.sources[number]
        if isinstance(source, TextShard):
            return self._text_rows(settings, source, first, rows, rng, part)
        return self._chat_rows(settings, source, rows, rng, part)

    def _chat_rows(
        self, settings: SourceSettings, source: ChatSource, rows: int, rng: np.random.Generator, part: Part
    ) -> Arrays:
        pool, tries = source.draw(rng, rows, part)
        length, canvas = self.data.tokens, self.recipe.model.canvas_length
        segments = chat_segments(pool, tries, length, canvas, clean_answer=settings.clean_answer)
        clean = clean_rows(pool.tokens, segments, rows, length, settings.prompt_weight)
        shape = (rows, self.data.canvases, canvas)
        return clean | chat_canvases(pool.tokens, segments, shape, settings, rng, self._fillers, source.marks)

    def _text_rows(
        self, settings: SourceSettings, source: TextShard, first: int, rows: int, rng: np.random.Generator, part: Part
    ) -> Arrays:
        length = self.data.tokens
        windows = source.windows(rng, first, rows, length, part)
        segments = text_segments(source, windows)
        clean = clean_rows(source.tokens, segments, rows, length, 1.0)
        # A window that begins inside a document still begins with <bos>, as a cut prompt does.
        clean["tokens"][:, 0] = self.recipe.model.bos_token_id
        shape = (rows, self.data.canvases, self.recipe.model.canvas_length)
        return clean | text_canvases(source, segments, clean, shape, settings, rng, self._fillers)

    @property
    def _fillers(self) -> Fillers:
        return Fillers(eos=self.recipe.model.eos_token_id[0], pad=self.recipe.model.pad_token_id)
