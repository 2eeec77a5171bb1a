"""A step of one bucket: recorded as two CUDA graphs, or run operation by operation."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from redraft.engine.graph_buffers import StepBuffers
from redraft.engine.graph_step import Step
from redraft.kernels.streams import GraphMemory, capture
from redraft.model.packed.forward import Begun


class CapturedStep:
    """A step over its buffers, including both copies, in two parts, of which the first can begin while the step before
    it has yet to report. Captured into `pool` as two graphs, or not at all without one."""

    def __init__(self, buffers: StepBuffers, step: Step, pool: GraphMemory | None) -> None:
        self.buffers, self._step, self.has_begun = buffers, step, False
        self._begun: Begun | None = None
        self._hidden: tuple[Tensor, ...] | None = None
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        on_gpu = buffers.device.type == "cuda"
        self._taken, self._delivered = (torch.cuda.Event(external=True) if on_gpu else None for _ in range(2))
        if pool is not None:  # all segments are unused
            self._graphs = self._captured(pool)

    def _captured(self, pool: GraphMemory) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        """Both parts. What passes between them is in memory that other steps use, too: none may run in between."""
        first, begun = capture(self._begin_singly, pool)
        first.replay()  # the rest runs before it is captured
        rest, self._hidden = capture(partial(self._finish_singly, begun), pool)
        return first, rest

    @property
    def writes_ahead(self) -> bool:
        """Whether a step has begun whose first part includes layers, which write keys and values."""
        return self.has_begun and self._step.first_layers > 0

    def drop(self) -> None:
        """Forget what has only begun: something else is about to be written."""
        self.has_begun = False

    def begin(self) -> None:
        """Begin the step that was written last, which `launch` completes. The one before it may still be running."""
        if self._taken is not None:
            self._taken.synchronize()
        self.buffers.send()
        if self._graphs is None:
            self._begun = self._begin_singly()
        else:
            self._graphs[0].replay()
        self.has_begun = True

    def launch(self) -> tuple[Tensor, ...]:
        """Start the step on what the host has written; returns hidden states [R,D] on every device, possibly still
        being computed. If it has begun, no other step of its pool may have been launched since."""
        if not self.has_begun:
            self.begin()
        self.has_begun = False
        if self._graphs is None:
            assert self._begun is not None
            return self._finish_singly(self._begun)
        self._graphs[1].replay()
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
        return self._finish_singly(self._begin_singly())

    def _begin_singly(self) -> Begun:
        """The first part. An event, which is a separate node in a graph, tells when the host may send again."""
        self.buffers.upload()
        if self._taken is not None:
            self._taken.record()
        return self._step.begin()

    def _finish_singly(self, begun: Begun) -> tuple[Tensor, ...]:
        return self._step.finish(begun, self.deliver)

    def deliver(self, block: Tensor, first: int = 0) -> None:
        """Send a report, or that of the segments from `first` on, to the host. Another event tells when it has
        arrived."""
        self.buffers.download(block, first)
        if self._delivered is not None:
            self._delivered.record()
