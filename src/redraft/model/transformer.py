"""The whole text model as modules, which can be trained and saved. Shapes: B requests, T tokens, D width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redraft import kernels
from redraft.config import SLIDING, ModelConfig
from redraft.model.attention import Attend, Attention, RMSNorm
from redraft.model.base import Model
from redraft.model.moe import Experts, GatedMLP, Router
from redraft.model.rope import inverse_frequencies, rope_table
from redraft.model.self_conditioning import SelfConditioning

RopeTables = dict[str, tuple[Tensor, Tensor]]
"""Cosines and sines of every position, by kind of layer."""


class Layer(nn.Module):
    """Attention, then a dense MLP and a mixture of experts in parallel; every part is normed on both sides."""

    encode_scalar: Tensor
    denoise_scalar: Tensor

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.kind = config.layer_types[layer]
        self.attention = Attention(config, layer)
        self.mlp = GatedMLP(width, config.intermediate_size)
        self.router = Router(config)
        self.experts = Experts(config)
        self.pre_attention_norm = RMSNorm(width, eps)
        self.post_attention_norm = RMSNorm(width, eps)
        self.pre_mlp_norm = RMSNorm(width, eps)
        self.post_mlp_norm = RMSNorm(width, eps)
        self.pre_experts_norm = RMSNorm(width, eps)
        self.post_experts_norm = RMSNorm(width, eps)
        self.post_feedforward_norm = RMSNorm(width, eps)
        self.register_buffer("encode_scalar", torch.ones(1))
        self.register_buffer("denoise_scalar", torch.ones(1))

    def forward(self, x: Tensor, rope: RopeTables, attend: Attend, causal: Tensor) -> Tensor:
        """x [B,T,D] -> [B,T,D]; `causal` as in `Model.run_layers`."""
        x = self.post_attention_norm.added(x, self.attention(self.pre_attention_norm(x), rope[self.kind], attend))
        scalar = torch.where(causal, self.encode_scalar, self.denoise_scalar)
        return self.post_feedforward_norm.added(x, self.feed_forward(x)) * scalar

    def feed_forward(self, x: Tensor) -> Tensor:
        """The sum of the dense MLP's and the experts' normed outputs."""
        flat, norms = x.flatten(0, 1), (None, self.pre_mlp_norm.weight, self.pre_experts_norm.weight)  # [B*T,D]
        raw, dense, sparse = kernels.rms_norms(flat, norms, self.pre_mlp_norm.eps)
        index, weight = self.router.choose(self.router.of_normed(raw))
        dense = self.post_mlp_norm(self.mlp(dense))
        return self.post_experts_norm.added(dense, self.experts(sparse, index, weight)).view_as(x)


class Transformer(Model):
    """DiffusionGemma as modules. `load_model` fills it from a checkpoint, `initialise` draws fresh weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        # Uniform: for normal numbers on the device "meta" PyTorch imports a compiler, which takes half a second.
        drawn = torch.empty(config.vocab_size, config.hidden_size).uniform_(-1.0, 1.0)
        self.embedding = nn.Embedding.from_pretrained(drawn, freeze=False)
        self.self_conditioning = SelfConditioning(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._frequencies: dict[str, Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def embedding_scale(self) -> Tensor:
        """See `Model.embedding_scale`."""
        return torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype, device=self.device)

    def embeddings(self, token_ids: Tensor) -> Tensor:
        """See `Model.embeddings`."""
        return self.embedding(token_ids)

    def logits(self, hidden: Tensor, temperature: float = 1.0, rows: Tensor | None = None) -> Tensor:
        """See `Model.logits`."""
        table = self.embedding.weight if rows is None else rows
        return kernels.head(hidden, table, self.config.final_logit_softcapping, temperature)

    def mean_embeddings(self, probabilities: Tensor, rows: Tensor | None = None) -> Tensor:
        """See `Model.mean_embeddings`."""
        table = self.embedding.weight if rows is None else rows
        return kernels.expectation(probabilities.to(self.dtype), table) * self.embedding_scale

    def condition(self, embedded: Tensor, soft: Tensor | None) -> Tensor:
        """See `Model.condition`."""
        return self.self_conditioning.combine(embedded, soft)

    def rope(self, positions: Tensor) -> RopeTables:
        """cos and sin per layer kind for positions [B,T]."""
        if not self._frequencies:  # set in one assignment, for other threads
            kinds = dict.fromkeys(self.config.layer_types)
            self._frequencies = {kind: inverse_frequencies(self.config, sliding=kind == SLIDING) for kind in kinds}
        return {
            kind: rope_table(positions, frequencies.to(positions.device), self.dtype)
            for kind, frequencies in self._frequencies.items()
        }

    def run_layers(self, x: Tensor, positions: Tensor, attend: Attend, causal: Tensor) -> Tensor:
        """See `Model.run_layers`."""
        rope = self.rope(positions)
        for layer in self.layers:
            x = layer(x, rope, attend, causal)
        return self.norm(x)
