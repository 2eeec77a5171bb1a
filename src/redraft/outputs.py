"""Results: checks that they can be written, made before hours of work rather than after, and folders of files that
belong together."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redraft.errors import InputError, SettingError, why

_STAGED = ".saving-"
"""How the names of temporary folders begin."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says to who writes when a disk is full, a quota is used up, or files must not be so large."""


def check_file(path: Path | None) -> None:
    """Raise `InputError` if no file can be written there; an old one may be replaced."""
    if path is None:
        return
    if str(path) == "-":
        raise InputError("- is not a file that can be written; name one.")
    try:
        there = path.exists()
    except OSError as error:  # a name that is too long
        raise InputError(f"{path} cannot be written: {why(error)}.") from error
    if there and not path.is_file():
        raise InputError(f"{path} is not a regular file.")
    if there and not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written: it is read-only.")
    if not path.parent.exists():
        raise InputError(f"{path} cannot be written: the folder {path.parent} does not exist.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: {path.parent} is not a writable folder.")


def check_new(path: Path, *, folder: bool = True) -> None:
    """Raise `SettingError` unless a folder (or a file) can be made at `path`.

    A folder may already be there if it is empty, or holds only what killed processes left (see `staged_folder`).
    """
    try:
        there = folder and path.is_dir()
        taken = _holds_something(path) if there else path.exists() or path.is_symlink()
        above = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    except OSError as error:
        raise SettingError(f"{path} cannot be made: {why(error)}.") from error
    if taken:
        raise SettingError(f"{path} already exists; name a new one.")
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise SettingError(f"{path} cannot be made: {above} is not a writable folder.")


def make_folder(folder: Path | None) -> None:
    """Make a folder for results unless it exists. Raises `InputError` if nothing can be written there."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder {folder} of results cannot be made: {why(error)}.") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"The folder {folder} of results is not writable.")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Be the only process that is in here with this folder. Raises `SettingError` if another one is.

    The system releases the lock when a process ends, however it does. Where it cannot be had, nothing is checked.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows, or no folder that could be read
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                f"Another process is writing to {str(folder)!r}; wait for it or choose another folder."
            ) from None
        except OSError:  # the file system has no locks
            pass
        yield
    finally:
        os.close(handle)


@contextmanager
def staged_folder(folder: Path, *, last: str, needed: int | None = None) -> Iterator[Path]:
    """A temporary folder whose files move to `folder` once all are written, the file `last` after the others.

    It is inside `folder`, which cannot be replaced itself if it is the working directory, a link or a mount point.
    All files get the mode of `last`, because safetensors makes files that only their owner may read. If something
    fails, a `folder` that did not exist before is removed again, and so are those above it. What processes that were
    killed left in `folder` is removed first.

    Raises `OSError` with the name of `folder` if there is no room; it says how many bytes are `needed`, if that is
    known.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _sharing(folder) as left, tempfile.TemporaryDirectory(dir=folder, prefix=_STAGED) as temporary:
            for gone in left:
                shutil.rmtree(gone, ignore_errors=True)
            yield (work := Path(temporary))
            for file in sorted(work.iterdir(), key=lambda file: (file.name == last, file.name)):
                shutil.copymode(work / last, file)
                os.replace(file, folder / file.name)
    except BaseException as error:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # something else may lie there by now
            for place in made[1:]:
                place.rmdir()
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            size = "" if needed is None else f" ({math.ceil(needed / 1e6) / 1e3} GB are needed)"
            raise OSError(error.errno, f"{error.strerror}{size}", str(folder)) from error
        raise


def _holds_something(folder: Path) -> bool:
    """Whether there is more in `folder` than what killed processes left."""
    with _sharing(folder) as left:
        return any(path not in left for path in folder.iterdir())


@contextmanager
def _sharing(folder: Path) -> Iterator[list[Path]]:
    """Share a lock on `folder`; without others who do, yields the temporary folders of processes that are gone.

    Whoever has a temporary folder shares the lock, and the system releases it when a process ends, however it does. So
    what is found under an exclusive lock belongs to nobody. Where the lock cannot be had, none are found.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield []
        return
    handle, left = os.open(folder, os.O_RDONLY), list[Path]()
    try:
        with suppress(OSError):  # others are writing, or the file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = list(folder.glob(f"{_STAGED}*"))
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield left
    finally:
        os.close(handle)
