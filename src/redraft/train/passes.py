"""Forward and backward pass of one batch: kernel by kernel, or captured once and launched as one CUDA graph.

A step of a small model is thousands of kernels of a few microseconds each, which a host cannot launch faster than a GPU
runs them. Shapes never change in training, so the whole pass can be captured: the same kernels, with the same random
numbers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from redraft.diffusion.corruption import seed_for
from redraft.kernels.streams import keeping_pools
from redraft.train.batch import Batch
from redraft.train.objective import BatchLosses
from redraft.train.recipe import Recipe
from redraft.train.two_stream import TwoStream

WARM_UP = 3
"""Passes before a capture, for compiling and for what libraries set up on their first call."""


class EagerPass:
    """Both passes as they are written."""

    def __init__(self, stream: TwoStream) -> None:
        self.stream = stream

    def losses(self, batch: Batch, seed: int, step: int) -> BatchLosses:
        """The losses of `batch` with the noise of (seed, step), for inspection."""
        return self.stream(batch, seed, step)

    def is_settled(self, rows: int, seed: int, step: int) -> bool:
        """Whether the pass of (seed, step) over `rows` rows already runs in its final form."""
        return True

    def gradients(self, batch: Batch, seed: int, step: int) -> BatchLosses:
        """The losses of `batch` with the noise of (seed, step); leaves their gradients in `grad` of the weights."""
        outcome = self.losses(batch, seed, step)
        outcome.loss.backward()
        return dataclasses.replace(outcome, loss=outcome.loss.detach())


@dataclass(frozen=True)
class _Capture:
    graph: torch.cuda.CUDAGraph
    outcome: BatchLosses
    gradients: list[tuple[nn.Parameter, Tensor]]


class CapturedPass:
    """Both passes as CUDA graphs, one for each number of conditioned rows, after `WARM_UP` passes kernel by kernel.

    Every batch must have the same tensors, of the same shapes. The next pass overwrites what a pass returns and the
    gradients that it leaves. The graphs keep the memory of a pass for themselves.
    """

    def __init__(self, stream: TwoStream) -> None:
        self._stream, self._eager = stream, EagerPass(stream)
        self._device = stream.model.device
        self._side = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()
        self._generator = torch.Generator(self._device)
        self._batch: Batch | None = None
        self._captures: dict[int, _Capture] = {}
        self._passes: Counter[int] = Counter()

    def losses(self, batch: Batch, seed: int, step: int) -> BatchLosses:
        """See `EagerPass.losses`."""
        capture = self._captures.get(self._stream.conditioned_rows(len(batch.tokens), seed, step))
        return self._replay(capture, batch, seed, step) if capture else self._eager.losses(batch, seed, step)

    def is_settled(self, rows: int, seed: int, step: int) -> bool:
        """See `EagerPass.is_settled`."""
        return self._stream.conditioned_rows(rows, seed, step) in self._captures

    def gradients(self, batch: Batch, seed: int, step: int) -> BatchLosses:
        """See `EagerPass.gradients`."""
        conditioned = self._stream.conditioned_rows(len(batch.tokens), seed, step)
        if conditioned not in self._captures:
            self._passes[conditioned] += 1
            if self._passes[conditioned] <= WARM_UP:
                return self._beside(batch, seed, step)
            self._captures[conditioned] = self._captured(batch, conditioned)
        capture = self._captures[conditioned]
        outcome = self._replay(capture, batch, seed, step)
        for weight, gradient in capture.gradients:
            weight.grad = gradient
        return outcome

    def _beside(self, batch: Batch, seed: int, step: int) -> BatchLosses:
        """Run on the stream that will be captured: what autograd keeps between passes belongs to one stream."""
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            outcome = self._eager.gradients(batch, seed, step)
        torch.cuda.current_stream(self._device).wait_stream(self._side)
        return outcome

    def _captured(self, batch: Batch, conditioned: int) -> _Capture:
        if self._batch is None:
            self._batch = Batch(**{name: tensor.clone() for name, tensor in batch.tensors().items()})
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # Other threads, such as those of NCCL, may use the device meanwhile.
        captured = torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local")
        with keeping_pools(), captured:
            outcome = self._stream.noised(self._batch, self._generator, conditioned)
            outcome.loss.backward()
        gradients = [(weight, weight.grad) for weight in self._stream.parameters() if weight.grad is not None]
        return _Capture(graph, dataclasses.replace(outcome, loss=outcome.loss.detach()), gradients)

    def _replay(self, capture: _Capture, batch: Batch, seed: int, step: int) -> BatchLosses:
        assert self._batch is not None
        for name, tensor in self._batch.tensors().items():
            tensor.copy_(getattr(batch, name))
        self._generator.manual_seed(seed_for(seed, step))
        capture.graph.replay()
        return capture.outcome


Pass = EagerPass | CapturedPass


def pass_for(stream: TwoStream, recipe: Recipe) -> Pass:
    """A captured pass if the recipe wants and allows one.

    Sharded weights are gathered during the pass, and dropout draws from the global generator: those stay eager.
    """
    compiled = stream.compiled and stream.model.device.type == "cuda"
    can_be = compiled and not recipe.run.shard and not stream.has_dropout
    return CapturedPass(stream) if recipe.run.capture and can_be else EagerPass(stream)
