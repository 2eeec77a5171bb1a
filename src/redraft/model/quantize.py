"""Quantizing a model folder: reads one weight at a time, writes shards that load without quantizing again.

    fp8   attention, dense MLP and experts in FP8
    int4  experts in INT4, attention and dense MLP in FP8

Embedding, router, self-conditioning, norms and scalars stay as they are. The files follow compressed-tensors, with
experts as one matrix each, so that other engines read them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from redraft.errors import CheckpointError, SettingError, one_of
from redraft.model.checkpoint import Checkpoint
from redraft.model.files import INDEX_FILE
from redraft.model.folders import CONFIG_FILE, copy_beside, read_json, write_json
from redraft.model.names import EXPERTS, split_experts, to_hugging_face
from redraft.outputs import check_new, staged_folder
from redraft.quant.fp8 import quantize_fp8
from redraft.quant.int4 import check_group, quantize_int4

Quantization = Literal["fp8", "int4"]
FORMATS: tuple[Quantization, ...] = get_args(Quantization)
INT4_GROUP = 64
_DENSE = re.compile(r"layers\.\d+\.(attention\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight")


def format_of(name: str, format: str) -> str | None:
    """The number format of one of our weights in a folder of `format`; None if it stays as it is."""
    if EXPERTS.fullmatch(name):
        return format
    return "fp8" if _DENSE.fullmatch(name) else None


def check_format(quantization: str | None) -> None:
    """Raise `SettingError` for anything but the name of a format or None."""
    if quantization is not None and quantization not in FORMATS:
        raise SettingError(f"quantization is {quantization!r}; it must be {one_of(FORMATS, 'None')}.", "quantization")


def check_requantization(stored: Mapping[str, str], asked: str | None) -> None:
    """Raise `SettingError` if weights stored in these formats (by name) cannot be converted to the requested one."""
    if refusal := requantization_refusal(stored, asked):
        raise SettingError(refusal)


def requantization_refusal(stored: Mapping[str, str], asked: str | None) -> str | None:
    """Why weights stored in these formats (by name) cannot be converted to the requested one; None if they can."""
    if asked == "fp8" and "int4" in stored.values():
        return "quantization is 'fp8', but the stored weights are already int4; load them without it."
    if asked == "int4" and any(format == "fp8" and ".experts." in name for name, format in stored.items()):
        return "quantization is 'int4', but the stored experts are already fp8; load them without it."
    return None


def quantize_folder(
    source: Path,
    target: Path,
    format: str,
    *,
    group: int = INT4_GROUP,
    max_shard_size: int = 5_000_000_000,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> dict[str, Any]:
    """Write a quantized copy of the model folder `source` to the new or empty folder `target`; returns what it holds.

    Host memory holds one shard and one weight at a time, and what the C library keeps of freed memory
    (`kernels.cpu.return_freed_memory`). `progress` is called with the weights done and the total.
    Raises `SettingError` for an unknown format, a group that does not fit, a shard size below 1 or a target that cannot
    be made, and `CheckpointError` for a source that is damaged, has values that are not finite, or is quantized
    already. Nothing is left behind on failure.
    """
    if format not in FORMATS:
        raise SettingError(f"format is {format!r}; it must be {one_of(FORMATS)}.", "format")
    if max_shard_size < 1:
        raise SettingError(f"max_shard_size is {max_shard_size}; it must be at least 1 byte.")
    check_new(target)
    checkpoint = Checkpoint(source)
    if checkpoint.formats:
        raise CheckpointError(f"{source} is quantized already; quantize the bf16 weights.")
    for inputs in (checkpoint.config.hidden_size, checkpoint.config.moe_intermediate_size) if format == "int4" else ():
        check_group(inputs, group)
    with staged_folder(target, last=CONFIG_FILE) as work:
        sizes = _write_weights(checkpoint, work, format, group, max_shard_size, progress)
        _write_description(source, work, format, group)
    return {"format": format, "bytes": sum(sizes.values()), "bytes_by_format": sizes}


def _write_weights(
    checkpoint: Checkpoint, folder: Path, format: str, group: int, room: int, progress: Callable[[int, int], None]
) -> dict[str, int]:
    """Write all shards and their index; returns the bytes of each number format."""
    shard: dict[str, Tensor] = {}
    left = room
    names: list[list[str]] = []
    sizes: dict[str, int] = {}
    for done, name in enumerate(checkpoint.names(), 1):
        kept_as = format_of(name, format)
        for key, tensor in _stored(checkpoint, name, kept_as, group):
            if shard and tensor.nbytes > left:
                names.append(_save(shard, folder, len(names)))
                shard, left = {}, room
            shard[key] = tensor
            left -= tensor.nbytes
            sizes[kept_as or "not quantized"] = sizes.get(kept_as or "not quantized", 0) + tensor.nbytes
        progress(done, len(checkpoint.shapes))
    names.append(_save(shard, folder, len(names)))
    weight_map = {key: _shard_name(i) for i, keys in enumerate(names) for key in keys}
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
    return sizes


def _stored(checkpoint: Checkpoint, name: str, kept_as: str | None, group: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one of our weights as the files hold them."""
    weight = checkpoint.weight(name)
    assert isinstance(weight, Tensor)
    if kept_as is None:
        yield to_hugging_face(name), weight.contiguous()
        return
    for base, matrix in _matrices(name, weight):
        quantized = _quantized(matrix, kept_as, group)
        if not quantized[".weight_scale"].isfinite().all():
            raise CheckpointError(f"{base} has infinite or NaN values, which cannot be quantized.")
        yield from ((base + suffix, tensor) for suffix, tensor in quantized.items())


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
        return {".weight": weight.values, ".weight_scale": weight.scale}
    packed = quantize_int4(matrix, group)
    return {
        ".weight_packed": packed.packed.contiguous().view(torch.int32),
        ".weight_scale": packed.scale.contiguous(),
        ".weight_shape": torch.tensor(matrix.shape),
    }


def _save(shard: dict[str, Tensor], folder: Path, number: int) -> list[str]:
    file = folder / _shard_name(number)
    save_file(shard, file, metadata={"format": "pt"})
    return list(shard)


def _shard_name(number: int) -> str:
    return f"model-{number + 1:05}.safetensors"


def _write_description(source: Path, folder: Path, format: str, group: int) -> None:
    """Write the config that describes the weights, and copy the files beside it."""
    config = read_json(source / CONFIG_FILE) | {"quantization_config": _quantization_config(format, group)}
    write_json(folder / CONFIG_FILE, config)
    copy_beside(source, folder)


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
