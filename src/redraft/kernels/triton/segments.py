"""How a forward's rows belong to requests.

A forward has S segments of L rows each: row r is token r % L of segment r // L. The description of a segment is in
device memory, so one graph serves every mix of prompt chunks, commits and canvases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.kernels.triton.language import constexpr

UNUSED, ENCODE, ENCODE_IMAGES, DENOISE, SAMPLED_OUTSIDE = range(5)
"""Kinds of segment. ENCODE_IMAGES has images, or parts of them, among its tokens; the last two are canvases, and
SAMPLED_OUTSIDE ones have their head and sampling elsewhere."""

KIND_UNUSED, KIND_ENCODE_IMAGES, KIND_DENOISE = constexpr(UNUSED), constexpr(ENCODE_IMAGES), constexpr(DENOISE)
"""Constants that kernels compare kinds with; canvases are KIND_DENOISE and above."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """The segments of a forward: int32 [S] tensors on the device.

    kind    one of the constants above
    start   position of the first token in its request
    length  rows that are real, 0..L; the others are padding: they write no keys and are never attended to
    rows    L
    since, until  int32 [S*L], read where images are encoded: every row also sees positions since .. until, which are
                  those of its image or only its own. None: there are no such segments
    """

    kind: Tensor
    start: Tensor
    length: Tensor
    rows: int
    since: Tensor | None = None
    until: Tensor | None = None

    @property
    def sight(self) -> tuple[Tensor, Tensor]:
        """`since` and `until` for kernels, or stand-ins if they are not read."""
        return (self.kind if self.since is None else self.since), (self.kind if self.until is None else self.until)

    def positions(self) -> Tensor:
        """Position of every row, int32 [S*L]; padding rows have positions too."""
        offset = torch.arange(self.rows, dtype=torch.int32, device=self.start.device)
        return (self.start[:, None] + offset).flatten()

    def live(self) -> Tensor:
        """Rows that are real, bool [S*L]."""
        offset = torch.arange(self.rows, device=self.start.device)
        return ((offset < self.length[:, None]) & (self.kind[:, None] != UNUSED)).flatten()
