"""Fresh weights for training from scratch: every activation starts near unit size, from one seed."""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.model.transformer import Transformer

_ROUTER_STD = 0.02
_Q_K_NORMS = ("q_norm.weight", "k_norm.weight")
_BRANCH_NORMS = ("post_attention_norm.weight", "post_feedforward_norm.weight")


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> None:
    """Draw all weights of `model` in place. The same seed gives the same weights on every device."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        constant = _constant(name, tensor, model.config.num_hidden_layers)
        if constant is not None:
            tensor.fill_(constant)
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * _std(name, tensor))


def _constant(name: str, tensor: Tensor, layers: int) -> float | None:
    """The starting value of norms and scales, None for what is random."""
    if name.endswith(_Q_K_NORMS):
        # Attention has no 1/sqrt(H): with these weights q.k of normed q and k starts with variance 1.
        return tensor.shape[0] ** -0.25
    if name.endswith(_BRANCH_NORMS):
        # These norms undo any scale of the matrices before them, so they alone determine how much a branch adds: the 2
        # branches of all layers together add as much as the embedding.
        return (2 * layers) ** -0.5
    return 1.0 if tensor.dim() == 1 else None


def _std(name: str, tensor: Tensor) -> float:
    """The spread of a random tensor: one over the root of its fan-in, which is the width for the embedding too."""
    if name.endswith("router.proj.weight"):
        return _ROUTER_STD  # a nearly even choice of experts, so that none is starved at the start
    return tensor.shape[-1] ** -0.5
