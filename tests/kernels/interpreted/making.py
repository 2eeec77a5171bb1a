"""Inputs of the checks."""

from dataclasses import replace

import torch
from torch import Tensor

from redraft.kernels.triton.routing import Routing, _route
from redraft.kernels.triton.segments import Segments


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def segments(rows: int, *entries: tuple[int, int, int]) -> Segments:
    """Segments of (kind, start, length)."""
    kind, start, length = (ints(*column) for column in zip(*entries, strict=True))
    return Segments(kind=kind, start=start, length=length, rows=rows)


def route(
    logits: Tensor, scale: Tensor, top_k: int, block_rows: int, lengths: Tensor | None = None,
    share: range | None = None,
) -> Routing:  # fmt: skip
    """`route_rows` where the router's product is known."""
    return _route(logits[None].float(), logits.dtype, scale, top_k, block_rows, lengths, share)


def with_images(segments: Segments, *images: tuple[int, range]) -> Segments:
    """Segments among whose tokens images stand: (segment, positions), which may reach over the segment's ends."""
    since, until = segments.positions(), segments.positions() + 1
    for segment, positions in images:
        rows = torch.arange(segment * segments.rows, (segment + 1) * segments.rows)
        rows = rows[[int(position) in positions for position in segments.positions()[rows]]]
        since[rows], until[rows] = positions.start, positions.stop
    return replace(segments, since=since, until=until)
