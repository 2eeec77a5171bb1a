"""Packing: turns weights, requested one at a time by our own names, into a `PackedModel` on a device.

A source may be an open checkpoint, a model whose weights are removed as they are packed, or a generator of random
weights. Matrices are quantized on the device, experts a few at a time, so that besides the packed model only the
weights of one product exist, or both of one layer's experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from redraft.cache.fp8 import key_unit
from redraft.config import FULL, SLIDING, LayerType, ModelConfig
from redraft.kernels.device_group import enable_peer_access
from redraft.kernels.packed import Matrix, Packed, PackedExperts, PackedFp8
from redraft.kernels.triton.residuals import AfterAttention, AfterExperts
from redraft.model.layouts import Source, Weight, chunks, join
from redraft.model.packed.tensor_parallel import shard_config, shard_experts, shard_source
from redraft.model.packed.upload import upload
from redraft.model.packed.vocabulary import Vocabulary, pack_vocabulary
from redraft.model.packed.weights import SOFT, VOCABULARY, PackedLayer, PackedModel, Shard, products, tensors
from redraft.model.placement import lacks_fp8
from redraft.model.quantize import check_format
from redraft.model.rope import inverse_frequencies
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import Int4Weight, quantize_int4
from redraft.quant.prepare import prepare, takes_int4_group


def pack(
    config: ModelConfig,
    source: Source,
    *,
    device: torch.device,
    dtype: torch.dtype,
    other_devices: Sequence[torch.device] = (),
    quantization: str | None = None,
    fp8_vocabulary: bool = False,
) -> PackedModel:
    """Pack all weights of `source` on `device`, or divide the layers among it and `other_devices`, which get copies
    of the vocabulary; see `tensor_parallel.py`.

    `quantization` "fp8" or "int4" (int4 experts, FP8 attention and dense MLP) is the format of what these quantize;
    None keeps every weight in its own format, or in FP8 if that is one that no kernel takes. A GPU without FP8 products
    has in full what would be in FP8. `fp8_vocabulary` keeps the vocabulary in FP8, see the function of this name in
    `requirements`. Raises `SettingError` for an unknown format; whether a model fits its devices is checked before
    (`requirements.check_fit`).
    """
    check_format(quantization)
    enable_peer_access((device, *other_devices))
    packers = _packers(config, source, (device, *other_devices), dtype, quantization)
    vocabulary = packers[0].vocabulary(VOCABULARY, fp8=fp8_vocabulary)
    _give_back(device)  # else the first layers would be put where the table was and keep all of it allocated
    layers: list[list[PackedLayer]] = [[] for _ in packers]
    for number in range(config.num_hidden_layers):
        for packer, held in zip(packers, layers, strict=True):
            held.append(packer.layer(number))
    _give_back(device)
    shards = [
        Shard(
            config=packer.config,
            held_experts=shard_experts(config, number, len(packers)),
            layers=tuple(held),
            frequencies=packer.frequencies(),
            vocabulary=vocabulary.on(packer.device),
            embedding_scale=torch.tensor([config.hidden_size**0.5], dtype=dtype, device=packer.device),
        )
        for number, (packer, held) in enumerate(zip(packers, layers, strict=True))
    ]
    return packers[0].model(config, tuple(shards))


def _give_back(device: torch.device) -> None:
    """Return memory of freed tensors that torch has cached."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def repack(model: PackedModel, source: Source, changed: Set[str]) -> PackedModel:
    """`model` with matrices that hold weights named in `changed` packed again from `source`; the rest is shared."""
    packers = _packers(model.config, source, model.devices, model.dtype, model.asked)
    fp8_vocabulary = model.vocabulary.transposed is not None

    def renewed(record: Any, fields: _Fields) -> Any:
        return replace(record, **_made({name: made for name, made in fields.items() if changed & set(made[1])}))

    shards = []
    for shard, packer in zip(model.shards, packers, strict=True):
        layers = tuple(renewed(layer, packer.layer_fields(number)) for number, layer in enumerate(shard.layers))
        shards.append(replace(renewed(shard, packer.vocabulary_fields(fp8=fp8_vocabulary)), layers=layers))
    return replace(renewed(model, packers[0].soft_fields()), shards=tuple(shards))


