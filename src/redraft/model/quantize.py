"""Quantizing a model folder: reads one weight at a time, writes shards that load without quantizing again.

    fp8   attention, dense MLP and experts in FP8
    int4  experts in INT4, attention and dense MLP in FP8

Embedding, router, self-conditioning, norms and scalars stay as they are. The files follow compressed-tensors, with
experts as one matrix each, so that other engines read them too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from redraft.errors import CheckpointError, SettingError, one_of
from redraft.model.accounting import matrix_bytes
from redraft.model.checkpoint import Checkpoint
from redraft.model.copying import check_finite, check_target, write_copy
from redraft.model.folders import CONFIG_FILE, read_json, resolve_folder
from redraft.model.layouts import Weight
from redraft.model.names import EXPERTS, split_experts, to_hugging_face
from redraft.model.shards import MAX_SHARD_SIZE
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import INT4_GROUP, check_group, quantize_int4

Quantization = Literal["fp8", "int4"]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
_DENSE = re.compile(r"layers\.\d+\.(attention\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight")


def weight_format(name: str, format: str) -> str | None:
    """The number format of one of our weights in a folder of `format`; None if it stays as it is."""
    if EXPERTS.fullmatch(name):
        return format
    return "fp8" if _DENSE.fullmatch(name) else None


def check_format(quantization: str | None) -> None:
    """Raise `SettingError` for anything but the name of a format or None."""
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise SettingError(
            f"quantization is {quantization!r}; it must be {one_of(QUANTIZATIONS)}, or left out.", "quantization"
        )


def check_requantization(stored: Mapping[str, str], asked: str | None) -> None:
    """Raise `SettingError` if weights stored in these formats (by name) cannot be converted to the requested one."""
    if refusal := requantization_refusal(stored, asked):
        raise SettingError(refusal)


def requantization_refusal(stored: Mapping[str, str], asked: str | None) -> str | None:
    """Why weights stored in these formats (by name) cannot be converted to the requested one; None if they can."""
    if asked == "int4" and any(format == "fp8" and ".experts." in name for name, format in stored.items()):
        return "quantization is 'int4', but the stored experts are already fp8; load them without it."
    return None


def quantize_folder(
    source: str | Path,
    target: Path,
    format: str,
    *,
    group: int | None = None,
    max_shard_size: int = MAX_SHARD_SIZE,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> dict[str, Any]:
    """Write a quantized copy of the model `source` (see `resolve_folder`) to the new or empty folder `target`.

    `group` is how many inputs share a scale in int4 (64 unless given). Returns the bytes of each format.

    Host memory holds one shard and one weight at a time, and what the C library keeps of freed memory
    (`kernels.cpu.return_freed_memory`). `progress` is called with the weights done and the total.
    Raises `SettingError` for an unknown format, a group with fp8 or one that does not fit, a shard size below 1 or a
    target that cannot be made, `HubError` for a hub id that cannot be resolved, and `CheckpointError` for a source that
    is damaged, has values that are not finite, or is quantized already. Nothing is left behind on failure.
    """
    if format not in QUANTIZATIONS:
        raise SettingError(f"format is {format!r}; it must be {one_of(QUANTIZATIONS)}.", "format")
    if group is not None and format == "fp8":
        raise SettingError(f"group is {group}, which needs format int4; fp8 has no groups.", "group")
    group = INT4_GROUP if group is None else group
    check_target(target, max_shard_size)
    checkpoint = Checkpoint(resolve_folder(source))
    if checkpoint.formats:
        raise CheckpointError(f"{checkpoint.folder} is quantized already; quantize the bf16 weights.")
    for inputs in (checkpoint.config.hidden_size, checkpoint.config.moe_intermediate_size) if format == "int4" else ():
        check_group(inputs, group)
    sizes = Counter[str]()

    def stored(name: str) -> Iterator[tuple[str, Tensor]]:
        kept_as = weight_format(name, format)
        for key, tensor in _stored(name, checkpoint.weight(name), kept_as, group):
            sizes[kept_as or "not quantized"] += tensor.nbytes
            yield key, tensor

    config = read_json(checkpoint.folder / CONFIG_FILE) | {"quantization_config": _quantization_config(format, group)}
    needed = sum(_size(checkpoint, name, weight_format(name, format), group) for name in checkpoint.shapes)
    write_copy(checkpoint, target, stored, config, needed=needed, max_shard_size=max_shard_size, progress=progress)
    return {"format": format, "bytes": sizes.total(), "bytes_by_format": dict(sizes)}


def _stored(name: str, weight: Weight, kept_as: str | None, group: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one of our weights as the files hold them."""
    assert isinstance(weight, Tensor)
    if kept_as is None:
        check_finite(name, weight)
        yield to_hugging_face(name), weight.contiguous()
        return
    for base, matrix in _matrices(name, weight):
        quantized = _quantized(matrix, kept_as, group)
        if not quantized[".weight_scale"].isfinite().all():
            raise CheckpointError(f"{base} has infinite or NaN values, which cannot be quantized.")
        yield from ((base + suffix, tensor) for suffix, tensor in quantized.items())


