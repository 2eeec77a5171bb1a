"""Compiles kernels in parallel, before the work that launches them runs; and launches them where their tensors are.

Triton compiles a kernel on its first launch, so one after the other, and a step of the model takes some sixty.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

AT_ONCE = 16
"""Kernels that compile at a time, if there are as many processors: the most that was tried."""

_rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


class _Compiling(Exception):
    """The kernel is being compiled, perhaps for another GPU."""


if TYPE_CHECKING:
    CompileOnce: Any = None
else:
    try:
        from triton import AsyncCompileMode
    except ImportError:  # no Triton, or an old one
        CompileOnce = None
    else:

        class CompileOnce(AsyncCompileMode):
            """Compiles in other threads what is launched, for the first GPU that launches it.

            Other GPUs then find it in Triton's cache of files. Triton's own mode, from 3.9 on, has them launch what is
            loaded on the first one.
            """

            def submit(self, key, *rest):
                if key in self.future_kernels:
                    raise _Compiling
                return super().submit(key, *rest)


class Rehearsed:
    """Makes a kernel run on the GPU that holds its arguments, and inside `rehearse` only compile; a base class that
    comes before Triton's own."""

    def run(self, *arguments: Any, warmup: bool, **options: Any) -> Any:
        """Launch the kernel, or only compile it if `warmup`, as in Triton."""
        launch: Any = super()
        with _on_device_of(arguments), suppress(_Compiling):
            return launch.run(*arguments, warmup=warmup or _rehearsing.get(), **options)
        return None


_here = nullcontext()


def _on_device_of(arguments: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Makes the GPU of a launch's first tensor the current one, to which Triton launches and for which it compiles.

    A tensor may come in a descriptor. Those in a tuple do not count: other GPUs hold some of them.
    """
    for argument in arguments:
        tensor = argument if isinstance(argument, Tensor) else getattr(argument, "base", None)
        if isinstance(tensor, Tensor):
            number = tensor.get_device()  # below 0 without a GPU
            return _here if number < 0 or number == torch.cuda.current_device() else torch.cuda.device(number)
    return _here


class _Zeros(TorchFunctionMode):
    """Fills newly allocated memory with zeros."""

    _taken = frozenset({torch.empty, torch.empty_like, torch.Tensor.new_empty})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in self._taken else result


def rehearsing() -> bool:
    """Whether kernels are currently compiled instead of run, in this thread."""
    return _rehearsing.get()


def rehearse(work: Callable[[], object]) -> None:
    """Compile all kernels that `work` launches, many at a time, and launch none.

    PyTorch's own operations run, on zeros where a kernel would have filled memory. A kernel that does not compile
    raises its error when it is launched. Rehearsals may be nested.
    """
    if _rehearsing.get():
        work()
    elif CompileOnce is not None:
        copy_context().run(_compile_all, work)  # discards what Triton and this set in the context, whatever happens


def _compile_all(work: Callable[[], object]) -> None:
    _rehearsing.set(True)
    with _compilers() as pool, CompileOnce(pool, ignore_errors=True), _Zeros():
        work()


def _compilers() -> ThreadPoolExecutor:
    """Threads with the same current device as this one, for which kernels are compiled."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not torch.cuda.is_available():
        return ThreadPoolExecutor(min(count, AT_ONCE))
    device = (torch.cuda.current_device(),)
    return ThreadPoolExecutor(min(count, AT_ONCE), initializer=torch.cuda.set_device, initargs=device)
