"""Batches ahead of time: worker processes pack; the training process only receives them, in order.

Workers inherit the opened sources when they are forked, so start a loader before the GPU is used.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from types import TracebackType

from redraft.errors import TrainingError
from redraft.train.batch import Batch
from redraft.train.packing import Packer
from redraft.train.segments import Arrays

_AHEAD_PER_WORKER = 3
_packer: Packer | None = None


def _pack(index: int) -> Arrays:
    assert _packer is not None, "workers inherit the packer"
    return _packer.batch(index)


def _start_worker() -> None:
    """Ctrl-C is for the training process, which then stops its workers in order; if it is killed, they end too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Loader:
    """Iterates over the batches `indices` of a packer, in order; use it in a `with` block."""

    def __init__(self, packer: Packer, indices: range, workers: int) -> None:
        self._packer, self._indices, self._workers = packer, indices, workers
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: deque[Future[Arrays]] = deque()
        self._left = iter(indices)

    def __enter__(self) -> Loader:
        if self._workers:
            global _packer
            _packer = self._packer
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_start_worker)
            with warnings.catch_warnings():  # the threads that Python 3.12 warns about here hold none of our locks
                warnings.simplefilter("ignore", DeprecationWarning)
                self._submit()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __iter__(self) -> Iterator[Batch]:
        """The batches. Raises `TrainingError` if a worker is killed, as the system does when memory runs out."""
        if self._pool is None:
            for index in self._indices:
                yield Batch.from_arrays(self._packer.batch(index))
            return
        while self._waiting:
            try:
                arrays = self._waiting.popleft().result()
                self._submit()
            except BrokenProcessPool as error:
                raise TrainingError(
                    f"One of the {self._workers} processes that pack batches was killed, perhaps because memory ran "
                    "out; the last checkpoint was kept. Fewer data.workers take less."
                ) from error
            yield Batch.from_arrays(arrays)

    def _submit(self) -> None:
        assert self._pool is not None
        for index in islice(self._left, self._workers * _AHEAD_PER_WORKER - len(self._waiting)):
            self._waiting.append(self._pool.submit(_pack, index))
