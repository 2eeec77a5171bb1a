"""Keys and values of a packed model, in pages: every shard has those of its heads.

Shapes: G key/value heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.cache.fp8 import FP8
from redraft.cache.pages import PAGE
from redraft.config import LayerType
from redraft.kernels.device_group import DeviceGroup
from redraft.model.packed.weights import PackedModel, Shard

_AT_ONCE = 16
"""Pages that are cleaned together: few, because memory may just have run out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """A shard's keys and values of all layers, [pages,256,G,H] each; `kinds` says which layers have the same pages."""

    keys: list[Tensor]
    values: list[Tensor]
    kinds: tuple[LayerType, ...]

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def clean(self, given: Mapping[LayerType, Sequence[int]]) -> Tensor:
        """Zero all values that are not finite in some pages of all layers of each kind; bool [], whether any were."""
        pages = {kind: torch.tensor(some, dtype=torch.long, device=self.device) for kind, some in given.items()}
        found = torch.zeros((), dtype=torch.bool, device=self.device)
        for kind, keys, values in zip(self.kinds, self.keys, self.values, strict=True):
            for pool in (keys, values):
                for some in pages[kind].split(_AT_ONCE):
                    found |= _clean(pool, some)
        return found


def _clean(pool: Tensor, pages: Tensor) -> Tensor:
    """Zero all values that are not finite in some pages [n] of a layer; bool [], whether any were."""
    values = pool.view(torch.uint8) if pool.dtype == FP8 else pool
    held = values[pages]
    bad = held & 0x7F == 0x7F if pool.dtype == FP8 else ~held.isfinite()
    values[pages] = held.masked_fill(bad, 0)
    return bad.any()


def new_pages(model: PackedModel, *, full: int, sliding: int, dtype: torch.dtype | None = None) -> tuple[Pages, ...]:
    """Every shard's pages of zeros, by default in the model's dtype: kernels read whole tiles, so unwritten memory must
    be finite."""

    def zeros(shard: Shard, number: int) -> Tensor:
        pages = sliding if shard.config.is_sliding(number) else full
        heads = shard.config.layer_kv_heads(number), shard.config.layer_head_dim(number)
        return torch.zeros(pages, PAGE, *heads, dtype=dtype or shard.dtype, device=shard.device)

    def of(shard: Shard) -> Pages:
        keys, values = ([zeros(shard, number) for number in range(len(shard.layers))] for _ in range(2))
        return Pages(keys=keys, values=values, kinds=shard.config.layer_types)

    with DeviceGroup(model.devices) as group:
        return tuple(group.map(of, model.shards))
