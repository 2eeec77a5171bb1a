"""One slab of keys and values per layer and request.

Full layers keep every committed token in order. A sliding layer keeps the last `sliding_window - 1` tokens in a
ring. They are read in order of position, so that sums over keys round as they do in any other storage.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from redraft.cache.base import KVCache
from redraft.config import ModelConfig


@dataclass(slots=True)
class _Layer:
    keys: Tensor  # [B,G,S,H], S tokens at most
    values: Tensor

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]


class SlabCache(KVCache):
    """See `KVCache`."""

    def __init__(
        self, config: ModelConfig, batch_size: int, capacity: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(batch_size, capacity)
        self._layers = [
            _Layer(*(torch.empty(batch_size, *shape, device=device, dtype=dtype) for _ in range(2)))
            for shape in _shapes(config, capacity)
        ]
        self._rows: list[int] = list(range(batch_size))

    def select(self, rows: list[int]) -> Self:
        """See `KVCache.select`."""
        view = copy.copy(self)
        view._rows = [self._rows[row] for row in rows]
        view.lengths = [self.lengths[row] for row in rows]
        return view

    def copy(self, rows: list[int]) -> Self:
        """See `KVCache.copy`; the copy has its own storage."""
        copied, stored = self.select(rows), [self._rows[row] for row in rows]
        copied._layers = [_Layer(layer.keys[stored], layer.values[stored]) for layer in self._layers]
        copied._rows = list(range(len(rows)))
        return copied

    def cached(self, layer: int, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [G,S,H] of one request's visible past and their positions [S], in the order of positions."""
        store, length = self._layers[layer], self.lengths[row]
        count, request = min(length, store.capacity), self._rows[row]
        keys, values = store.keys[request, :, :count], store.values[request, :, :count]
        if 0 < count < length and (oldest := length % store.capacity):
            keys, values = keys.roll(-oldest, 1), values.roll(-oldest, 1)
        return keys, values, torch.arange(length - count, length, device=keys.device)

    def write(self, layer: int, keys: Tensor, values: Tensor, counts: list[int]) -> None:
        """Store the first counts[b] of the new tokens' keys and values [B,G,T,H] after each request's last token."""
        store = self._layers[layer]
        for row, count in enumerate(counts):
            kept = min(count, store.capacity)
            if kept:
                first = self.lengths[row] + count - kept
                places = torch.arange(first, first + kept, device=keys.device) % store.capacity
                store.keys[self._rows[row]].index_copy_(1, places, keys[row, :, count - kept : count])
                store.values[self._rows[row]].index_copy_(1, places, values[row, :, count - kept : count])


def _shapes(config: ModelConfig, capacity: int) -> list[tuple[int, int, int]]:
    """[G,S,H] of every layer."""
    ring = config.sliding_window - 1
    return [
        (
            config.layer_kv_heads(layer),
            min(capacity, ring) if config.is_sliding(layer) else capacity,
            config.layer_head_dim(layer),
        )
        for layer in range(config.num_hidden_layers)
    ]
