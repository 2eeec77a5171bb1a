"""The parts of a packed model: frozen records of tensors, one per layer.

Queries, keys and values are one product, gate and up another; norms are grouped the way kernels read them.
Matrices are plain tensors or in one of the formats of `redraft.kernels.packed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.config import LayerType, ModelConfig
from redraft.kernels.packed import Matrix, PackedExperts
from redraft.kernels.triton.residuals import AfterAttention, AfterExperts
from redraft.model.packed.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedLayer:
    """One layer. N query heads, G key/value heads, H head dim, I inner width, E experts.

    qkv      [(N+2G)H, D]; [(N+G)H, D] in full layers, whose values are their keys
    out      [D, NH]
    gate_up  [2I, D], gate rows first;  down [D, I]
    router   [E, D], expert_scale fp32 [E]
    q_norm   [H] times a power of two, k_norm [H] divided by it; see `cache.fp8`
    entering weight of the norm before attention
    """

    kind: LayerType
    qkv: Matrix
    out: Matrix
    gate_up: Matrix
    down: Matrix
    router: Tensor
    expert_scale: Tensor
    experts: PackedExperts
    q_norm: Tensor
    k_norm: Tensor
    entering: Tensor
    after_attention: AfterAttention
    after_experts: AfterExperts


def products(config: ModelConfig, number: int) -> dict[str, tuple[str, ...]]:
    """The names of the weights that make up each matrix field of layer `number`; a field's weights have one format."""
    at, heads = f"layers.{number}.", "qkv" if config.is_sliding(number) else "qk"
    return {
        "qkv": tuple(f"{at}attention.{part}_proj.weight" for part in heads),
        "out": (f"{at}attention.o_proj.weight",),
        "gate_up": (f"{at}mlp.gate_proj.weight", f"{at}mlp.up_proj.weight"),
        "down": (f"{at}mlp.down_proj.weight",),
        "router": (f"{at}router.proj.weight",),
        "experts": (f"{at}experts.gate_up_proj", f"{at}experts.down_proj"),
    }


SOFT = {
    "soft_gate_up": ("self_conditioning.gate_proj.weight", "self_conditioning.up_proj.weight"),
    "soft_down": ("self_conditioning.down_proj.weight",),
}
"""The names of the weights that make up each matrix field of self-conditioning."""
VOCABULARY = "embedding.weight"
"""The weight that makes up the vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """What one GPU holds: all layers, or its shard of them, see `tensor_parallel.py`, and the whole vocabulary.

    config       of a model with the heads and the inner width of this shard, and with all experts
    held_experts those that the shard holds
    frequencies  fp32 [H/2] per layer kind
    vocabulary   also the head
    embedding_scale  [1], rounded to the working dtype, as in the reference
    """

    config: ModelConfig
    held_experts: range
    layers: tuple[PackedLayer, ...]
    frequencies: dict[LayerType, Tensor]
    vocabulary: Vocabulary
    embedding_scale: Tensor

    @property
    def device(self) -> torch.device:
        return self.layers[0].entering.device

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].entering.dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedModel:
    """The whole text model. With `quantization` None every matrix is plain; `asked` is the requested quantization.

    Self-conditioning is plain in every format, and on the device of the first shard.
    """

    config: ModelConfig
    quantization: str | None
    asked: str | None
    soft_norm: Tensor
    soft_gate_up: Tensor
    soft_down: Tensor
    shards: tuple[Shard, ...]

    @property
    def layers(self) -> tuple[PackedLayer, ...]:
        """The layers of the first shard; its formats are those of all."""
        return self.shards[0].layers

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the first shard; all hold the same."""
        return self.shards[0].vocabulary

    @property
    def embedding_scale(self) -> Tensor:
        """The embedding scale of the first shard."""
        return self.shards[0].embedding_scale

    @property
    def device(self) -> torch.device:
        """Where the model takes and returns tensors."""
        return self.shards[0].device

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where the shards are."""
        return tuple(shard.device for shard in self.shards)

    @property
    def dtype(self) -> torch.dtype:
        return self.shards[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, on all devices; shared tensors count once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors(self)}.values())


def tensors(record: Any) -> Iterator[Tensor]:
    """Every tensor inside records, tuples and dicts."""
    if isinstance(record, Tensor):
        yield record
    elif isinstance(record, tuple | list):
        for item in record:
            yield from tensors(item)
    elif isinstance(record, dict):
        yield from tensors(list(record.values()))
    elif is_dataclass(record) and not isinstance(record, ModelConfig):
        for entry in fields(record):
            yield from tensors(getattr(record, entry.name))
