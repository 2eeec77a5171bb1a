"""Gluon itself, where it is installed, and when to use it.

These kernels are for one architecture and use its matrix instructions and copies by name. For other cards, each has
a counterpart in `kernels.triton` that gives the same bits. Gluon is experimental and changes between versions of
Triton: with untested versions the counterparts are used, unless REDRAFT_GLUON=1 says otherwise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import Tensor

from redraft.kernels.triton.hardware import capability
from redraft.kernels.triton.language import INTERPRETED, OF_SEGMENTS, triton, use_triton
from redraft.kernels.triton.rehearsal import Rehearsed

if TYPE_CHECKING:  # kernels are another language
    from redraft.kernels.triton.language import tl as gl

    hopper: Any = None
    bulk_load: Any = None
    bulk_store: Any = None
    load_lines: Any = None
    reinterpret: Any = None

    def constant(function: Callable[..., Any]) -> Any: ...
    def gluon(function: Callable[..., Any]) -> Any: ...
else:
    try:
        from triton.experimental.gluon import constexpr_function as constant
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon._runtime import GluonJITFunction
        from triton.experimental.gluon.language.nvidia import hopper
    except ImportError:  # no Triton, or an older one
        gl = hopper = bulk_load = bulk_store = load_lines = reinterpret = None

        def gluon(function):
            return function

        constant = gluon
    else:

        class Kernel(Rehearsed, GluonJITFunction):
            """A kernel in Gluon."""

        def gluon(function):
            return Kernel(function, do_not_specialize=OF_SEGMENTS)

        # Tiles through the tensor memory accelerator, copies by every thread, and another view of shared memory; the
        # first names are those of Triton 3.8, except for the last, which is of 3.9.
        bulk_load = getattr(hopper.tma, "async_load", None) or hopper.tma.async_copy_global_to_shared
        bulk_store = getattr(hopper.tma, "async_store", None) or hopper.tma.async_copy_shared_to_global
        load_lines = getattr(hopper.async_copy, "async_load", None) or hopper.async_copy.async_copy_global_to_shared
        memory = gl.shared_memory_descriptor
        reinterpret = getattr(memory, "reinterpret", None) or memory._reinterpret


_log = logging.getLogger(__name__)

VERSIONS = ("3.6.", "3.7.", "3.8.", "3.9.")
"""Versions of Triton with which the kernels were tested."""


def use_gluon(x: Tensor) -> bool:
    """Whether `x` may go to a Gluon kernel: it is on a Hopper GPU and eager is not forced."""
    return use_triton(x) and not INTERPRETED and capability(x.device)[0] == 9 and _wanted()


@cache
def _wanted() -> bool:
    """Whether Gluon is available, in a tested version or with REDRAFT_GLUON=1; never with REDRAFT_GLUON=0.

    If it is only for the version that it is not, the log says so.
    """
    asked = os.environ.get("REDRAFT_GLUON")
    if asked in ("0", "1"):
        return gl is not None and asked == "1"
    tested = gl is not None and triton.__version__.startswith(VERSIONS)
    if not tested:
        _log.warning(
            "Hopper's own kernels are off, which makes the GPU slower: they were not tested with Triton %s. "
            "REDRAFT_GLUON=1 tries them, REDRAFT_GLUON=0 ends this warning.",
            triton.__version__,
        )
    return tested


@constant
def product_layout(dtype, columns):
    """The layout of a warp group's sums [64,columns] over inputs of a dtype."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 256 // dtype.primitive_bitwidth])


def descriptor(tensor: Tensor, block: list[int]) -> Any:
    """A descriptor for bulk copies of a tensor's blocks to where matrix instructions read them."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    size = tensor.element_size()
    layout = gl.NVMMASharedLayout(min(128, block[-1] * size), 8 * size, rank=len(block))
    return TensorDescriptor.from_tensor(tensor, block, layout)
