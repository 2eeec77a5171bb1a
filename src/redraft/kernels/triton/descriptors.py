"""Descriptors of matrices for Hopper's bulk copy engine."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def descriptor(matrix: Tensor, rows: int, columns: int) -> Any:
    """A descriptor through which kernels copy tiles [rows,columns] of a row-major matrix [N,K] in bulk."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, [rows, columns])
