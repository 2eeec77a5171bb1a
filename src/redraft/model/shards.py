"""Writing a model's folder: its weights in one file, or in several with an index, and what describes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from redraft.errors import SettingError
from redraft.model.files import INDEX_FILE, SINGLE_FILE
from redraft.model.folders import CONFIG_FILE, copy_beside, write_json

MAX_SHARD_SIZE = 5_000_000_000
"""Bytes of a file, unless a single tensor is larger."""


def check_shard_size(size: int) -> None:
    """Raise `SettingError` for a size that no file could have."""
    if size < 1:
        raise SettingError(f"max_shard_size is {size}; it must be at least 1 byte.", "max_shard_size")


def write_model(
    tensors: Iterable[tuple[str, Tensor]],
    folder: Path,
    config: Mapping[str, Any],
    *,
    like: Path | None,
    max_size: int = MAX_SHARD_SIZE,
) -> list[str]:
    """Write weights as `write_shards` does, config.json, and what else describes the model folder `like`.

    Returns the names of the weights' files.
    """
    written = write_shards(tensors, folder, max_size)
    write_json(folder / CONFIG_FILE, config)
    if like is not None:
        copy_beside(like, folder)
    return written


def write_shards(tensors: Iterable[tuple[str, Tensor]], folder: Path, max_size: int = MAX_SHARD_SIZE) -> list[str]:
    """Write tensors, on the CPU and contiguous, by their names in the files; returns the names of all files.

    A file has at most `max_size` bytes, or one tensor. Only one file's tensors are held at a time.
    """
    shard, room, total = dict[str, Tensor](), max_size, 0
    shards: list[list[str]] = []

    def write() -> None:
        shards.append(list(shard))
        write_tensors(shard, folder / _unnamed(len(shards)))
        shard.clear()

    for name, tensor in tensors:
        if shard and tensor.nbytes > room:
            write()
            room = max_size
        shard[name] = tensor
        room, total = room - tensor.nbytes, total + tensor.nbytes
    write()
    return _name(shards, folder, total)


def write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write tensors, on the CPU and contiguous, to one file. Raises `OSError` if the system does not let it be written.

    safetensors has an error of its own for that, which says the system's number in words.
    """
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if (number := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def _name(shards: list[list[str]], folder: Path, total: int) -> list[str]:
    """Give the files their names, which say how many there are, and write the index of several."""
    count = len(shards)
    files = [SINGLE_FILE] if count == 1 else [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    for number, file in enumerate(files, 1):
        (folder / _unnamed(number)).rename(folder / file)
    if count == 1:
        return files
    weight_map = {name: file for names, file in zip(shards, files, strict=True) for name in names}
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return [*files, INDEX_FILE]


def _unnamed(number: int) -> str:
    return f"{number}.safetensors"
