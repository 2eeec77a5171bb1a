"""One switch per GPU operation of a step: any can be sent to its eager twin, to find out which kernel is to blame.

REDRAFT_EAGER=attention,experts does it for a process, `eager_operations` inside a `with` block of one thread.
`watching` lets a benchmark wrap every operation of its thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from redraft import kernels
from redraft.errors import SettingError
from redraft.kernels.triton import language

P = ParamSpec("P")
T = TypeVar("T")

OPERATIONS = (
    "enter_tokens", "soft_norm", "soft_gated_linear", "soft_linear", "rope", "enter", "qkv_linear", "qkv", "attention",
    "quantize", "out_linear", "after_attention", "add_attention", "feed_forward_norms", "route", "experts",
    "sum_of_experts", "gated_linear", "mlp_linear", "after_experts", "add_experts", "next_norm", "predict",
    "class_sums", "automaton_terms", "best_tokens", "add_by_class", "finish_step", "soft_embeddings",
)  # fmt: skip
"""In the order of a step. Some are steps of a divided model only, and some only of canvases with a constraint."""


def known(names: Iterable[str]) -> frozenset[str]:
    """The names as a set; raises `SettingError` for the first that is not an operation."""
    found = frozenset(names)
    if unknown := sorted(found - set(OPERATIONS)):
        raise SettingError(f"{unknown[0]!r} is not a GPU operation; the operations are {', '.join(OPERATIONS)}.")
    return found


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation about to run."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Its result, by the kernel or the twin, whichever is switched on."""
        if self.name not in _eager.get():
            return self.function(*self.args, **self.kwargs)
        with kernels.force("eager"):
            return self.function(*self.args, **self.kwargs)


Watch = Callable[[Operation], Any]
_watch: ContextVar[Watch | None] = ContextVar("_watch", default=None)
_asked = known(name for name in os.environ.get("REDRAFT_EAGER", "").split(",") if name)
_eager: ContextVar[frozenset[str]] = ContextVar("_eager", default=_asked)


@contextmanager
def eager_operations(*names: str) -> Iterator[None]:
    """Send these operations to their eager twins. Twins may wait for the device, so CUDA graphs cannot hold them."""
    before = _eager.set(_eager.get() | known(names))
    try:
        yield
    finally:
        _eager.reset(before)


def graphable() -> bool:
    """Whether a forward may be captured: Triton is installed, and no operation is switched to its twin."""
    return language.triton is not None and not _eager.get() and kernels.forced() is None


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Pass every operation to `watch`, which runs it and returns its result."""
    before = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(before)


def watched() -> bool:
    """Whether operations are being watched."""
    return _watch.get() is not None


def call(name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, or its eager twin if the operation is switched to it."""
    assert name in OPERATIONS, name
    operation = Operation(name, function, args, kwargs)
    watch = _watch.get()
    return operation.run() if watch is None else watch(operation)
