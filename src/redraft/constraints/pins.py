"""Fixed tokens and forbidden tokens of one canvas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from redraft.diffusion.sampler import MASKED


class Allowed:
    """A `diffusion.constraint.CanvasConstraint`: positions pinned to one token, and tokens forbidden at positions.

    A pinned position's distribution is all on its token, so that its entropy is 0, it is always accepted, its soft
    embedding is the token's, and the committed canvas holds it.
    """

    def __init__(
        self, pins: Mapping[int, int] | None = None, forbidden: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self._positions = torch.tensor(sorted(pins or {}), dtype=torch.long)
        self._tokens = torch.tensor([(pins or {})[p] for p in self._positions.tolist()], dtype=torch.long)
        self._forbidden = {p: torch.tensor(list(ids)) for p, ids in (forbidden or {}).items()}

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas [L] with every pinned token in place."""
        return canvas.index_copy(0, self._positions.to(canvas.device), self._tokens.to(canvas.device))

    def restrict(self, logits: Tensor) -> None:
        """Leave pinned rows only their token, and take forbidden tokens out of theirs; logits [L,V] in place."""
        if len(self._positions):
            rows, tokens = self._positions.to(logits.device), self._tokens.to(logits.device)
            logits[rows] = MASKED
            logits[rows, tokens] = 0.0
        for position, ids in self._forbidden.items():
            logits[position, ids.to(logits.device)] = MASKED

    def free(self, length: int) -> Tensor | None:
        """bool [L], False at pins; None when nothing is pinned."""
        if not len(self._positions):
            return None
        mask = torch.ones(length, dtype=torch.bool)
        mask[self._positions] = False
        return mask
