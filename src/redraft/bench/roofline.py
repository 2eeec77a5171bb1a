"""The physical floor of one denoising step on a GPU, component by component, from the model's shape alone.

Every component must read its weights and caches once and do its multiplications once; the slower of the two, at the
card's measured rates, is its floor. The floors add up because the components depend on one another. Every expert is
assumed to be touched unless the measurement says how many were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from redraft.config import FULL, SLIDING, ModelConfig
from redraft.model.accounting import text_parts
from redraft.model.quantize import check_format
from redraft.quant.int4 import INT4_GROUP


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """The best that a card reaches: bytes per second, and multiply-adds counted as two operations per second."""

    bandwidth: float
    bf16: float
    fp8: float

    def to_dict(self) -> dict[str, float]:
        """JSON-ready, in TB/s and TFLOP/s."""
        return {
            "bandwidth_tb_s": round(self.bandwidth / 1e12, 3),
            "bf16_tflop_s": round(self.bf16 / 1e12, 1),
            "fp8_tflop_s": round(self.fp8 / 1e12, 1),
        }


H200 = Ceilings(bandwidth=4.31e12, bf16=793e12, fp8=1454e12)
"""Measured with a device-to-device copy and 8192-cubed products; used if no card is available."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A part of a step: the bytes it must move, the operations it must do, and whether these are FP8 products."""

    name: str
    bytes: float
    flops: float
    fp8: bool = False

    def bytes_ms(self, ceilings: Ceilings) -> float:
        """Milliseconds to move the bytes."""
        return 1e3 * self.bytes / ceilings.bandwidth

    def flops_ms(self, ceilings: Ceilings) -> float:
        """Milliseconds to compute the products."""
        return 1e3 * self.flops / (ceilings.fp8 if self.fp8 else ceilings.bf16)

    def floor_ms(self, ceilings: Ceilings) -> float:
        """The larger of the two."""
        return max(self.bytes_ms(ceilings), self.flops_ms(ceilings))


def step_components(
    config: ModelConfig,
    *,
    quantization: str | None,
    group: int = INT4_GROUP,
    batch: int,
    context: int,
    distinct_experts: float | None = None,
    kv_bytes: int = 2,
    vocabulary_bytes: int = 2,
    fp8_products: bool = True,
    gathers: bool = False,
    gpus: int = 1,
) -> tuple[Component, ...]:
    """The components of one step over `batch` canvases after `context` tokens each.

    `quantization` None is bf16; "int4" means int4 experts, with a scale for every `group` inputs, and everything else
    that "fp8" quantizes in FP8, or in bf16 without `fp8_products`. Self-conditioning stays in bf16. `distinct_experts`
    is the mean number touched per layer, by default all; `kv_bytes` is the size of a number in the cache,
    `vocabulary_bytes` that of a number in the tokens' embeddings, which are also the head. Where soft embeddings
    gather, each reads a row of these and writes one in bf16. Of several `gpus` they are those with the most canvases to
    sample; what the links between them take is not included.
    """
    check_format(quantization)
    parts = {part.name: part.total for part in text_parts(config)}
    rows, width, layers = batch * config.canvas_length, config.hidden_size, config.num_hidden_layers
    touched = (distinct_experts or config.num_experts) / config.num_experts
    dense_bytes, dense_fp8 = (1.0, True) if quantization is not None and fp8_products else (2.0, False)
    expert_bytes = {None: 2.0, "fp8": 1.0, "int4": 0.5 + 2 / group}[quantization]
    active = parts["experts"] / config.num_experts * config.top_k_experts
    attention = parts.get("sliding attention", 0) + parts.get("full attention", 0)
    vocabulary = config.vocab_size * width
    sampled = -(-batch // gpus) * config.canvas_length  # rows of whole canvases
    logits = 2.0 * sampled * config.vocab_size
    soft_bytes = (vocabulary_bytes + 2.0) * sampled * width if gathers else vocabulary_bytes * vocabulary + logits
    divided = (
        Component(name="experts", bytes=parts["experts"] * touched * expert_bytes, flops=2 * rows * active,
                  fp8=quantization == "fp8"),
        Component(name="attention projections", bytes=attention * dense_bytes, flops=2 * rows * attention,
                  fp8=dense_fp8),
        Component(name="dense MLP", bytes=parts["dense MLP"] * dense_bytes, flops=2 * rows * parts["dense MLP"],
                  fp8=dense_fp8),
        _attention(config, batch, context, kv_bytes),
    )  # fmt: skip
    return (
        *(replace(part, bytes=part.bytes / gpus, flops=part.flops / gpus) for part in divided),
        Component(name="router", bytes=2.0 * layers * config.num_experts * width,
                  flops=2 * rows * layers * config.num_experts * width),
        Component(name="head", bytes=vocabulary_bytes * vocabulary + logits, flops=2 * sampled * vocabulary,
                  fp8=vocabulary_bytes == 1),
        Component(name="soft embeddings", bytes=soft_bytes, flops=0 if gathers else 2 * sampled * vocabulary,
                  fp8=vocabulary_bytes == 1),
        Component(name="self-conditioning MLP", bytes=2.0 * parts["self-conditioning"],
                  flops=2 * rows * parts["self-conditioning"]),
    )  # fmt: skip


def floor_ms(components: tuple[Component, ...], ceilings: Ceilings) -> float:
    """Milliseconds of the whole step."""
    return sum(component.floor_ms(ceilings) for component in components)


def _attention(config: ModelConfig, batch: int, context: int, kv_bytes: int) -> Component:
    """Scores and weighted values over cached tokens and the canvas; in sliding layers, of what their window reaches."""
    length, moved, flops = config.canvas_length, 0.0, 0.0
    for kind in (SLIDING, FULL):
        layers = config.layer_types.count(kind)
        if not layers:
            continue
        layer = config.layer_types.index(kind)
        seen = length + (min(context, config.sliding_window - 1) if kind == SLIDING else context)
        dim = config.layer_head_dim(layer)
        moved += layers * batch * seen * 2 * config.layer_kv_heads(layer) * dim * kv_bytes
        flops += layers * batch * 4 * config.num_attention_heads * dim * length * seen
    return Component(name="attention", bytes=moved, flops=flops)
