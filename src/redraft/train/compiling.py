"""One place that compiles: every training function at most once per process, for static shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch

SHAPES = 64
"""Compiled graphs of one function: more than two layer kinds, two phases, two gradient modes and numbers of rows need.
Beyond them, functions would silently run as they are written."""

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)  # type: ignore[attr-defined]
    return torch.compile(function, dynamic=False)


def compiled_if(function: Callable[P, R], compiled: bool) -> Callable[P, R]:
    """`function`, compiled if asked; the same compiled function for every caller, so that graphs are shared."""
    return _compiled(function) if compiled else function
