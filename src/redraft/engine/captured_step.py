"""A step of one bucket: recorded as a CUDA graph, or run operation by operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_step import Deliver
from redraft.kernels.streams import capture

WholeStep = Callable[[Deliver], Tensor]
"""Runs a step over the fields of a bucket's buffers; delivers the report and returns hidden states [R,D]."""


class CapturedStep:
    """A step over its buffers, with both copies. Captured into `pool`, or not at all if there is none."""

    def __init__(self, buffers: StepBuffers, step: WholeStep, pool: Any) -> None:
        self.buffers, self._step = buffers, step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden: Tensor | None = None
        self._delivered = torch.cuda.Event(external=True) if buffers.device.type == "cuda" else None
        if pool is not None:  # all segments are unused
            self._graph, self._hidden = capture(self.run_eagerly, pool)

    def launch(self) -> Tensor:
        """Start the step over what the host has written; returns hidden states [R,D] that may still be computed."""
        if self._graph is None:
            return self.run_eagerly()
        self._graph.replay()
        assert self._hidden is not None
        return self._hidden

    def wait(self) -> None:
        """Until what was delivered last has arrived; then the host may write again. The device may still be at work."""
        if self._delivered is not None:
            self._delivered.synchronize()

    def run_eagerly(self) -> Tensor:
        """The same operation by operation, without waiting; for comparisons and for timing them."""
        self.buffers.upload()
        return self._step(self.deliver)

    def deliver(self, block: Tensor, first: int = 0) -> None:
        """A report, or that of segments from `first` on, is on its way to the host, and known to have arrived by an
        event, a node of its own in a graph."""
        self.buffers.download(block, first)
        if self._delivered is not None:
            self._delivered.record()
