"""Tiles of row-major matrices: copied in bulk by a descriptor where a GPU has the tensor memory accelerator (TMA).

On GPUs without it, before Hopper, Triton would turn a descriptor's copy into a load for every single number, without
prefetching; there kernels get the matrix itself and read wide lines of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redraft.kernels.triton.hardware import capability
from redraft.kernels.triton.language import jit, tl


def bulk_copies(device: torch.device) -> bool:
    """Whether `descriptor` makes descriptors: on Hopper and later GPUs, and under the interpreter."""
    return device.type != "cuda" or capability(device) >= (9, 0)


def descriptor(matrix: Tensor, rows: int, columns: int) -> Any:
    """What `load_tile` and `store_tile` take for tiles [rows,columns] of a row-major matrix [N,K]."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if bulk_copies(matrix.device) else matrix


@jit
def load_tile(matrix, row, column, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BULK: tl.constexpr):
    """The tile [ROWS,COLUMNS] at a row and a column of a matrix [height,width]; zeros beyond its edges."""
    if BULK:
        tile = matrix.load([row, column])
    else:
        here, inside = _places(row, column, height, width, ROWS, COLUMNS)
        tile = tl.load(matrix + here, inside, other=0.0)
    return tile


@jit
def store_tile(matrix, tile, row, column, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BULK: tl.constexpr):
    """Store a tile [ROWS,COLUMNS] at a row and a column of a matrix [height,width], clipped to its edges."""
    if BULK:
        matrix.store([row, column], tile)
    else:
        here, inside = _places(row, column, height, width, ROWS, COLUMNS)
        tl.store(matrix + here, tile, inside)


@jit
def _places(row, column, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The offsets of a tile's numbers, and which of them are inside the matrix."""
    line, place = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None]
    return line.to(tl.int64) * width + place, (line < height) & (place < width)
