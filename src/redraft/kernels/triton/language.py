"""Triton itself, where it is installed, and when to use it.

Kernel files take `tl` and `jit` from here, so that they import (and their eager twins run) without Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from redraft import kernels
from redraft.kernels.triton.rehearsal import Rehearsed
from redraft.kernels.vocabulary import NEVER

if TYPE_CHECKING:  # kernels are another language: type checkers accept any name in `tl`, and any constant
    triton: Any = None
    gdc_launch_dependents: Any = None
    gdc_wait: Any = None
    cuda_capability_geq: Any = None
    Kernel: Any = None

    class _Anything(type):
        def __getattr__(cls, name: str) -> Any: ...

    class tl(metaclass=_Anything):
        constexpr: TypeAlias = Any
else:
    try:
        import triton
        import triton.language as tl
        from triton.language.extra.cuda import gdc_launch_dependents as gdc_launch_dependents
        from triton.language.extra.cuda import gdc_wait as gdc_wait
        from triton.language.target_info import cuda_capability_geq
    except ImportError:  # not included with PyTorch for CPUs
        triton = tl = Kernel = gdc_launch_dependents = gdc_wait = cuda_capability_geq = None
    else:

        class Kernel(Rehearsed, triton.JITFunction):
            """A kernel in Triton."""


# Kernels rely on the rounding of fused multiply-adds, which Triton only uses by default up to 3.9.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

INTERPRETED = triton is not None and os.environ.get("TRITON_INTERPRET") == "1"


def _no_capability(_major: int, _minor: int = 0) -> bool:
    """Whatever GPU the machine has, the interpreter knows none of its instructions."""
    return False


if INTERPRETED:
    cuda_capability_geq = _no_capability

OF_SEGMENTS = ("kind", "start", "length", "lengths", "since", "until", "temperatures", "page_table", "page_stride")
"""Arguments with a value for each segment have these names in every kernel, and no others do; they are `varying`."""


def jit(function: Callable[..., Any] | None = None, *, varying: Sequence[str] = ()) -> Any:
    """`triton.jit`, or the bare function (never called) without Triton.

    `varying` names arguments that are no use to the compiler: numbers that change from call to call, such as rows, and
    pointers whose entries are read one by one. For all others, code is compiled separately if they are 1, or if they or
    their address are multiples of 16. Pointers that are read in wide tiles must not be `varying`, or they are read one
    number at a time.
    """
    if function is None:
        return partial(jit, varying=varying)
    if triton is None:
        return function
    made = triton.jit if INTERPRETED else Kernel
    return made(function, do_not_specialize=[*OF_SEGMENTS, *varying])


def constexpr(value: float) -> Any:
    """A number that kernels may read from a global; the plain number without Triton."""
    return value if triton is None else triton.language.constexpr(value)


LOG2E, LN2 = constexpr(1.4426950408889634), constexpr(0.6931471805599453)
"""What turns nats into units of ln 2, and back: exponentials in kernels are powers of 2."""
LOWEST = constexpr(NEVER)
"""`vocabulary.NEVER` for kernels."""


def use_triton(x: Tensor) -> bool:
    """Whether `x` goes to the Triton kernel: it is on a GPU (or the interpreter is on) and eager is not forced."""
    return triton is not None and (x.is_cuda or INTERPRETED) and kernels.forced() != "eager"


def cdiv(total: int, size: int) -> int:
    """How many tiles of `size` cover `total`."""
    return -(-total // size)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
