"""Tensor parallelism: how a model's layers are divided among GPUs, and which shard of each weight a GPU holds.

Every GPU has the same number of query heads with their key/value heads, the same part of the dense MLP's inner width,
and the same number of whole experts. So each computes a part of the sums that `out` and `down` projections and experts
end with, for all rows, and these are reduced twice per layer (`residual_rows` says by whom). Norms, routers and
the vocabulary, which is also the head, are everywhere; self-conditioning is on the first GPU only.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor

from redraft.config import ModelConfig
from redraft.errors import SettingError
from redraft.kernels.packed import PackedFp8
from redraft.model.layouts import Source, Weight, leading
from redraft.quant.fp8 import quantize_fp8

COUNTS = (1, 2, 4, 8)
"""How many GPUs may hold a model; each of these divides the rows of any forward, which has a multiple of 16."""

SHARDED = ("sliding attention", "full attention", "dense MLP", "experts")
"""The parts of a model (`accounting.text_parts`) of which a GPU holds a shard."""


def check_tensor_parallel(config: ModelConfig, gpus: int) -> None:
    """Raise `SettingError` if a model's layers cannot be divided among so many GPUs."""
    if gpus not in COUNTS:
        raise SettingError(f"gpus is {gpus}; it must be 1, 2, 4 or 8.", "gpus")
    heads = config.num_attention_heads, config.intermediate_size, config.num_experts
    groups = {config.num_key_value_heads, config.num_global_key_value_heads}
    if any(size % gpus for size in heads) or any(count % gpus and gpus % count for count in groups):
        raise SettingError(
            f"gpus is {gpus}; this model's {heads[0]} query heads, {config.num_key_value_heads} and "
            f"{config.num_global_key_value_heads} key/value heads, dense MLP of {heads[1]} and {heads[2]} experts "
            "cannot be divided by it.",
            "gpus",
        )


def shard_config(config: ModelConfig, gpus: int) -> ModelConfig:
    """The shape of one GPU's shard: fewer heads and a narrower MLP; the number of experts stays the whole's."""
    return replace(
        config,
        num_attention_heads=config.num_attention_heads // gpus,
        num_key_value_heads=max(config.num_key_value_heads // gpus, 1),
        num_global_key_value_heads=max(config.num_global_key_value_heads // gpus, 1),
        intermediate_size=config.intermediate_size // gpus,
    )


def shard_experts(config: ModelConfig, number: int, gpus: int) -> range:
    """The experts that GPU `number` holds."""
    each = config.num_experts // gpus
    return range(number * each, (number + 1) * each)


def shard_source(source: Source, config: ModelConfig, number: int, gpus: int) -> Source:
    """What GPU `number` holds of each of a source's weights."""
    if gpus == 1:
        return source

    def weight(name: str) -> Weight:
        whole = source(name)
        found = re.fullmatch(r"layers\.(\d+)\.(attention|mlp|experts)\.(\w+_proj)(\.weight)?", name)
        if found is None:
            return whole
        layer, module, projection = int(found[1]), found[2], found[3]
        if module == "attention" and projection in ("k_proj", "v_proj"):
            heads = config.layer_kv_heads(layer)  # with fewer heads than GPUs, some GPUs hold the same one
            return _slice_outputs(whole, number * heads // gpus, max(heads // gpus, 1), heads)
        if projection == "o_proj" or (module, projection) == ("mlp", "down_proj"):
            return _slice_inputs(whole, number, gpus)
        return _slice_outputs(whole, number, 1, gpus)

    return weight


def _slice_outputs(weight: Weight, first: int, count: int, parts: int) -> Weight:
    """`count` of the `parts` equal parts of a weight's outputs, or of its experts, from part `first` on."""
    total = weight.shape[0]
    part = leading(weight, slice(first * total // parts, (first + count) * total // parts))
    return _own(part) if isinstance(part, Tensor) else part


def _slice_inputs(weight: Weight, number: int, parts: int) -> Weight:
    """One of the equal parts of a weight's inputs [N,K]. INT4 and NVFP4, whose groups may not divide, become FP8."""
    each = weight.shape[-1] // parts
    part = slice(number * each, (number + 1) * each)
    if isinstance(weight, Tensor):
        return _own(weight[:, part])
    if isinstance(weight, PackedFp8):
        return PackedFp8(weight.values[:, part], weight.scale)
    return quantize_fp8(weight.dequantize(torch.bfloat16)[:, part])


def _own(part: Tensor) -> Tensor:
    """A view that would keep the whole weight on a GPU, as a copy."""
    return part.clone() if part.is_cuda else part
