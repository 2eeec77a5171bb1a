"""Writing a file with new text, completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from redraft.errors import InputError


def write_file(path: Path, text: str) -> None:
    """Write a file in one step; an old one keeps its permissions, a symbolic link stays a link.

    Raises `OSError` with this name if that is not possible; an old file is as it was then.
    """
    with _written_beside(path, text):
        pass


def replace_file(path: Path, old: str, new: str) -> None:
    """Replace a file's content `old` with `new`, like `write_file`.

    Raises `InputError` if it holds something else by now.
    """
    with _written_beside(path, new):
        if path.read_bytes() != old.encode("utf-8"):
            raise InputError(f"{path} has changed in the meantime; it is left as it is.")


@contextmanager
def _written_beside(path: Path, text: str) -> Iterator[None]:
    """Inside, the text is in a file of its own, which then takes the place of `path` unless something fails."""
    temporary = beside(path)
    try:
        with open_new(temporary, path) as out:
            out.write(text.encode("utf-8"))
            out.flush()
            os.fsync(out.fileno())
        yield
        take_place(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def beside(path: Path) -> Path:
    """A name for a file that will take the place of `path`: in its folder, or that of the file that it links to."""
    return Path(os.path.realpath(path)).with_name(f".redraft-{secrets.token_hex(8)}")


def open_new(temporary: Path, path: Path) -> BinaryIO:
    """Make and open the file that will take the place of `path`; if that is there, it is private from the first byte
    on, as the old one may be."""
    mode = 0o600 if path.exists() else 0o666
    return open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def take_place(temporary: Path, path: Path) -> None:
    """Put a complete file in the place of `path`. An old file's permissions stay, and so does a symbolic link."""
    target = Path(os.path.realpath(path))
    if target.exists():
        temporary.chmod(target.stat().st_mode & 0o7777)
    temporary.replace(target)
