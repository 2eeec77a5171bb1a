"""Whether results can be written where they are to go, which is better known before hours of work than after."""

from __future__ import annotations

import os
from pathlib import Path

from redraft.errors import InputError, SettingError, why


def check_file(path: Path | None) -> None:
    """Raise `InputError` if no file can be written there; an old one may be replaced."""
    if path is None:
        return
    if str(path) == "-":
        raise InputError("- is no file to write to; name one.")
    try:
        there = path.exists()
    except OSError as error:  # a name that is too long
        raise InputError(f"{path} cannot be written: {why(error)}.") from error
    if there and not path.is_file():
        raise InputError(f"{path} is not a regular file.")
    if there and not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written: it is read-only.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: {path.parent} is not a folder that one may write to.")


def check_new(path: Path, *, folder: bool = True) -> None:
    """Raise `SettingError` unless a folder, which may be there if it is empty, or else a file can be made at `path`."""
    try:
        there = folder and path.is_dir()
        taken = any(path.iterdir()) if there else path.exists() or path.is_symlink()
        above = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    except OSError as error:
        raise SettingError(f"{path} cannot be made: {why(error)}.") from error
    if taken:
        raise SettingError(f"{path} is there already; name a new one.")
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise SettingError(f"{path} cannot be made: {above} is not a folder that one may write to.")


def make_folder(folder: Path | None) -> None:
    """Make a folder of results unless it is there. Raises `InputError` if nothing can be written there."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder {folder} of results cannot be made: {why(error)}.") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"The folder {folder} of results is not one that one may write to.")
