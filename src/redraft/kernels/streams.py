"""Work beside work: a second CUDA stream for what does not depend on the main one.

Inside a graph capture the two become parallel branches. On other devices everything runs in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

from redraft.kernels import switches

T = TypeVar("T")
U = TypeVar("U")


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def beside(device: torch.device, work: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
    """Results of both functions, computed at the same time on CUDA; `work` runs on the side stream.

    Both may read what was computed before, and what they return may be read by what comes after. A benchmark that
    watches operations gets them one after the other.
    """
    if device.type != "cuda" or switches.watched():
        return work(), other()
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        done = work()
    also = other()
    main.wait_stream(side)
    return done, also
