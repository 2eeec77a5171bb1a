"""Operations on expert rows as operators that a compiler leaves alone: custom kernels on a GPU, else their definition.

Triton is imported when a GPU first needs it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.kernels import eager


@torch.library.custom_op("redraft::take_rows", mutates_args=())
def take_rows(x: Tensor, row: Tensor) -> Tensor:
    """x [T,D], numbers `row` [R] -> x[row] [R,D]."""
    if not x.is_cuda:
        return x[row]
    from redraft.kernels.triton import training_rows as launches

    return launches.take_rows(x, row)


@take_rows.register_fake
def _(x: Tensor, row: Tensor) -> Tensor:
    return x.new_empty(len(row), x.shape[1])


@torch.library.custom_op("redraft::sum_rows", mutates_args=())
def sum_rows(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    """What `eager.sum_rows` defines."""
    if not rows.is_cuda:
        return eager.sum_rows(rows, place, weight)
    from redraft.kernels.triton import training_rows as launches

    return launches.sum_rows(rows, place, weight)


@sum_rows.register_fake
def _(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    return rows.new_empty(len(place), rows.shape[1])


@torch.library.custom_op("redraft::gate_gradients", mutates_args=())
def gate_gradients(inner: Tensor, d_hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What `eager.gate_gradients` defines."""
    if not inner.is_cuda:
        return eager.gate_gradients(inner, d_hidden, weight)
    from redraft.kernels.triton import training_rows as launches

    return launches.gate_gradients(inner, d_hidden, weight)


@gate_gradients.register_fake
def _(inner: Tensor, d_hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(inner), torch.empty_like(weight)
