"""Parallel work: extra CUDA streams for what does not depend on the main one.

In a graph capture they become parallel branches. On other devices everything runs in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar, cast

import torch

from redraft.kernels import switches
from redraft.kernels.triton.rehearsal import rehearse

T = TypeVar("T")
_sides = threading.RLock()


def alone() -> AbstractContextManager[Any]:
    """Keeps other threads off the side streams.

    A capture would record their work. Also, memory freed on a side stream is reused as soon as that stream has waited
    for the one that called `beside`, so a thread on another stream must have enqueued all of its reads before.
    """
    return _sides


def memory_for_graphs(device: torch.device) -> torch.cuda.MemPool:
    """Memory of a CUDA device for graphs that never run at the same time; see `capture`."""
    with on_device(device):
        return torch.cuda.MemPool()


def capture(
    work: Callable[[], T], pool: torch.cuda.MemPool, *, rehearsed: bool = False
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of some work, in the memory of `pool`, and its result, which every replay fills again.

    Unless `rehearsed`, the work is first rehearsed; then it runs once, so that kernels are compiled and libraries set
    up on the same stream and thread and in the same memory. Graphs of one pool share its memory, except for their
    results, so they may not run at the same time.
    """
    stream = _capture_stream(torch.cuda.current_device())
    with alone():
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.empty_cache()  # memory cached elsewhere is not available to the pool
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
            if not rehearsed:
                rehearse(work)
            work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph, handle = torch.cuda.CUDAGraph(), cast(Any, pool.id)
        with torch.cuda.graph(graph, pool=handle, stream=stream, capture_error_mode="thread_local"):
            result = work()
    return graph, result


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a device the one on which kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """One stream for all graphs of a device, because memory freed on a stream is only reused on the same stream."""
    return torch.cuda.Stream(device)


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def beside(device: torch.device, *works: Callable[[], Any]) -> tuple[Any, ...]:
    """The functions' results, computed in parallel on CUDA; the last function runs on the main stream.

    All may read earlier results, and later work may read theirs. If a benchmark watches operations, they run one after
    the other.
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
