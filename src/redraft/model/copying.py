"""Copies of model folders whose weights are stored in another way, made one weight at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from redraft.errors import CheckpointError, SettingError
from redraft.model.checkpoint import Checkpoint
from redraft.model.folders import CONFIG_FILE
from redraft.model.names import to_hugging_face
from redraft.model.presets import PRESETS
from redraft.model.shards import MAX_SHARD_SIZE, check_shard_size, write_model
from redraft.outputs import check_new, staged_folder


def check_target(target: Path, max_shard_size: int = MAX_SHARD_SIZE) -> None:
    """Raise `SettingError` for a shard size below 1 and for a `target` that is not empty, cannot be made, or has a name
    under which it would not be found again.
    """
    check_shard_size(max_shard_size)
    if str(target) in PRESETS:
        raise SettingError(
            f"{target} is the name of a model or shape of Redraft's own, which is read instead of a folder; name "
            "another one."
        )
    check_new(target)


def check_finite(name: str, weight: Tensor) -> None:
    """Raise `CheckpointError` if one of our weights has infinite or NaN values."""
    if not is_finite(weight):
        raise CheckpointError(f"{to_hugging_face(name)} has infinite or NaN values.")


def is_finite(weight: Tensor) -> bool:
    """Whether there are neither infinite nor NaN values."""
    return all(end.isfinite() for end in weight.aminmax())  # without a copy, and NaN is both ends


def write_copy(
    checkpoint: Checkpoint,
    target: Path,
    stored: Callable[[str], Iterable[tuple[str, Tensor]]],
    config: Mapping[str, Any],
    *,
    needed: int,
    max_shard_size: int,
    progress: Callable[[int, int], None],
) -> None:
    """Write a copy of an open folder to `target`, which `check_target` has looked at, with another config.

    `stored` gives the tensors of each weight, by their names in the files, from our name of it; `needed` is how many
    bytes they have, for who has no room for them. Host memory holds one shard and one weight at a time. `progress` is
    called with the weights done and the total. Nothing is left behind on failure.
    """

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for done, name in enumerate(checkpoint.names(), 1):
            yield from stored(name)
            progress(done, len(checkpoint.shapes))

    with staged_folder(target, last=CONFIG_FILE, needed=needed) as work:
        write_model(tensors(), work, config, like=checkpoint.folder, max_size=max_shard_size)
