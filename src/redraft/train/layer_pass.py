"""One layer as the two streams run it: the parts before and after attention are compiled, once per kind of layer.

Shapes: B rows, T tokens of a stream, D width, N query heads in G groups, H head dim.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from redraft.model.moe import Experts
from redraft.model.transformer import Layer
from redraft.train.compiling import compiled_if
from redraft.train.experts import balance_loss, choose, routed_experts
from redraft.train.masks import Mask, masked_attention


def project(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The part of a layer before attention: x [B,T,D] -> q [B,N,T,H], k and v [B,G,T,H]."""
    return layer.attention.project(layer.pre_attention_norm(x), (cos, sin))


def finish(layer: Layer, x: Tensor, attended: Tensor, scalar: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """The part of a layer after attention: (x, attended [B,T,N*H]) -> next x [B,T,D] and the balance loss.

    `used`, bool [B,T], is False for tokens that only fill up the stream: they do not count for the balance.
    """
    x = x + layer.post_attention_norm(layer.attention.o_proj(attended))
    flat = x.flatten(0, 1)  # [B*T,D]
    probabilities = layer.router.probabilities(flat)
    index, weight, chosen = choose(layer.router, probabilities)
    sparse = _experts(layer.experts, layer.pre_experts_norm(flat), index, weight).view_as(x)
    dense = layer.post_mlp_norm(layer.mlp(layer.pre_mlp_norm(x)))
    out = layer.post_feedforward_norm(dense + layer.post_experts_norm(sparse))
    return (x + out) * scalar, balance_loss(probabilities, chosen, used.flatten())


def _experts(experts: nn.Module, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """The experts in training form; frozen and adapted ones already are."""
    if isinstance(experts, Experts):
        return routed_experts(x, index, weight, experts.gate_up_proj, experts.down_proj)
    return cast(Tensor, experts(x, index, weight))


class LayerPass(nn.Module):
    """One layer as training runs it; a module, so its weights can be sharded separately."""

    def __init__(self, layer: Layer, *, compiled: bool) -> None:
        super().__init__()
        self.layer, self.compiled = layer, compiled
        self.project, self.finish = compiled_if(project, compiled), compiled_if(finish, compiled)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Mask, past: tuple[Tensor, Tensor] | None, used: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [B,T,D], clean tokens, or canvases if they come after `past` keys and values: the next x, its own keys and
        values [B,G,T,H], and balance loss. `used` as in `finish`.
        """
        q, k, v = self.project(self.layer, x, *rope)
        attended = masked_attention(q, k, v, past, mask, compiled=self.compiled)
        scalar = self.layer.encode_scalar if past is None else self.layer.denoise_scalar
        x, balance = self.finish(self.layer, x, attended, scalar, used)
        return x, k, v, balance
