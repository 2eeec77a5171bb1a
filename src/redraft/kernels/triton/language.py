"""Triton itself, where it is installed, and when to use it.

Kernel files take `tl` and `jit` from here, so that they import (and their eager twins run) without Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
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
        from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
        from triton.language.target_info import cuda_capability_geq
    except ImportError:  # not included with PyTorch for CPUs
        triton = tl = Kernel = None
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


@jit
def await_inputs():
    """Call this before a kernel first reads what another one wrote, and before its first write.

    A kernel launched with `early` may start while the previous one is still running. It also lets the next one start.
    """
    if cuda_capability_geq(9, 0):
        gdc_launch_dependents()
        gdc_wait()


@jit
def reciprocal(x):
    """1 / x in one instruction, to one unit in the last place."""
    if cuda_capability_geq(8, 0):
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@jit
def rounded(x, dtype: tl.constexpr):
    """A block of fp32 numbers rounded to `dtype`, as fp32.

    Converts two bf16 numbers per instruction. If they turn back to fp32 at once, the compiler would convert one at a
    time, of which a multiprocessor does only 16 per clock.
    """
    if dtype is tl.bfloat16 and cuda_capability_geq(8, 0):
        x = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return x.to(dtype).to(tl.float32)


@jit
def forget(pointer, LINES: tl.constexpr, PADDED: tl.constexpr):
    """Drop LINES lines of 128 bytes, the first at `pointer`, from the L2 cache instead of writing them to memory.

    Their contents are undefined from then on. PADDED is the power of two that covers LINES. All threads of the program
    must have read them, so there must be a reduction between their last read and this call.
    """
    if cuda_capability_geq(8, 0):
        line = tl.arange(0, PADDED)
        tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.s32 there, $2, 0;
            @there discard.global.L2 [$1], 128;
            mov.b32 $0, 0;
            }""",
            "=r,l,r",
            [pointer + line * (1024 // pointer.dtype.element_ty.primitive_bitwidth), (line < LINES).to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def early(x: Tensor) -> dict[str, Any]:
    """Launch options that let a kernel with `await_inputs` start before its predecessor has ended (Hopper)."""
    return {"launch_pdl": x.is_cuda and capability(x.device) >= (9, 0)}


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """A CUDA device's compute capability; (9, 0) is Hopper."""
    return torch.cuda.get_device_capability(device)


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU, on which persistent kernels start one program each; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def roomy(device: torch.device) -> bool:
    """Whether a program may have the 227 KiB of shared memory of a data-centre GPU; others have about 99."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 200 << 10


def use_triton(x: Tensor) -> bool:
    """Whether `x` goes to the Triton kernel: it is on a GPU (or the interpreter is on) and eager is not forced."""
    return triton is not None and (x.is_cuda or INTERPRETED) and kernels.forced() != "eager"


def cdiv(total: int, size: int) -> int:
    """How many tiles of `size` cover `total`."""
    return -(-total // size)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
