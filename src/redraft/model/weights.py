"""Checkpoints in the Hugging Face layout, both ways.

Loading reads every shard's header first, so that a folder that does not fit its config fails before anything is
allocated; then each tensor goes from the memory-mapped file straight into its parameter on the device. Saving
writes to a temporary folder and renames, so that nothing half-written is left.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from redraft.errors import CheckpointError, SettingError
from redraft.kernels.cpu import input_major, keep_freed_memory
from redraft.model.folders import CONFIG_FILE, read_config, read_json, resolve_folder
from redraft.model.moe import Experts
from redraft.model.names import is_tied_copy, is_vision, to_hugging_face
from redraft.model.placement import resolve_device, resolve_dtype
from redraft.model.transformer import Transformer

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMED_AT_MOST = 10

_logger = logging.getLogger("redraft")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    """Where a tensor is and what its file's header says of it."""

    shard: Path
    shape: tuple[int, ...]
    dtype: str


def load_model(
    model: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> Transformer:
    """The text model of `tiny`, a folder or a hub id, with its weights on `device` in `dtype`.

    `auto` means CUDA if there is one, and the checkpoint's dtype there (on a CPU the one that is fast).
    Raises `CheckpointError` for files that are missing, damaged or do not fit, `HubError` for a hub id that cannot
    be had, and `SettingError` for an impossible device or dtype.
    """
    target = resolve_device(device)
    resolve_dtype(dtype, target, torch.bfloat16)  # a wrong name fails before a long download
    folder = resolve_folder(model)
    with torch.device("meta"):
        transformer = Transformer(read_config(folder))
    stored = _read_headers(folder)
    sources = _match(transformer, stored, folder)
    chosen = resolve_dtype(dtype, target, _DTYPES[stored[sources["embedding.weight"]].dtype])
    transformer = transformer.to(chosen).to_empty(device=target)
    if target.type == "cpu":
        keep_freed_memory()
        _arrange_for_cpu(transformer)
    _copy(transformer, sources, stored)
    return transformer


def save_model(model: Transformer, folder: str | Path, *, max_shard_size: int = 5_000_000_000) -> None:
    """Write config.json and the weights in the model's dtype; more than `max_shard_size` bytes make several shards.

    Other files in the folder stay, a former model's weights go. Vision weights are not part of the model and are not
    written. Raises `SettingError` for a folder that is a file or a shard size below 1.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; a model is saved to a folder.")
    if max_shard_size < 1:
        raise SettingError(f"max_shard_size is {max_shard_size}; it must be at least 1 byte.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as temporary:
        written = _write(model, Path(temporary), max_shard_size)
        for name in written:
            os.replace(Path(temporary) / name, folder / name)
    for stale in [*folder.glob("model*.safetensors"), folder / INDEX_FILE]:
        if stale.name not in written:
            stale.unlink(missing_ok=True)


# --- loading -----------------------------------------------------------------------------------------------------


def _read_headers(folder: Path) -> dict[str, _Stored]:
    """Every tensor of every shard of the folder, by its name in the file."""
    stored: dict[str, _Stored] = {}
    for shard in _shards(folder):
        try:
            with safe_open(shard, "pt") as file:
                for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                    part = file.get_slice(name)
                    stored[name] = _Stored(shard=shard, shape=tuple(part.get_shape()), dtype=part.get_dtype())
        except (SafetensorError, OSError) as error:
            reason = f"{error}".rstrip(".")
            raise CheckpointError(f"{shard} is damaged or truncated ({reason}); fetch it again.") from error
    return stored


def _shards(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        raise CheckpointError(f"{folder} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}.")
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map.")
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {_listed(missing)}, named in {INDEX_FILE}; fetch the rest.")
    return [folder / name for name in names]


def _match(model: Transformer, stored: Mapping[str, _Stored], folder: Path) -> dict[str, str]:
    """Our tensor name -> the file's, for the whole model. Raises one `CheckpointError` with everything that is off."""
    sources = {name: to_hugging_face(name) for name in model.state_dict()}
    for ours, theirs in sources.items():
        if ours.endswith("encode_scalar") and theirs not in stored:  # some writers keep only the decoder's
            sources[ours] = to_hugging_face(ours.replace("encode_scalar", "denoise_scalar"))
    vision = [name for name in stored if is_vision(name)]
    wanted = {sources[ours]: tuple(tensor.shape) for ours, tensor in model.state_dict().items()}
    found = {name: stored[name] for name in wanted if name in stored}
    _raise_if_any(folder, {
        "missing": [name for name in wanted if name not in stored],
        "unexpected": [name for name in stored if name not in wanted and not (is_vision(name) or is_tied_copy(name))],
        "misshapen": [f"{name} {list(entry.shape)} instead of {list(wanted[name])}"
                      for name, entry in found.items() if entry.shape != wanted[name]],
        "of an unsupported dtype": [f"{name} {entry.dtype}" for name, entry in found.items()
                                    if entry.dtype not in _DTYPES],
    })  # fmt: skip
    if vision:
        _logger.warning("%s: %d vision tensors are left out; Redraft reads text only.", folder, len(vision))
    return sources


def _raise_if_any(folder: Path, problems: Mapping[str, list[str]]) -> None:
    sentences = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if sentences:
        raise CheckpointError(f"The tensors in {folder} do not fit its config: {'; '.join(sentences)}.")


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _arrange_for_cpu(model: Transformer) -> None:
    for module in model.modules():
        if isinstance(module, Experts):
            for weights in module.parameters():
                weights.data = input_major(weights.data)


@torch.no_grad()
def _copy(model: Transformer, sources: Mapping[str, str], stored: Mapping[str, _Stored]) -> None:
    """Fill every parameter, one open shard at a time."""
    targets = model.state_dict()
    for shard in sorted({entry.shard for entry in stored.values()}):
        with safe_open(shard, "pt") as file:
            for ours, theirs in sources.items():
                if stored[theirs].shard == shard:
                    targets[ours].copy_(file.get_tensor(theirs))


# --- saving ------------------------------------------------------------------------------------------------------


def _write(model: Transformer, folder: Path, max_shard_size: int) -> list[str]:
    """Write all files of the model; returns their names, in the order in which a reader may see them appear."""
    tensors = {to_hugging_face(name): tensor for name, tensor in model.state_dict().items()}
    groups = _grouped(tensors, max_shard_size)
    config = folder / CONFIG_FILE
    _write_json(config, model.config.to_dict() | {"dtype": str(model.dtype).removeprefix("torch.")})
    names, weight_map = [], {}
    for number, group in enumerate(groups, 1):
        name = SINGLE_FILE if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
        save_file({key: tensors[key].cpu().contiguous() for key in group}, folder / name, metadata={"format": "pt"})
        shutil.copymode(config, folder / name)  # safetensors makes files that only their owner may read
        weight_map |= dict.fromkeys(group, name)
        names.append(name)
    if len(groups) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": weight_map})
        names.append(INDEX_FILE)
    return [*names, CONFIG_FILE]


def _grouped(tensors: Mapping[str, Tensor], max_bytes: int) -> list[list[str]]:
    """Names in order, cut into groups of at most `max_bytes`; a tensor that is larger has a group to itself."""
    groups: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(name)
        room -= tensor.nbytes
    return groups


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