def _size(checkpoint: Checkpoint, name: str, kept_as: str | None, group: int) -> int:
    """How many bytes `_stored` makes of one of our weights."""
    shape = checkpoint.shapes[name]
    if kept_as is None:
        return math.prod(shape) * checkpoint.dtype_of(name).itemsize
    size = matrix_bytes(math.prod(shape[:-1]), shape[-1], kept_as, group)
    if kept_as == "int4":  # with the shape of each matrix, two whole numbers
        size += sum(map(len, split_experts(name, shape[0]))) * 2 * torch.int64.itemsize
    return size


def _matrices(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Name without suffix and matrix [N,K] of everything in a weight: one per expert, gate and up separately."""
    if not EXPERTS.fullmatch(name):
        yield to_hugging_face(name).removesuffix(".weight"), weight
        return
    for matrix, bases in zip(weight, split_experts(name, len(weight)), strict=True):
        yield from zip(bases, matrix.chunk(len(bases)), strict=True)


def _quantized(matrix: Tensor, format: str, group: int) -> dict[str, Tensor]:
    """The tensors of one quantized matrix [N,K], by suffix; see `redraft.model.layouts`."""
    if format == "fp8":
        weight = quantize_fp8(matrix)
        return {".weight": weight.values, ".weight_scale": weight.scale[:, None]}
    packed = quantize_int4(matrix, group)
    return {
        ".weight_packed": packed.packed.contiguous().view(torch.int32),
        ".weight_scale": packed.scale.contiguous(),
        ".weight_shape": torch.tensor(matrix.shape),
    }


def _quantization_config(format: str, group: int) -> dict[str, Any]:
    """The scheme as compressed-tensors describes it."""
    by_row = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    by_token = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    fp8 = {"weights": by_row, "input_activations": by_token, "format": "float-quantized"}
    by_group = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True,
                "dynamic": False}  # fmt: skip
    int4 = {"weights": by_group, "input_activations": None, "format": "pack-quantized"}
    dense, experts = (
        [r"re:.*self_attn\.[qkvo]_proj$", r"re:.*\.mlp\.(gate|up|down)_proj$"],
        [r"re:.*\.experts\.\d+\..*"],
    )
    groups = {"group_0": fp8 | {"targets": dense + experts}}
    if format == "int4":
        groups = {"group_0": fp8 | {"targets": dense}, "group_1": int4 | {"targets": experts}}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "float-quantized" if format == "fp8" else "mixed-precision",
        "config_groups": groups,
        "ignore": ["lm_head", r"re:.*router.*", r"re:.*self_conditioning.*", r"re:.*vision.*"],
        "kv_cache_scheme": None,
    }
