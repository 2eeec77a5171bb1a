"""Keys and values that a packed model has committed outside the engine, in pages that requests share.

Shapes: B requests, P pages of a request.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch.nn import functional as F

from redraft.cache.base import KVCache
from redraft.cache.paged import page_bytes
from redraft.cache.pages import PAGE, PagePool, drop_unseen, pages_for
from redraft.config import FULL, SLIDING, LayerType
from redraft.model.packed.forward import Pages, new_pages
from redraft.model.packed.weights import PackedModel

KINDS: tuple[LayerType, ...] = (FULL, SLIDING)
GROWTH = 16
"""Pages that are added at least, where there are too few: what is captured reads the pages that there were."""


class PagedCache(KVCache):
    """See `KVCache`. Requests share the pages that they agree on: who writes to one takes one of its own first."""

    def __init__(self, store: PageStore, batch_size: int, capacity: int) -> None:
        super().__init__(batch_size, capacity)
        self._store = store
        self._rows = [_Row(store) for _ in range(batch_size)]

    def select(self, rows: list[int]) -> Self:
        """See `KVCache.select`."""
        return self._of([self._rows[row] for row in rows], rows)

    def copy(self, rows: list[int]) -> Self:
        """See `KVCache.copy`."""
        return self._of([self._rows[row].copy() for row in rows], rows)

    def _of(self, requests: list[_Row], rows: list[int]) -> Self:
        other = copy.copy(self)
        other._rows, other.lengths = requests, [self.lengths[row] for row in rows]
        return other

    def own(self, counts: Sequence[int]) -> None:
        """Give every request pages of its own for so many positions behind its committed ones."""
        for kind in KINDS:
            wanted = [
                (row, index)
                for row, length, count in zip(self._rows, self.lengths, counts, strict=True)
                for index in range(length // PAGE, pages_for(length + count) if count else 0)
                if not row.owns(kind, index)
            ]
            self._store.write(kind, wanted)

    def tables(self, width: int) -> dict[LayerType, np.ndarray]:
        """Page tables int32 [B,width] by kind of layer."""
        found = {}
        for kind in KINDS:
            found[kind] = np.zeros((len(self._rows), width), np.int32)
            for line, row in zip(found[kind], self._rows, strict=True):
                line[: len(row.pages[kind])] = row.pages[kind]
        return found

    def advance(self, counts: list[int]) -> None:
        """See `KVCache.advance`; gives back what no window reaches any more."""
        super().advance(counts)
        with self._store.lock:
            for row, length in zip(self._rows, self.lengths, strict=True):
                drop_unseen(self._store.pools[SLIDING], row.pages[SLIDING], length - self._store.past)


class _Row:
    """One request's pages by kind of layer: entry i holds positions i*PAGE .. (i+1)*PAGE; -1 has been given back."""

    def __init__(self, store: PageStore) -> None:
        self._store = store
        self.pages: dict[LayerType, list[int]] = {kind: [] for kind in KINDS}

    def __del__(self) -> None:
        self._store.drop(self.pages)

    def copy(self) -> _Row:
        other = _Row(self._store)
        with self._store.lock:
            for kind, pages in self.pages.items():
                for page in pages:
                    if page >= 0:
                        self._store.pools[kind].share(page)
                other.pages[kind] += pages
        return other

    def owns(self, kind: LayerType, index: int) -> bool:
        """Whether page `index` is there and nobody else's."""
        pages = self.pages[kind]
        return index < len(pages) and not self._store.pools[kind].shared(pages[index])


class PageStore:
    """The pages of a model's caches, for both kinds of layers: as many as were held at a time, and who holds them."""

    def __init__(self, model: PackedModel) -> None:
        self.lock = threading.RLock()
        """Held by whoever changes what is held, and through a forward."""
        self.past = model.config.sliding_window - 1
        """Positions before its own that a token sees in sliding layers."""
        self._model = model
        self.pages = new_pages(model, full=0, sliding=0)
        self.generation = 0
        """Grows with the pages, which then lie elsewhere."""
        self.pools = {kind: PagePool(0) for kind in KINDS}

    def write(self, kind: LayerType, wanted: Sequence[tuple[_Row, int]]) -> None:
        """Give requests pages of their own at an index of their tables, each with what it held so far."""
        pool, old, new = self.pools[kind], list[int](), list[int]()
        if len(wanted) > pool.available:
            self._grow(kind, max(len(wanted) - pool.available, GROWTH))
        for row, index in wanted:
            pages = row.pages[kind]
            page = pool.take()
            if index == len(pages):
                pages.append(page)
                continue
            old.append(pages[index])
            new.append(page)
            pool.drop(pages[index])
            pages[index] = page
        if old:
            self._copy(kind, old, new)

    def drop(self, held: dict[LayerType, list[int]]) -> None:
        """A request is gone."""
        with self.lock:
            for kind, pages in held.items():
                for page in pages:
                    if page >= 0:
                        self.pools[kind].drop(page)

    def _layers(self, kind: LayerType) -> list[int]:
        return [number for number, layer in enumerate(self._model.layers) if layer.kind == kind]

    def _grow(self, kind: LayerType, count: int) -> None:
        """Have so many pages more; kernels read whole tiles, so what was never written must be finite."""
        self.pools[kind].grow(count)
        keys, values = list(self.pages.keys), list(self.pages.values)
        for number in self._layers(kind):
            for pools in (keys, values):
                pools[number] = F.pad(pools[number], (0, 0) * 3 + (0, count))
        self.pages = Pages(keys=tuple(keys), values=tuple(values))
        self.generation += 1

    def _copy(self, kind: LayerType, old: list[int], new: list[int]) -> None:
        source, target = (torch.tensor(pages, device=self._model.device) for pages in (old, new))
        for number in self._layers(kind):
            for pool in (self.pages.keys[number], self.pages.values[number]):
                pool.index_copy_(0, target, pool.index_select(0, source))


def request_bytes(model: PackedModel, tokens: int) -> int:
    """Bytes of the pages that hold so many tokens of a request."""
    full, sliding = page_bytes(model.config, model.dtype.itemsize)
    pages, window = pages_for(tokens), model.config.sliding_window
    return pages * full + min(pages, pages_for(window - 1) + 1) * sliding
