"""Checkpoints of sharded weights: all processes write at once into one folder, and another number of them can read it.

The folder has each process' part of the state, as PyTorch's distributed checkpoints lay it out, and one file, `META`,
with what is said about the run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from redraft.errors import CheckpointError, SettingError, TrainingError, why
from redraft.train.checkpoint import read_state, write_state
from redraft.train.distributed import World

FOLDER, META = "checkpoint.sharded", "run.pt"
OLD = FOLDER + ".old"
_PARTIAL = FOLDER + ".partial"


def save_sharded(folder: Path, meta: Mapping[str, Any], state: dict[str, Any], world: World) -> None:
    """Write a checkpoint of all processes; the previous one is removed only when the new one is complete on disk.

    Raises `TrainingError` in every process if any of them cannot write.
    """
    partial, final, old = folder / _PARTIAL, folder / FOLDER, folder / OLD
    what = f"The checkpoint {str(final)!r}"
    try:
        with world.writing(what):
            if world.is_main:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                write_state(partial / META, meta)
        with world.writing(what):
            _save_parts(partial, state, what)
    except Exception:
        if world.is_main:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    with world.writing(what):
        if world.is_main:
            _replace(final, partial, old)


def _save_parts(partial: Path, state: dict[str, Any], what: str) -> None:
    """Write this process' part. Raises `TrainingError` for whatever the library says went wrong in any process."""
    try:
        state_dict_saver.save(state, checkpoint_id=partial)
    except (Exception, CheckpointException) as error:
        raise TrainingError(f"{what} could not be written: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    """The first line of an error; for the library's own, which is not an `Exception`, of what failed in a process."""
    if isinstance(error, CheckpointException):
        error, _ = next(iter(error.failures.values()))
    said = why(error) if isinstance(error, Exception) else str(error)
    return said.partition("\n")[0].rstrip(".") or type(error).__name__


def _replace(final: Path, partial: Path, old: Path) -> None:
    """At every moment either `final` or `old` is a complete checkpoint; only `old`, if a run was killed in here."""
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _complete_in(folder: Path) -> Path:
    """Where the complete checkpoint is of a run in `folder`. Raises `SettingError` if there is none."""
    for name in (FOLDER, OLD):
        if (folder / name / META).is_file():
            return folder / name
    raise SettingError(f"There is nothing to resume: {str(folder / FOLDER)!r} does not exist.")


def load_meta(folder: Path) -> dict[str, Any]:
    """What a run's sharded checkpoint says about the run. Raises as `load_checkpoint` does."""
    return read_state(_complete_in(folder) / META)


def load_sharded(folder: Path, state: dict[str, Any]) -> None:
    """Read a run's sharded checkpoint into the tensors of `state`, in place.

    They have the names and whole shapes of those that were saved, and may be spread over a different number of
    processes. Every process has to call it. Raises `CheckpointError` if the checkpoint is missing or damaged.
    """
    try:
        state_dict_loader.load(state, checkpoint_id=_complete_in(folder))
    except (Exception, CheckpointException) as error:
        raise CheckpointError(f"{str(folder / FOLDER)!r} is not a readable checkpoint: {_reason(error)}.") from error
