"""One dispatch table: operation -> backend -> function. Every version has the signature of its `eager` definition.

The backend follows from the tensors' device and dtype: on a CPU that is `native`, C compiled for this processor, or
`cpu`, PyTorch's operations, if there is no compiler. `force("eager")` (or REDRAFT_KERNELS=eager) overrides it
everywhere, for tests and for measuring what a kernel gains.

This is for models made of modules. The step of a packed model on a GPU has its own operations, with only two versions
each: a function in `triton/` that takes its kernel or the eager twin beside it, by its tensors' device and by `forced`,
as here. `switches` gives these functions names, so that `force` can apply to some of them alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from redraft.errors import SettingError, one_of
from redraft.kernels import cpu, cuda, eager, native, vocabulary

P = ParamSpec("P")
T = TypeVar("T")

BACKENDS = ("eager", "cpu", "cuda")
"""Backends that can be forced. A CPU uses `native` anyway; `REDRAFT_NATIVE=0` switches it off."""
MIN_ROWS = cpu.MIN_ROWS


def _checked(backend: str | None) -> str | None:
    if backend is not None and backend not in BACKENDS:
        raise SettingError(f"kernel backend is {backend!r}; it must be {one_of(BACKENDS)}.")
    return backend


_asked = _checked(os.environ.get("REDRAFT_KERNELS"))
_forced: ContextVar[str | None] = ContextVar("_forced", default=None)


@contextmanager
def force(backend: str) -> Iterator[None]:
    """Use `backend` for every operation that has it, inside a `with` block and in this thread only."""
    before = _forced.set(_checked(backend))
    try:
        yield
    finally:
        _forced.reset(before)


def forced() -> str | None:
    """The backend that `force` or REDRAFT_KERNELS asks for, if any. Compiled functions do not heed `force`."""
    if torch.compiler.is_compiling():  # a ContextVar cannot be traced: each use would part the graph in two
        return _asked
    return _forced.get() or _asked


def _backend(x: Tensor) -> str:
    if (backend := forced()) is not None:
        return backend
    if x.device.type != "cpu":
        return x.device.type
    if torch.is_grad_enabled():
        return "eager"  # the CPU versions cannot be differentiated
    return "native" if native.available() else "cpu"


TABLE: dict[str, dict[str, Callable[..., Any]]] = {}
"""The versions of every operation, by backend."""


def _operation(definition: Callable[P, T], **faster: Callable[P, T]) -> Callable[P, T]:
    """The operation that `eager` defines: by the backend for its first argument, where there is a version for it."""
    versions = TABLE[definition.__name__] = {"eager": definition, **faster}

    @wraps(definition)
    def dispatched(*args: P.args, **kwargs: P.kwargs) -> T:
        x = args[0]
        assert isinstance(x, Tensor)
        return versions.get(_backend(x), versions["eager"])(*args, **kwargs)

    return dispatched


rms_norm = _operation(eager.rms_norm, cpu=cpu.rms_norm, native=native.rms_norm, cuda=cuda.rms_norm)
rms_norms = _operation(eager.rms_norms, cpu=cpu.rms_norms, native=native.rms_norms, cuda=cuda.rms_norms)
add_norm = _operation(eager.add_norm, cpu=cpu.add_norm, native=native.add_norm, cuda=cuda.add_norm)
gelu_gate = _operation(eager.gelu_gate, cpu=cpu.gelu_gate, native=native.gelu_gate)
linear = _operation(eager.linear, cpu=cpu.linear, native=native.linear)
head = _operation(eager.head, cpu=cpu.head, native=native.head)
distribution = _operation(
    eager.distribution, cpu=vocabulary.distribution, native=native.distribution, cuda=vocabulary.distribution
)
soft_probabilities = _operation(eager.soft_probabilities, cpu=cpu.soft_probabilities, native=native.soft_probabilities)
expectation = _operation(eager.expectation, cpu=cpu.expectation, native=native.expectation)
attention = _operation(eager.attention, cpu=cpu.attention, native=native.attention, cuda=cuda.attention)
experts = _operation(eager.experts, cpu=cpu.experts, native=native.experts, cuda=cuda.experts)
