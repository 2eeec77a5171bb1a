"""One place that compiles: every training function at most once per process, for static shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def compiled_if(function: Callable[P, R], compiled: bool) -> Callable[P, R]:
    """`function`, compiled if asked; the same compiled function for every caller, so that graphs are shared."""
    return _compiled(function) if compiled else function
