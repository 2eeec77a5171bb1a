"""Fixed tokens and forbidden tokens of one canvas."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from redraft.constraints.resident import Resident
from redraft.diffusion.sampler import MASKED, Distribution


class Allowed:
    """A `diffusion.constraint.CanvasConstraint`: positions pinned to one token, and tokens forbidden at positions.

    A pinned position's distribution is all on its token, so that its entropy is 0, it is always accepted, its soft
    embedding is the token's, and the committed canvas holds it.
    """

    def __init__(
        self, pins: Mapping[int, int] | None = None, forbidden: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        places = sorted(pins or {})
        self._places = places
        self._positions = Resident(torch.tensor(places, dtype=torch.long))
        self._tokens = Resident(torch.tensor([(pins or {})[place] for place in places], dtype=torch.long))
        self._free: dict[int, Resident] = {}
        self._forbidden = {  # by rows of free positions
            place - bisect_left(places, place): Resident(torch.tensor(list(ids), dtype=torch.long))
            for place, ids in (forbidden or {}).items()
            if place not in places
        }

    def tokens(self, device: torch.device) -> None:
        """Any token may stand somewhere."""
        return None

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] with every pinned token in place."""
        return canvas.index_copy(0, self._positions.on(canvas.device), self._tokens.on(canvas.device))

    def restrict(self, logits: Tensor) -> Distribution:
        """Take forbidden tokens out of the free positions' logits [F,V]."""
        for row, ids in self._forbidden.items():
            logits[row, ids.on(logits.device)] = MASKED
        return Distribution.of(logits)

    def free(self, length: int, device: torch.device) -> Tensor | None:
        """int64 [F], what is not pinned; None when nothing is."""
        if not self._places:
            return None
        if length not in self._free:
            pinned = set(self._places)
            rows = [place for place in range(length) if place not in pinned]
            self._free[length] = Resident(torch.tensor(rows, dtype=torch.long))
        return self._free[length].on(device)
