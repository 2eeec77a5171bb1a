"""Replacing a file's content with new text, completely or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from redraft.errors import InputError


def replace_file(path: Path, old: str, new: str) -> None:
    """Replace a file's content `old` with `new` in one step, keeping its permissions; a symbolic link stays a link.

    Raises `InputError` if it holds something else by now.
    """
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".redraft-")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(new.encode("utf-8"))
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(target.stat().st_mode & 0o7777)
        if target.read_bytes() != old.encode("utf-8"):
            raise InputError(f"{path} has changed in the meantime; it is left as it is.")
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