def repacked_bytes(model: PackedModel, changed: Set[str]) -> dict[torch.device, int]:
    """The bytes of what `repack` makes anew, by device."""

    def anew(matrix: Packed | PackedExperts) -> int:
        if isinstance(matrix, PackedExperts):
            return anew(matrix.gate_up) + anew(matrix.down)
        return math.prod(matrix.shape) * model.dtype.itemsize if model.asked is None else matrix.nbytes

    found = dict.fromkeys(model.devices, 0)
    for shard in model.shards:
        for number, layer in enumerate(shard.layers):
            fields = products(model.config, number).items()
            found[shard.device] += sum(anew(getattr(layer, field)) for field, names in fields if changed & set(names))
        if VOCABULARY in changed:
            found[shard.device] += sum(tensor.nbytes for tensor in tensors(shard.vocabulary))
    soft = SOFT.items()
    found[model.device] += sum(getattr(model, field).nbytes for field, names in soft if changed & set(names))
    return found


def _fits_kernels(weight: Weight) -> bool:
    """Whether experts' weights can stay in INT4."""
    return isinstance(weight, Int4Weight) and takes_int4_group(weight.group)


_Fields = dict[str, tuple[Callable[..., Any], tuple[str, ...]]]
"""A record's matrix fields: the function that makes each, and the names of the weights it takes."""


def _made(fields: _Fields) -> dict[str, Any]:
    return {name: make(*names) for name, (make, names) in fields.items()}


def _packers(
    config: ModelConfig, source: Source, devices: Sequence[torch.device], dtype: torch.dtype, quantization: str | None
) -> list[_Packer]:
    """One for each device's shard."""
    gpus = len(devices)
    return [
        _Packer(shard_config(config, gpus), shard_source(source, config, number, gpus), device, dtype, quantization)
        for number, device in enumerate(devices)
    ]


