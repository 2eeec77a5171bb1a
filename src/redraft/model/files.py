"""Where every tensor of a model folder is, from the headers of its shards alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from redraft.errors import CheckpointError, why
from redraft.model.folders import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_NAMED_AT_MOST = 10
_SAMPLED = 256
"""Numbers of each tensor that `fingerprint` reads, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Where a tensor is and what its file's header says about it; `dtype` as safetensors spells it ("BF16")."""

    shard: Path
    shape: tuple[int, ...]
    dtype: str


def read_headers(folder: Path) -> dict[str, Stored]:
    """Every tensor of every shard of the folder, by its name in the file. Raises `CheckpointError`."""
    stored: dict[str, Stored] = {}
    for shard in shards(folder):
        entries = read_header(shard)
        for name in stored.keys() & entries.keys():
            raise CheckpointError(f"{name} is in both {stored[name].shard} and {shard}.")
        stored |= entries
    return stored


def read_header(shard: Path) -> dict[str, Stored]:
    """Every tensor of one shard, by its name in the file. Raises `CheckpointError`."""
    stored: dict[str, Stored] = {}
    check_readable(shard)
    try:
        with safe_open(shard, "np") as file:  # "pt" would reserve memory for the whole file
            for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                part = file.get_slice(name)
                stored[name] = Stored(shard=shard, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    except (SafetensorError, OSError) as error:
        reason = f"{error}".rstrip(".")
        raise CheckpointError(f"{shard} is damaged or truncated ({reason}); fetch it again.") from error
    return stored


def open_shard(shard: Path) -> Any:
    """A shard whose tensors can be read, mapped into memory. Raises `CheckpointError` if it is too large for that."""
    try:
        return safe_open(shard, "pt")
    except RuntimeError as error:  # torch maps it as memory of its own, which the system may refuse
        size = f"{shard.stat().st_size / 1e9:.1f} GB"
        raise CheckpointError(f"{shard} has {size}, which this machine has too little memory to map.") from error


def check_readable(file: Path) -> None:
    """Raise `CheckpointError` for a file that cannot be opened, which safetensors reports as missing."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {why(error)}.") from error


def fingerprint(folder: Path) -> str:
    """A fingerprint of a folder's weights: a digest of every tensor's name, shape and first numbers.

    It reads little of each tensor, so it is quick for any size. Raises `CheckpointError`.
    """
    digest = hashlib.sha256()
    for shard in shards(folder):
        entries = read_header(shard)
        with open_shard(shard) as file:
            for name, entry in sorted(entries.items()):
                digest.update(f"{name} {entry.dtype} {entry.shape} ".encode())
                digest.update(_first_bytes(file, name, entry))
    return digest.hexdigest()


def _first_bytes(file: Any, name: str, entry: Stored) -> bytes:
    """The beginning of a tensor's first row."""
    if not entry.shape:
        first = file.get_tensor(name)
    else:
        first = file.get_slice(name)[(*[slice(0, 1)] * (len(entry.shape) - 1), slice(0, _SAMPLED))]
    return first.reshape(-1).view(torch.uint8).numpy().tobytes()


def shards(folder: Path) -> list[Path]:
    """The folder's weight files, in order. Raises `CheckpointError` if there are none or some are missing."""
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if (folder / SINGLE_FILE).is_symlink():
        raise CheckpointError(f"{folder / SINGLE_FILE} is a broken link; fetch it again.")
    if not (folder / INDEX_FILE).is_file():
        raise CheckpointError(f"{folder} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}.")
    names = sorted({*_weight_map(folder).values()})
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {listed(missing)}, named in {INDEX_FILE}; fetch the rest.")
    return [folder / name for name in names]


def tensor_names(folder: Path) -> list[str] | None:
    """The names of the folder's tensors, from the index if not all of its shards are there; None without weights.

    Raises `CheckpointError`.
    """
    if not (folder / SINGLE_FILE).is_file():
        if not (folder / INDEX_FILE).is_file():
            return None
        weight_map = _weight_map(folder)
        if not all((folder / name).is_file() for name in weight_map.values()):
            return list(weight_map)
    return list(read_headers(folder))


def _weight_map(folder: Path) -> dict[str, str]:
    """What a folder's index says: the file of each tensor."""
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map.")
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise CheckpointError(f"{folder / INDEX_FILE} maps {name} to {file!r}; it must be a file's name.")
    return weight_map


def listed(names: Iterable[str]) -> str:
    """The first ten names, and how many more there are."""
    names = list(names)
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
