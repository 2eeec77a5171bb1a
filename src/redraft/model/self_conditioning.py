"""Self-conditioning: feeds what the model believed at the last step, as soft embeddings, into the next step."""

from __future__ import annotations

from torch import Tensor

from redraft import kernels
from redraft.config import ModelConfig
from redraft.model.attention import RMSNorm
from redraft.model.moe import GatedMLP


class SelfConditioning(GatedMLP):
    """rms(embedded canvas + mlp(rms(soft))); the outer, weightless norm applies even if there is nothing to add."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden_size, config.intermediate_size)
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eps = config.rms_norm_eps

    def combine(self, embedded: Tensor, soft: Tensor | None) -> Tensor:
        """embedded [B,L,D] and soft [B,L,D] (None on a canvas' first step; zero rows add exactly zero) -> [B,L,D]."""
        if soft is not None:
            embedded = embedded + self(self.pre_norm(soft))
        return kernels.rms_norm(embedded, None, self.eps)
