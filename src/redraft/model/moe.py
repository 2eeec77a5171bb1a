"""The feed-forward part of a layer: a dense MLP alongside a mixture of experts, both reading the same residual."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redraft import kernels
from redraft.config import ModelConfig


class GatedMLP(nn.Module):
    """down(gelu(gate x) * up x), without biases."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(kernels.gelu_gate(self.gate_proj(x), self.up_proj(x)))


class Router(nn.Module):
    """Chooses each token's experts from the raw residual (not from the normed copy that the experts read)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.scale = nn.Parameter(torch.ones(config.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.ones(config.num_experts))
        self.top_k, self.eps = config.top_k_experts, config.rms_norm_eps

    def probabilities(self, residual: Tensor) -> Tensor:
        """residual [T,D] -> softmax over all experts, fp32 [T,E]."""
        return self.of_normed(kernels.rms_norm(residual, None, self.eps))

    def of_normed(self, normed: Tensor) -> Tensor:
        """`probabilities` of a residual that has already been normed, without a weight."""
        return self.proj(normed * self.scale * self.scale.shape[0] ** -0.5).softmax(-1, dtype=torch.float32)

    def choose(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """The top-k of fp32 [T,E], renormalised to sum 1, then scaled per expert."""
        weight, index = probabilities.topk(self.top_k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        return index, weight * self.per_expert_scale[index]


class Experts(nn.Module):
    """All experts' weights as two tensors; rows 0..I-1 of `gate_up_proj` are the gate, the rest is up."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, width, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return kernels.experts(x, index, weight, self.gate_up_proj, self.down_proj)
