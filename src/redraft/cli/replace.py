"""Writing a file with new text, completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".redraft-{secrets.token_hex(8)}")
    there = target.exists()
    mode = 0o600 if there else 0o666  # a private file's text is private from its first byte on
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as out:
            out.write(text.encode("utf-8"))
            out.flush()
            os.fsync(out.fileno())
        if there:
            temporary.chmod(target.stat().st_mode & 0o7777)
        yield
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
