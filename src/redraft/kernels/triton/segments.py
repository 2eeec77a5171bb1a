"""How a forward's rows belong to requests.

A forward has S segments of L rows each: row r is token r % L of segment r // L. What a segment is stands in device
memory, so one graph serves every mix of prompt chunks, commits and canvases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.kernels.triton.language import constexpr

UNUSED, ENCODE, DENOISE, SAMPLED_OUTSIDE = 0, 1, 2, 3
"""Kinds of segment. The last two are canvases, of which a SAMPLED_OUTSIDE one has its head and sampling elsewhere."""

KIND_UNUSED, KIND_DENOISE = constexpr(UNUSED), constexpr(DENOISE)
"""What kernels compare kinds with; canvases are of KIND_DENOISE and above."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """The segments of a forward: int32 [S] tensors on the device.

    kind    one of the constants above
    start   position of the first token in its request
    length  rows that are real, 0..L; the others are padding: they write no keys and are never attended to
    rows    L
    """

    kind: Tensor
    start: Tensor
    length: Tensor
    rows: int

    def positions(self) -> Tensor:
        """Position of every row, int32 [S*L]; padding rows have positions too."""
        offset = torch.arange(self.rows, dtype=torch.int32, device=self.start.device)
        return (self.start[:, None] + offset).flatten()

    def live(self) -> Tensor:
        """Rows that are real, bool [S*L]."""
        offset = torch.arange(self.rows, device=self.start.device)
        return ((offset < self.length[:, None]) & (self.kind[:, None] != UNUSED)).flatten()
