"""A step of one bucket: recorded as a CUDA graph, or run operation by operation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_step import Deliver
from redraft.kernels.streams import GraphMemory, capture

WholeStep = Callable[[Deliver], tuple[Tensor, ...]]
"""Runs a step over the fields of a bucket's buffers; delivers the report and returns hidden states [R,D] on every
device."""


class CapturedStep:
    """A step over its buffers, including both copies. Captured into `pool`, or not at all without one."""

    def __init__(self, buffers: StepBuffers, step: WholeStep, pool: GraphMemory | None) -> None:
        self.buffers, self._step = buffers, step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden: tuple[Tensor, ...] | None = None
        self._delivered = torch.cuda.Event(external=True) if buffers.device.type == "cuda" else None
        if pool is not None:  # all segments are unused
            self._graph, self._hidden = capture(self.launch_singly, pool)

    def launch(self) -> tuple[Tensor, ...]:
        """Start the step on what the host has written; returns hidden states [R,D] on every device, possibly still
        being computed."""
        self.buffers.send()
        if self._graph is None:
            return self.launch_singly()
        self._graph.replay()
        assert self._hidden is not None
        return self._hidden

    def wait(self) -> None:
        """Wait until the last report has arrived; then the next step may be launched. The device may still work."""
        if self._delivered is not None:
            self._delivered.synchronize()

    def give_up(self) -> None:
        """After an error, which may have come before the report: wait for all that has been launched, so that the next
        step may be."""
        if self._delivered is not None:
            torch.cuda.current_stream(self.buffers.device).synchronize()

    def launch_singly(self) -> tuple[Tensor, ...]:
        """Run the step one operation at a time on what was sent last, without waiting; for comparing and timing."""
        self.buffers.upload()
        return self._step(self.deliver)

    def deliver(self, block: Tensor, first: int = 0) -> None:
        """Send a report, or that of the segments from `first` on, to the host. An event, which is a separate node in a
        graph, tells when it has arrived."""
        self.buffers.download(block, first)
        if self._delivered is not None:
            self._delivered.record()
