"""Parallel work: extra CUDA streams for what does not depend on the main one.

In a graph capture they become parallel branches. On other devices everything runs in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from itertools import count
from typing import Any, TypeVar, cast
from weakref import finalize

import torch

from redraft.kernels import switches
from redraft.kernels.triton.rehearsal import rehearse

T = TypeVar("T")
_sides = threading.RLock()


def exclusive_streams() -> AbstractContextManager[Any]:
    """Keeps other threads off the side streams.

    A capture would record their work. Also, memory freed on a side stream is reused as soon as that stream has waited
    for the one that called `in_parallel`, so a thread on another stream must have enqueued all of its reads before.
    """
    return _sides


class GraphMemory:
    """Memory for graphs that never run at the same time, on every device that they use; the first one launches them.

    It is given back when nothing refers to it any more, but never while graphs are captured: then PyTorch would end the
    process (an assertion in a destructor), and Python's garbage collector chooses neither moment nor thread.
    """

    def __init__(self, *devices: torch.device) -> None:
        self._number = next(_numbers)
        pools = _pools[self._number] = {}
        finalize(self, _give_back, self._number)
        for device in devices:
            with on_device(device):
                pools[device] = torch.cuda.MemPool()

    @property
    def pools(self) -> Mapping[torch.device, torch.cuda.MemPool]:
        """By device, the first one first. Whoever keeps one of them keeps it from being given back."""
        return _pools[self._number]


_numbers = count()
_pools: dict[int, dict[torch.device, torch.cuda.MemPool]] = {}
"""The pools of every `GraphMemory`, by its number: only these references keep them."""
_left: list[int] = []
"""Numbers whose pools could not be given back at once."""
_capturing = threading.Lock()
"""Held while graphs are captured, and while pools are given back."""


def _give_back(number: int) -> None:
    if not _capturing.acquire(blocking=False):  # perhaps by this very thread
        _left.append(number)
        return
    try:
        _pools.pop(number, None)
    finally:
        _capturing.release()


@contextmanager
def keeping_pools() -> Iterator[None]:
    """Inside, for a capture, no `GraphMemory` is given back; afterwards it is all that would have been.

    Other threads are kept off the side streams, too: whoever holds one of the two locks may want the other.
    """
    try:
        with exclusive_streams(), _capturing:
            yield
    finally:
        for _ in range(len(_left)):
            with suppress(IndexError):  # another thread has done it
                _give_back(_left.pop())


def capture(work: Callable[[], T], memory: GraphMemory, *, rehearsed: bool = False) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of some work, in the given memory, and its result, which every replay fills again.

    Unless `rehearsed`, the work is first rehearsed; then it runs once, so that kernels are compiled and libraries set
    up on the same streams and thread and in the same memory. Graphs of one memory share it, except for their results,
    so they may not run at the same time.
    """
    first, *_ = memory.pools
    stream = _capture_stream(first)
    with keeping_pools():
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.empty_cache()  # memory cached elsewhere is not available to the pools
        with _captured_in(memory.pools):
            if not rehearsed:
                rehearse(work)
            work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph, handle = torch.cuda.CUDAGraph(), cast(Any, memory.pools[first].id)
        others = {device: pool for device, pool in memory.pools.items() if device != first}
        with (
            _captured_in(others),
            torch.cuda.device(first),
            torch.cuda.graph(graph, pool=handle, stream=stream, capture_error_mode="thread_local"),
        ):
            result = work()
    return graph, result


@contextmanager
def _captured_in(pools: Mapping[torch.device, torch.cuda.MemPool]) -> Iterator[None]:
    """Makes a thread work on the capture streams of some devices, and take memory from their pools."""
    with ExitStack() as stack:
        for device, pool in reversed([*pools.items()]):  # the first one's stream comes last and is the current one
            stack.enter_context(torch.cuda.use_mem_pool(pool, device))
            stack.enter_context(torch.cuda.stream(_capture_stream(device)))
        yield


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a device the one on which kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all graphs of a device, because memory freed on a stream is only reused on the same stream."""
    return torch.cuda.Stream(device)


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def in_parallel(device: torch.device, *works: Callable[[], Any]) -> tuple[Any, ...]:
    """The functions' results, computed in parallel on CUDA; the last function runs on the main stream.

    All may read earlier results, and later work may read theirs. If a benchmark watches operations, they run one after
    the other.
    """
    if device.type != "cuda" or switches.watched():
        return tuple(work() for work in works)
    with exclusive_streams():
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