class _Packer:
    """Turns weights of one source into records, under one set of choices."""

    def __init__(
        self, config: ModelConfig, source: Source, device: torch.device, dtype: torch.dtype, quantization: str | None
    ) -> None:
        self.config, self.source, self.device, self.dtype, self.asked = config, source, device, dtype, quantization
        self.fp8_products = not lacks_fp8(device)
        self.found: set[str] = set()

    def model(self, config: ModelConfig, shards: tuple[Shard, ...]) -> PackedModel:
        return PackedModel(
            config=config,
            quantization=self._format(),
            asked=self.asked,
            soft_norm=self.plain("self_conditioning.pre_norm.weight"),
            **_made(self.soft_fields()),
            shards=shards,
        )

    def layer(self, number: int) -> PackedLayer:
        at = f"layers.{number}."
        q_norm, k_norm = (self.plain(f"{at}attention.{part}_norm.weight") for part in "qk")
        unit = key_unit(k_norm)  # moved from keys to queries so that FP8 pages can hold keys; scores stay the same
        return PackedLayer(
            kind=SLIDING if self.config.is_sliding(number) else FULL,
            **_made(self.layer_fields(number)),
            expert_scale=self.plain(f"{at}router.per_expert_scale").float(),
            q_norm=q_norm * unit,
            k_norm=k_norm / unit,
            entering=self.plain(f"{at}pre_attention_norm.weight"),
            after_attention=AfterAttention(
                post_attention=self.plain(f"{at}post_attention_norm.weight"),
                pre_mlp=self.plain(f"{at}pre_mlp_norm.weight"),
                pre_experts=self.plain(f"{at}pre_experts_norm.weight"),
                router_scale=self.plain(f"{at}router.scale"),
            ),
            after_experts=self._after_experts(at, number),
        )

    def layer_fields(self, number: int) -> _Fields:
        """The matrix fields of a layer."""
        others = {"router": self.plain, "experts": self.experts}
        return {field: (others.get(field, self.dense), names) for field, names in products(self.config, number).items()}

    def soft_fields(self) -> _Fields:
        """The matrix fields of self-conditioning."""
        return {field: (self.rows if len(names) > 1 else self.plain, names) for field, names in SOFT.items()}

    def vocabulary_fields(self, *, fp8: bool) -> _Fields:
        """The field of the vocabulary, in FP8 or plain."""
        return {"vocabulary": (partial(self.vocabulary, fp8=fp8), (VOCABULARY,))}

    def rows(self, *names: str) -> Tensor:
        """Plain matrices concatenated along the rows."""
        return torch.cat([self.plain(name) for name in names])

    def plain(self, name: str) -> Tensor:
        """A weight in the working dtype."""
        return self._plain(self.source(name))

    def vocabulary(self, name: str, *, fp8: bool) -> Vocabulary:
        """The table of token embeddings, which stays where the source has it until a part of it is packed."""
        return pack_vocabulary(self._full(self.source(name)), self.device, self.dtype, fp8=fp8)

    def dense(self, *names: str) -> Matrix:
        """Matrices concatenated along the rows, in the format of dense products."""
        weights = [self.source(name) for name in names]
        if self._stay_plain(weights) or not self.fp8_products:
            plain = [self._plain(weight) for weight in weights]
            return plain[0] if len(plain) == 1 else torch.cat(plain)
        return join([self._fp8(weight) for weight in weights], torch.cat)

    def experts(self, gate_up: str, down: str) -> PackedExperts:
        """Both weights of a layer's experts in one format, made a few experts at a time."""
        weights = [self.source(gate_up), self.source(down)]
        format = self.asked or ("int4" if all(map(_fits_kernels, weights)) else "fp8")
        if self._stay_plain(weights) or (format == "fp8" and not self.fp8_products):
            return PackedExperts(*map(self._plain_experts, weights))
        self.found.add(format)
        return PackedExperts(*(self._quantized_experts(weight, format) for weight in weights))

    def _stay_plain(self, weights: Sequence[Weight]) -> bool:
        """Whether weights that must have one format are plain: if one of them is, unless quantization is asked for.

        Widening the others costs memory; rounding the plain one could undo what an adapter has changed in it.
        """
        return self.asked is None and any(isinstance(weight, Tensor) for weight in weights)

    def _plain(self, weight: Weight) -> Tensor:
        return upload(self._full(weight).to(self.dtype), self.device).contiguous()

    def _full(self, weight: Weight) -> Tensor:
        """A weight stored in full, where and as it is; a quantized one in the working dtype."""
        return weight if isinstance(weight, Tensor) else upload(weight, self.device).dequantize(self.dtype)

    def _fp8(self, weight: Weight) -> PackedFp8:
        if isinstance(weight, Tensor):
            return quantize_fp8(self._plain(weight))
        self.found.add("fp8")
        stored = upload(weight, self.device)
        return stored if isinstance(stored, PackedFp8) else quantize_fp8(stored.dequantize(torch.bfloat16))

    def _plain_experts(self, weight: Weight) -> Tensor:
        if isinstance(weight, Tensor):
            return self._plain(weight)
        return torch.cat([self._plain(part) for part in chunks(weight)])

    def _quantized_experts(self, weight: Weight, format: str) -> Packed:
        return join([prepare(self._quantized(part, format)) for part in chunks(weight)], torch.cat)

    def _quantized(self, part: Weight, format: str) -> PackedFp8 | Int4Weight:
        """Some experts in the format of their products; what is stored in it is kept if the kernels can read it."""
        moved = upload(part, self.device)
        if isinstance(moved, Int4Weight) and format == "int4" and takes_int4_group(moved.group):
            return moved
        if isinstance(moved, PackedFp8) and format == "fp8":
            return moved
        full = moved if isinstance(moved, Tensor) else moved.dequantize(torch.bfloat16)
        return quantize_int4(full) if format == "int4" else quantize_fp8(full)

    def _format(self) -> str | None:
        return self.asked or next((name for name in ("int4", "fp8") if name in self.found), None)

    def _after_experts(self, at: str, number: int) -> AfterExperts:
        last = number == self.config.num_hidden_layers - 1
        following = "norm.weight" if last else f"layers.{number + 1}.pre_attention_norm.weight"
        return AfterExperts(
            post_mlp=self.plain(f"{at}post_mlp_norm.weight"),
            post_experts=self.plain(f"{at}post_experts_norm.weight"),
            post_feedforward=self.plain(f"{at}post_feedforward_norm.weight"),
            encode_scalar=self.plain(f"{at}encode_scalar"),
            denoise_scalar=self.plain(f"{at}denoise_scalar"),
            following=self.plain(following),
        )

    def frequencies(self) -> dict[LayerType, Tensor]:
        """RoPE's inverse frequencies by kind of layer, see `Shard`."""
        kinds = dict.fromkeys(self.config.layer_types)
        return {kind: inverse_frequencies(self.config, sliding=kind == SLIDING).to(self.device) for kind in kinds}
