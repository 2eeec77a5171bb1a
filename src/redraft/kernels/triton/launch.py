"""How kernels follow one another on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from redraft.kernels.triton.hardware import capability

FEW_ROWS = 1024
"""With more rows than this in a forward, there are too few launches per unit of work for overlapping them to pay."""

FEW_ROWS_OF_PRODUCTS = 256
"""The same for products over experts, whose programs are many and large."""


def early(x: Tensor) -> dict[str, Any]:
    """Launch options that let a kernel with `await_inputs` start before its predecessor has ended (Hopper)."""
    return {"launch_pdl": x.is_cuda and capability(x.device) >= (9, 0)}


def chained(x: Tensor, rows: int, most: int = FEW_ROWS) -> dict[str, Any]:
    """Launch options for a kernel whose argument PDL says whether it has to wait for its inputs.

    With up to `most` rows the kernel is set up while the last programs of the previous one are still running, which
    saves half a microsecond per launch. With more, waiting programs would take room from working ones.
    """
    overlapped = rows <= most and early(x)["launch_pdl"]
    return {"PDL": overlapped, "launch_pdl": overlapped}
