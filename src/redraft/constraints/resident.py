"""Small tensors that device steps need again and again."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


class Resident:
    """A tensor with a copy on each device that has asked for it. The copies must not be modified."""

    def __init__(self, tensor: Tensor) -> None:
        self._copies = {tensor.device: tensor}
        self._first = tensor

    def __len__(self) -> int:
        return len(self._first)

    def on(self, device: torch.device) -> Tensor:
        """The tensor on a device; the host waits for the first copy only."""
        if device not in self._copies:
            self._copies[device] = self._first.to(device)
        return self._copies[device]


@lru_cache(maxsize=32)
def resident_ids(ids: tuple[int, ...]) -> Resident:
    """Token ids or positions, int64 [N]; one object for all who give the same ones."""
    return Resident(torch.tensor(ids, dtype=torch.long))
