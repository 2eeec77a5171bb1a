"""Converting a model folder to plain weights of one dtype, whatever it holds; a GGUF file is a folder, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.errors import CheckpointError, SettingError, one_of
from redraft.model.checkpoint import Checkpoint
from redraft.model.copying import check_finite, check_target, is_finite, write_copy
from redraft.model.folders import resolve_folder
from redraft.model.layouts import Weight
from redraft.model.names import to_hugging_face
from redraft.model.placement import DTYPES as RUNNING
from redraft.model.shards import MAX_SHARD_SIZE
from redraft.model.weights import copy_in_full

DTYPES = RUNNING | {"float16": torch.float16, "fp16": torch.float16}
"""Those in which a model runs, and one that other engines may prefer."""
_NAMED = ("bfloat16", "float16", "float32")


def convert_folder(
    source: str | Path,
    target: Path,
    dtype: str = "bfloat16",
    *,
    max_shard_size: int = MAX_SHARD_SIZE,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> dict[str, Any]:
    """Write a copy of the model `source` (see `resolve_folder`), in full in `dtype`, to the new or empty `target`.

    Returns its dtype and bytes. Memory and `progress` are as in `quantize_folder`.
    Raises `SettingError` for an unknown dtype, a shard size below 1 or a target that cannot be made, `HubError` for a
    hub id that cannot be resolved, and `CheckpointError` for a source that is damaged, or has values that are not
    finite or too large for `dtype`. Nothing is left behind on failure.
    """
    if dtype not in DTYPES:
        raise SettingError(f"dtype is {dtype!r}; it must be {one_of(_NAMED)}.", "dtype")
    check_target(target, max_shard_size)
    checkpoint, chosen = Checkpoint(resolve_folder(source)), DTYPES[dtype]
    word, size = str(chosen).removeprefix("torch."), 0

    def stored(name: str) -> Iterator[tuple[str, Tensor]]:
        nonlocal size
        weight = _converted(name, checkpoint.weight(name), chosen)
        size += weight.nbytes
        yield to_hugging_face(name), weight

    config = checkpoint.config.to_dict() | {"dtype": word}
    needed = sum(math.prod(shape) for shape in checkpoint.shapes.values()) * chosen.itemsize
    write_copy(checkpoint, target, stored, config, needed=needed, max_shard_size=max_shard_size, progress=progress)
    return {"dtype": word, "bytes": size}


def _converted(name: str, weight: Weight, dtype: torch.dtype) -> Tensor:
    """One of our weights in full, contiguous. Raises `CheckpointError` for values that are no numbers of the dtype."""
    full = _in_full(name, weight, dtype)
    if not is_finite(full):
        check_finite(name, _in_full(name, weight, torch.float32))
        raise CheckpointError(
            f"{to_hugging_face(name)} has values that are too large for {str(dtype).removeprefix('torch.')}."
        )
    return full


def _in_full(name: str, weight: Weight, dtype: torch.dtype) -> Tensor:
    if isinstance(weight, Tensor):
        return weight.to(dtype).contiguous()  # the file's own bytes if they are of this dtype
    full = torch.empty(weight.shape, dtype=dtype)
    copy_in_full(name, weight, full)
    return full
