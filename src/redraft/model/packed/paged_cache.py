"""Keys and values that a packed model has committed outside the engine, in pages shared between requests.

Shapes: B requests, P pages of a request.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.cache.base import KVCache
from redraft.cache.paged import page_bytes
from redraft.cache.pages import PAGE, PagePool, drop_unseen, pages_for
from redraft.config import FULL, SLIDING, LayerType
from redraft.kernels.device_group import DeviceGroup
from redraft.kernels.triton.copies import copy_pages
from redraft.model.packed.pages import Pages, new_pages
from redraft.model.packed.weights import PackedModel

KINDS: tuple[LayerType, ...] = (FULL, SLIDING)
GROWTH = 16
"""The fewest pages to add at a time if memory allows it: growing invalidates captured graphs, which read old pages."""
SPARED = 3 << 29
"""GPU bytes that new pages leave free where possible, for forwards, samplers and graphs."""


class PagedCache(KVCache):
    """See `KVCache`. Requests share pages with the same content and copy a shared page before they write to it."""

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
        """Give every request its own pages for this many positions after its committed ones."""
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
        """See `KVCache.advance`; also gives back pages that no window reaches any more."""
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
        """Whether page `index` exists and is not shared."""
        pages = self.pages[kind]
        return index < len(pages) and not self._store.pools[kind].shared(pages[index])


class PageStore:
    """The pages of a model's caches for both kinds of layers, as many as were ever held at once, and their holders."""

    def __init__(self, model: PackedModel) -> None:
        self.lock = threading.RLock()
        """Held while pages change hands, and during a forward."""
        self.past = model.config.sliding_window - 1
        """How many earlier positions a token sees in sliding layers."""
        self._model = model
        self._bytes = dict(zip(KINDS, page_bytes(model.shards[0].config, model.dtype.itemsize), strict=True))
        self.pages = new_pages(model, full=0, sliding=0)
        self.generation = 0
        """Increases whenever the pages grow, which moves them in memory."""
        self.pools: dict[LayerType, PagePool] = {kind: PagePool(0) for kind in KINDS}

    def requests_at_once(self, most: int, tokens: int) -> int:
        """See `Model.requests_at_once`."""
        each = _request_pages(self._model, tokens)

        def missing(count: int) -> int:
            lacks = {kind: max(0, count * (each[kind] + 1) - pool.available) for kind, pool in self.pools.items()}
            return sum(lacks[kind] * self._bytes[kind] for kind in KINDS)  # one more, as tokens may start mid-page

        if not missing(most):
            return most
        free = self._free_bytes()
        return next((count for count in range(most, 1, -1) if missing(count) <= free), 1)

    def _free_bytes(self) -> int:
        """Bytes that new pages may take on each device."""
        if self._model.device.type != "cuda":
            return sys.maxsize
        return max(0, min(torch.cuda.mem_get_info(device)[0] for device in self._model.devices) - SPARED)

    def write(self, kind: LayerType, wanted: Sequence[tuple[_Row, int]]) -> None:
        """Give requests their own pages at the given indices of their tables, with the old pages' contents.

        If memory runs out, they keep the pages they had.
        """
        pool = self.pools[kind]
        if len(wanted) > pool.available:
            room = self._free_bytes() // sum(self._bytes.values())
            self._grow(kind, max(len(wanted) - pool.available, min(GROWTH, room)))
        new = [pool.take() for _ in wanted]
        held = [(row.pages[kind][index : index + 1], page) for (row, index), page in zip(wanted, new, strict=True)]
        try:
            self._copy(kind, [(old[0], page) for old, page in held if old])
        except BaseException:
            for page in new:
                pool.drop(page)
            raise
        for (row, index), page in zip(wanted, new, strict=True):
            for old in row.pages[kind][index : index + 1]:
                pool.drop(old)
            row.pages[kind][index : index + 1] = [page]

    def drop(self, held: dict[LayerType, list[int]]) -> None:
        """Drop the pages of a request that is gone."""
        with self.lock:
            for kind, pages in held.items():
                for page in pages:
                    if page >= 0:
                        self.pools[kind].drop(page)

    def _layers(self, kind: LayerType) -> list[int]:
        return [number for number, layer in enumerate(self._model.layers) if layer.kind == kind]

    def _grow(self, kind: LayerType, count: int) -> None:
        """Add this many pages, layer by layer, so that only one layer's pages exist twice at a time.

        If memory runs out, there are no more pages than before, and a later call continues where this one stopped.
        """
        pool, self.generation = self.pools[kind], self.generation + 1
        with DeviceGroup(self._model.devices) as group:
            for number in self._layers(kind):
                group.map(partial(_grow, number, pool.count + count), self.pages)
        pool.grow(count)

    def _copy(self, kind: LayerType, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the contents of pages to others; each pair is (from, to)."""
        if pairs:
            with DeviceGroup(self._model.devices) as group:
                group.map(partial(_copy, self._layers(kind), pairs), self.pages)


def _grow(number: int, count: int, pages: Pages) -> None:
    """Extend one layer's pages to `count`."""
    for pool in (pages.keys, pages.values):
        pool[number] = _grown(pool[number], count)


def _grown(pool: Tensor, count: int) -> Tensor:
    """`pool` extended to `count` pages; new ones are zeros, since kernels read whole tiles that must be finite."""
    return F.pad(pool, (0, 0) * 3 + (0, max(0, count - len(pool))))


def _copy(layers: Sequence[int], pairs: Sequence[tuple[int, int]], pages: Pages) -> None:
    """Copy the contents of pages to others in some layers of one shard."""
    source, target = torch.tensor([*zip(*pairs, strict=True)], device=pages.keys[0].device)
    copy_pages([pool[at] for at in layers for pool in (pages.keys, pages.values)], source, target)


def request_bytes(model: PackedModel, tokens: int) -> int:
    """Bytes, on each device, of the pages for this many tokens of a request."""
    sizes, pages = page_bytes(model.shards[0].config, model.dtype.itemsize), _request_pages(model, tokens)
    return sum(size * pages[kind] for size, kind in zip(sizes, KINDS, strict=True))


def _request_pages(model: PackedModel, tokens: int) -> dict[LayerType, int]:
    """How many pages this many tokens of a request take, by kind of layer."""
    pages = pages_for(tokens)
    return {FULL: pages, SLIDING: min(pages, pages_for(model.config.sliding_window - 1) + 1)}
