"""One dispatch table: operation -> backend -> function. Every backend has the signature of its `eager` twin.

The backend follows from the tensors' device and dtype: on a CPU that is `native`, C compiled for this processor, or
`cpu`, PyTorch's operations, if there is no compiler. `force("eager")` (or REDRAFT_KERNELS=eager) overrides it
everywhere, for tests and for measuring what a kernel gains.

This is for models made of modules. The step of a packed model on a GPU has its own operations, with only two versions
each: a function in `triton/` that takes its kernel or the eager twin beside it, by its tensors' device and by `forced`,
as here. `switches` gives these functions names, so that `force` can apply to some of them alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from redraft.errors import SettingError, one_of
from redraft.kernels import cpu, cuda, eager, native, vocabulary
from redraft.kernels.packed import Experts

TABLE: dict[str, dict[str, Callable[..., Any]]] = {
    "rms_norm": {"eager": eager.rms_norm, "cpu": cpu.rms_norm, "native": native.rms_norm, "cuda": cuda.rms_norm},
    "rms_norms": {"eager": eager.rms_norms, "cpu": cpu.rms_norms, "native": native.rms_norms, "cuda": cuda.rms_norms},
    "add_norm": {"eager": eager.add_norm, "cpu": cpu.add_norm, "native": native.add_norm, "cuda": cuda.add_norm},
    "gelu_gate": {"eager": eager.gelu_gate, "cpu": cpu.gelu_gate, "native": native.gelu_gate},
    "linear": {"eager": eager.linear, "cpu": cpu.linear, "native": native.linear},
    "head": {"eager": eager.head, "cpu": cpu.head, "native": native.head},
    "distribution": {
        "eager": eager.distribution,
        "cpu": vocabulary.distribution,
        "native": native.distribution,
        "cuda": vocabulary.distribution,
    },
    "soft_probabilities": {
        "eager": eager.soft_probabilities,
        "cpu": cpu.soft_probabilities,
        "native": native.soft_probabilities,
    },
    "expectation": {"eager": eager.expectation, "cpu": cpu.expectation, "native": native.expectation},
    "attention": {
        "eager": eager.attention,
        "cpu": cpu.attention,
        "native": native.attention,
        "cuda": cuda.attention,
    },
    "experts": {"eager": eager.experts, "cpu": cpu.experts, "native": native.experts, "cuda": cuda.experts},
}
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


def _call(operation: str, backend: str, *arguments: Any) -> Any:
    options = TABLE[operation]
    return options.get(backend, options["eager"])(*arguments)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See `eager.rms_norm`."""
    return _call("rms_norm", _backend(x), x, weight, eps)


def rms_norms(x: Tensor, weights: Sequence[Tensor | None], eps: float) -> list[Tensor]:
    """See `eager.rms_norms`."""
    return _call("rms_norms", _backend(x), x, weights, eps)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `eager.add_norm`."""
    return _call("add_norm", _backend(x), x, y, weight, eps)


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See `eager.gelu_gate`."""
    return _call("gelu_gate", _backend(gate), gate, up)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `eager.linear`."""
    return _call("linear", _backend(x), x, weight)


def head(hidden: Tensor, weight: Tensor, cap: float, temperature: float) -> Tensor:
    """See `eager.head`."""
    return _call("head", _backend(hidden), hidden, weight, cap, temperature)


def distribution(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `eager.distribution`."""
    return _call("distribution", _backend(logits), logits)


def soft_probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """See `eager.soft_probabilities`."""
    return _call("soft_probabilities", _backend(logits), logits, dtype)


def expectation(probabilities: Tensor, weight: Tensor) -> Tensor:
    """See `eager.expectation`."""
    return _call("expectation", _backend(probabilities), probabilities, weight)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """See `eager.attention`."""
    return _call("attention", _backend(q), q, k, v, mask)


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: Experts, down: Experts) -> Tensor:
    """See `eager.experts`. Grouped products need bf16, so fp32 on CUDA takes the eager path."""
    backend = _backend(x)
    if backend == "cuda" and x.dtype != torch.bfloat16:
        backend = "eager"
    return _call("experts", backend, x, index, weight, gate_up, down)
