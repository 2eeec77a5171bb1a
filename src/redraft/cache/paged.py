"""Keys and values in pages: one pool of pages per layer, and per forward the rows that its tokens read and write.

A row is a token's place in a pool: page * PAGE + position % PAGE. Shapes: T tokens, S keys, G key/value heads, H head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redraft.cache.fp8 import from_fp8_bits, to_fp8_bits
from redraft.cache.pages import PAGE, pages_for
from redraft.cache.sizes import kv_costs
from redraft.config import FULL, SLIDING, ModelConfig


class PagedKV:
    """The pools' tensors, [pages * PAGE, G, H] per layer for keys and for values.

    `dtype` is what is written and read. With `units`, one per layer (`fp8.key_unit`), the pools store FP8.
    """

    def __init__(
        self,
        config: ModelConfig,
        full_pages: int,
        sliding_pages: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        units: Sequence[float] | None = None,
    ) -> None:
        self._device, self._dtype, self._units = device, dtype, units
        kept = dtype if units is None else torch.uint8  # the bits of FP8, which CPUs can copy
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for layer in range(config.num_hidden_layers):
            pages = sliding_pages if config.is_sliding(layer) else full_pages
            shape = (pages * PAGE, config.layer_kv_heads(layer), config.layer_head_dim(layer))
            self.keys.append(torch.empty(shape, device=device, dtype=kept))
            self.values.append(torch.empty(shape, device=device, dtype=kept))

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [T,G,H] at rows [T]."""
        if self._units is not None:
            keys, values = to_fp8_bits(keys / self._units[layer]), to_fp8_bits(values)
        self.keys[layer].index_copy_(0, rows, keys)
        self.values[layer].index_copy_(0, rows, values)

    def read(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [1,G,S,H] at rows [S]."""
        keys, values = self.keys[layer].index_select(0, rows), self.values[layer].index_select(0, rows)  # [S,G,H]
        if self._units is not None:
            keys = from_fp8_bits(keys, self._dtype) * self._units[layer]
            values = from_fp8_bits(values, self._dtype)
        return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]

    def rows(self, pages: Sequence[int], first: int, stop: int) -> Tensor:
        """Rows of positions first .. stop of a request with these pages, int64 [stop - first]."""
        begin = first // PAGE
        page = torch.tensor(pages[begin : pages_for(stop)], dtype=torch.long)
        rows = (page[:, None] * PAGE + torch.arange(PAGE)).flatten()
        return rows[first - begin * PAGE : stop - begin * PAGE].to(self._device)


def page_bytes(config: ModelConfig, item: int) -> tuple[int, int]:
    """Bytes of a page of the full and of the sliding space: keys and values, all layers, `item` bytes a number."""
    sizes = {cost.kind: cost.bytes_per_token * PAGE for cost in kv_costs(config, item)}
    return sizes.get(FULL, 0), sizes.get(SLIDING, 0)
