"""One dispatch table: operation -> backend -> function. Every backend has the signature of its `eager` twin.

The backend follows from the tensors' device and dtype. `force("eager")` (or REDRAFT_KERNELS=eager) overrides it
everywhere, for tests and for measuring what a kernel brings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from redraft.errors import SettingError
from redraft.kernels import cpu, cuda, eager

TABLE: dict[str, dict[str, Callable[..., Any]]] = {
    "attention": {"eager": eager.attention, "cpu": cpu.attention, "cuda": cuda.attention},
    "experts": {"eager": eager.experts, "cpu": cpu.experts, "cuda": cuda.experts},
    "rms_norm": {"eager": eager.rms_norm},
}
BACKENDS = ("eager", "cpu", "cuda")

_forced: str | None = os.environ.get("REDRAFT_KERNELS")


@contextmanager
def force(backend: str) -> Iterator[None]:
    """Use `backend` for every operation that has it, inside a `with` block."""
    global _forced
    if backend not in BACKENDS:
        raise SettingError(f"kernel backend is {backend!r}; it must be one of {', '.join(BACKENDS)}.")
    before, _forced = _forced, backend
    try:
        yield
    finally:
        _forced = before


def _backend(x: Tensor) -> str:
    if _forced is not None:
        return _forced
    return x.device.type


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See `eager.rms_norm`."""
    return eager.rms_norm(x, weight, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """See `eager.attention`."""
    options = TABLE["attention"]
    return options.get(_backend(q), eager.attention)(q, k, v, mask)


def experts(x: Tensor, index: Tensor, weight: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """See `eager.experts`. Grouped products need bf16, so fp32 on CUDA takes the eager path."""
    name = _backend(x)
    if (name == "cuda" and x.dtype != torch.bfloat16) or (name == "cpu" and torch.is_grad_enabled()):
        name = "eager"
    return TABLE["experts"].get(name, eager.experts)(x, index, weight, gate_up, down)
