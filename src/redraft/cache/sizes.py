"""How many bytes keys and values take."""

from __future__ import annotations

from dataclasses import dataclass

from redraft.config import FULL, SLIDING, LayerType, ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCost:
    """Cache bytes of one kind of layer, all its layers together."""

    kind: LayerType
    layers: int
    bytes_per_token: int
    kept_tokens: int | None
    """The most tokens that a sliding layer keeps; None if every token is kept."""

    def bytes_at(self, tokens: int) -> int:
        """Bytes that one request of `tokens` committed tokens occupies."""
        kept = tokens if self.kept_tokens is None else min(tokens, self.kept_tokens)
        return kept * self.bytes_per_token


def kv_costs(config: ModelConfig, bytes_per_element: int = 2) -> tuple[KVCost, ...]:
    """Cache cost per kind of layer: keys and values are both stored, even where values come from the keys."""
    heads = {
        SLIDING: config.num_key_value_heads * config.head_dim,
        FULL: config.num_global_key_value_heads * config.global_head_dim,
    }
    kept = {SLIDING: config.sliding_window - 1, FULL: None}
    return tuple(
        KVCost(
            kind=kind,
            layers=(layers := config.layer_types.count(kind)),
            bytes_per_token=2 * heads[kind] * bytes_per_element * layers,
            kept_tokens=kept[kind],
        )
        for kind in (SLIDING, FULL)
        if kind in config.layer_types
    )
