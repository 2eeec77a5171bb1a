"""The one place that compiles: every training function at most once per process, for static shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch

SHAPES = 64
"""Compiled graphs per function: more than two layer kinds, two phases, two gradient modes and numbers of rows need.
Beyond this limit, functions would silently run uncompiled."""

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)  # type: ignore[attr-defined]
    return torch.compile(function, dynamic=False)


def compiled_if(function: Callable[P, R], compiled: bool) -> Callable[P, R]:
    """`function`, compiled if asked; every caller gets the same compiled function, so graphs are shared."""
    return _compiled(function) if compiled else function
