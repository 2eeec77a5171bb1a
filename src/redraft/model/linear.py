"""Linear layers for inference on a CPU. Training and GPUs keep PyTorch's, which compilers and hooks understand."""

from __future__ import annotations

from torch import Tensor, nn

from redraft import kernels


class Linear(nn.Linear):
    """A linear layer without a bias, computed through the table of kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return kernels.linear(input, self.weight)


def through_kernels(model: nn.Module) -> None:
    """Send the products of all linear layers through the table; the weights stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
