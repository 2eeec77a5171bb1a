"""Checkpoints: one file with everything a run needs to continue exactly as if it had never stopped.

There is no random state to save: every random number of a run is a function of (seed, batch index).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from redraft.errors import CheckpointError, SettingError, TrainingError, why

FILE = "checkpoint.pt"


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to the folder's checkpoint; see `write_state`."""
    write_state(folder / FILE, state)


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to a file, which is replaced only once the new one is complete on disk.

    Raises `TrainingError` if that fails.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise TrainingError(f"The checkpoint {str(path)!r} could not be written: {why(_first(error))}.") from error


def _first(error: Exception) -> Exception:
    """What happened first: torch raises other errors, also more than one, while it handles the file's."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a folder's checkpoint. Raises `SettingError` if there is none and `CheckpointError` if it is damaged."""
    path = folder / FILE
    if not path.is_file():
        raise SettingError(f"There is nothing to resume: {str(path)!r} does not exist.")
    return read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote to a file, on the CPU. Raises `CheckpointError` if it is damaged."""
    unreadable = CheckpointError(f"{str(path)!r} is not a readable checkpoint; it is damaged or another kind of file.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file, some without a message
        raise unreadable from error
    if not isinstance(state, dict):
        raise unreadable
    return state
