"""Inputs of the checks."""

import torch
from torch import Tensor

from redraft.kernels.triton.segments import Segments


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def segments(rows: int, *entries: tuple[int, int, int]) -> Segments:
    """Segments of (kind, start, length)."""
    kind, start, length = (ints(*column) for column in zip(*entries, strict=True))
    return Segments(kind=kind, start=start, length=length, rows=rows)
