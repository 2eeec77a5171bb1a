"""What operations on a CPU are compared with, and on which numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from redraft.kernels import TABLE, native

DTYPES = [torch.float32, torch.bfloat16]
NATIVE = pytest.param("native", marks=pytest.mark.skipif(not native.available(), reason="needs a C compiler"))
BACKENDS = ["cpu", NATIVE]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def assert_as_exact_as_eager(
    operation: str, backend: str, dtype: torch.dtype, *arguments: Any, size: float | None = None
) -> None:
    """Compare one backend with eager, both against eager in fp64 on the same rounded inputs.

    `size` is the largest number that is rounded on the way, where results do not show it: behind a cap, for one.
    """
    rounded = [cast(value, dtype) for value in arguments]
    exact = TABLE[operation]["eager"](*(cast(value, torch.float64) for value in rounded)).double()
    ours = TABLE[operation][backend](*[value.clone() if isinstance(value, Tensor) else value for value in rounded])
    theirs = TABLE[operation]["eager"](*rounded)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    slack = 4 * torch.finfo(torch.float32).eps * max(1.0, size or float(exact.abs().max()))
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + slack
