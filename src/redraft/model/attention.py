"""Attention of one layer: projections, per-head norms and rotation. The caller's `attend` does the rest.

`encode`, `denoise` and training differ only in which keys a query sees, so the layer passes its q, k and v to a
function and knows nothing about caches or masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from redraft import kernels
from redraft.config import ModelConfig
from redraft.model.rope import rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [B,N,T,H], k [B,G,T,H], v [B,G,T,H]) -> attended values [B,T,N*H]."""


def causal_sight(here: Tensor, there: Tensor, window: int | None, together: Iterable[range] = ()) -> Tensor:
    """Which keys at positions `there` [S] queries at positions `here` [T] see, bool [T,S].

    A query sees keys up to and including its own position, within the window. A query inside one of the ranges
    `together` (an image's) sees all of that range as well.
    """
    here, there = here[:, None], there[None]
    seen = there <= here
    if window is not None:
        seen &= there > here - window
    for one in together:
        seen |= (here >= one.start) & (here < one.stop) & (there >= one.start) & (there < one.stop)
    return seen


class RMSNorm(nn.Module):
    """Root-mean-square norm whose weight is used as it is (no +1)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return kernels.rms_norm(x, self.weight, self.eps)

    def added(self, x: Tensor, y: Tensor) -> Tensor:
        """x plus the norm of y."""
        return kernels.add_norm(x, y, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with normed queries, keys and values. Full layers have no v_proj: values are keys."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.layer_head_dim(layer)
        kv_heads = config.layer_kv_heads(layer)
        self.layer, self.head_dim, self.eps = layer, dim, config.rms_norm_eps
        self.q_proj = nn.Linear(width, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * dim, bias=False) if config.is_sliding(layer) else None
        self.o_proj = nn.Linear(config.num_attention_heads * dim, width, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """x [B,T,D] -> rotated q [B,N,T,H], rotated k and unrotated v [B,G,T,H]."""
        heads = (*x.shape[:2], -1, self.head_dim)
        q, k = self.q_norm(self.q_proj(x).view(heads)), self.k_proj(x).view(heads)
        if self.v_proj is None:
            k, v = kernels.rms_norms(k, (self.k_norm.weight, None), self.eps)
        else:
            k, v = self.k_norm(k), kernels.rms_norm(self.v_proj(x).view(heads), None, self.eps)
        return rotate(q, rope).transpose(1, 2), rotate(k, rope).transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        return self.o_proj(attend(self.layer, *self.project(x, rope)))
