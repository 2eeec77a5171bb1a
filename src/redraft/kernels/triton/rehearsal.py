"""Kernels compiled side by side, before the work that launches them runs.

Triton compiles a kernel when it is first launched, so one after the other, and a step of the model takes some sixty.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

import torch

try:
    from triton import AsyncCompileMode
except ImportError:  # no Triton, or an old one
    AsyncCompileMode = None

AT_ONCE = 16
"""Kernels that compile at a time, if there are so many processors: as many as were tried."""

_rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


class Rehearsed:
    """What makes a kernel compile instead of run inside `rehearse`; stands before Triton's own class."""

    def run(self, *arguments: Any, warmup: bool, **options: Any) -> Any:
        """Launch the kernel, or compile it alone if `warmup`, as Triton says."""
        launch: Any = super()
        return launch.run(*arguments, warmup=warmup or _rehearsing.get(), **options)


def rehearse(work: Callable[[], object]) -> None:
    """Compile all kernels that `work` launches, many at a time, and launch none.

    PyTorch's own operations run, over memory that no kernel has filled: they must not take it for indices. What does
    not compile says so when it is launched.
    """
    if AsyncCompileMode is not None:
        copy_context().run(_compile_all, work)  # what Triton and this keep in the context ends with it, come what may


def _compile_all(work: Callable[[], object]) -> None:
    assert AsyncCompileMode is not None
    _rehearsing.set(True)
    with _compilers() as pool, AsyncCompileMode(pool, ignore_errors=True):
        work()


def _compilers() -> ThreadPoolExecutor:
    """Threads whose device is this one's: kernels are compiled for it."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not torch.cuda.is_available():
        return ThreadPoolExecutor(min(count, AT_ONCE))
    device = (torch.cuda.current_device(),)
    return ThreadPoolExecutor(min(count, AT_ONCE), initializer=torch.cuda.set_device, initargs=device)
