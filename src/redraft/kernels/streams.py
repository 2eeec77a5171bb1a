"""Work beside work: further CUDA streams for what does not depend on the main one.

Inside a graph capture they become parallel branches. On other devices everything runs in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from redraft.kernels import switches

_sides = threading.RLock()


def alone() -> AbstractContextManager[Any]:
    """Keeps other threads off the side streams.

    A capture would record their work. And memory that was given back there is taken again as soon as the stream that
    called `beside` has been waited for: a thread on another one has to enqueue all of its reads first.
    """
    return _sides


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a device the one that kernels are launched on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def beside(device: torch.device, *works: Callable[[], Any]) -> tuple[Any, ...]:
    """The functions' results, computed at the same time on CUDA; the last one runs on the main stream.

    All may read what was computed before, and what they return may be read by what comes after. A benchmark that
    watches operations gets them one after the other.
    """
    if device.type != "cuda" or switches.watched():
        return tuple(work() for work in works)
    with alone():
        main = torch.cuda.current_stream(device)
        sides = [_side_stream(device, number) for number in range(len(works) - 1)]
        results = []
        for side, work in zip(sides, works, strict=False):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                results.append(work())
        results.append(works[-1]())
        for side in sides:
            main.wait_stream(side)
        return tuple(results)
