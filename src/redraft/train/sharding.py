"""Weights, gradients and optimizer state spread over the processes of a run, by PyTorch's `fully_shard`.

Every process keeps its part of the fp32 weights and of the optimizer's state. A forward pass gathers a layer's weights
in the compute dtype when it reaches it; they stay for the backward pass, because the two streams run every layer up to
three times per pass, and are freed after the step.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from redraft.train.distributed import World
from redraft.train.optimizer import Masters, decay_groups, update
from redraft.train.recipe import OptimizerSettings
from redraft.train.two_stream import TwoStream


class ShardedWeights:
    """The counterpart of `Masters` for sharded weights: updates them, and hands them out for checkpoints and export."""

    def __init__(self, stream: TwoStream, dtype: torch.dtype, settings: OptimizerSettings, world: World) -> None:
        """Shards the model of `stream`, whose trained weights are fp32 and on the training device."""
        self.settings, self.world, self.stream = settings, world, stream
        stream.touches_all = True
        for buffer in stream.model.buffers():  # the policy only covers weights
            if buffer.is_floating_point():
                buffer.data = buffer.data.to(dtype)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        # Keys and values are views of what a layer computes; nothing here changes them in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        mesh = init_device_mesh(stream.model.device.type, (world.size,))
        settled: set[nn.Parameter] = set()
        for part in (*stream.passes, stream):  # the root shards what the layers have left
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=settled)
            cast(FSDPModule, part).set_reshard_after_backward(False)
            settled |= set(part.parameters())
        self.trained_parts = {name: p for name, p in stream.model.named_parameters() if p.requires_grad}
        groups = decay_groups(list(self.trained_parts.values()), settings.weight_decay)
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=settings.learning_rate, betas=settings.betas,
            eps=settings.eps, foreach=True,
        )  # fmt: skip

    def refresh(self, *, averaged: bool = False) -> None:
        """Forward passes gather the current weights; there is no running average of sharded ones."""

    def accumulate(self) -> None:
        """The backward pass has already summed up and spread the gradients."""

    def step(self, number: int, batches: int = 1) -> Tensor:
        """See `Masters.step`."""
        for parameter in self.trained_parts.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(batches)
        norm = update(self.optimizer, self.trained_parts.values(), self.settings, number)
        self.optimizer.zero_grad(set_to_none=True)
        for part in (*self.stream.passes, self.stream):
            assert isinstance(part, FSDPModule)
            part.reshard()
        return _whole(norm)

    def finite(self) -> bool:
        """Whether this process' parts of the weights are finite."""
        parts = (p.to_local() if isinstance(p, DTensor) else p for p in self.trained_parts.values())
        return all(bool(part.isfinite().all()) for part in parts)

    def state(self) -> dict[str, Any]:
        """The tensors that a resumed run needs, by name; all but `step` are sharded. A checkpoint is read into them."""
        self._fill_optimizer()
        out: dict[str, Any] = {}
        for name, parameter in self.trained_parts.items():
            kept = self.optimizer.state[parameter]
            out |= {f"weight.{name}": parameter.detach()}
            out |= {f"{kind}.{name}": kept[kind] for kind in ("exp_avg", "exp_avg_sq", "step")}
        return out

    def _fill_optimizer(self) -> None:
        """Before the first step AdamW has no state yet into which a checkpoint could be read."""
        for parameter in self.trained_parts.values():
            if not self.optimizer.state[parameter]:
                self.optimizer.state[parameter] |= {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    def trained(self) -> dict[str, Tensor]:
        """The trained weights in fp32 by name, put together on the CPU; every process has to call it."""
        return {name: _whole(parameter.detach()).cpu() for name, parameter in self.trained_parts.items()}

    def whole(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """All tensors of the model, put together on the CPU in `dtype`; every process has to call it."""
        return {name: _whole(tensor).to("cpu", dtype) for name, tensor in self.stream.model.state_dict().items()}


TrainedWeights = Masters | ShardedWeights
"""The weights of a run: whole in every process, or spread over them."""


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
