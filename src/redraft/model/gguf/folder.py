"""A GGUF file as a model folder: small files made from its metadata, and a link to the file for the tensors.

The folder is temporary. A process that ends without Python's exit (killed, or by `os._exit`) leaves it to the next one
that describes a file.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from redraft.errors import CheckpointError, why
from redraft.model.files import GGUF_LINK
from redraft.model.folders import CONFIG_FILE, write_json
from redraft.model.gguf.container import GgufHeader, read_gguf
from redraft.model.gguf.description import generation_config, model_config
from redraft.model.gguf.vocabulary import named_tokens, tokenizer_json

_PREFIX = "redraft-gguf-"
"""How the names of the temporary folders begin."""


def folder_of(file: Path) -> Path:
    """A temporary folder that describes a GGUF file; it is removed when the process ends.

    Raises `CheckpointError` for a file that cannot be read or is not a whole DiffusionGemma.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {why(error)}.") from error
    return _described(file.absolute(), status.st_size, status.st_mtime_ns)


@lru_cache
def _described(file: Path, size: int, changed: int) -> Path:
    """The folder of a file of this size that was last changed then."""
    header = read_gguf(file)
    config, generation, tokenizer = model_config(header), generation_config(header), tokenizer_json(header)
    work = _temporary_folder()
    folder = work / file.name  # so that messages about the folder name the file
    folder.mkdir()
    os.symlink(file, folder / GGUF_LINK)
    write_json(folder / CONFIG_FILE, config.to_dict() | {"dtype": "bfloat16"})
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "tokenizer_config.json", named_tokens(header))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    _write_template(folder, header)
    return folder


def _temporary_folder() -> Path:
    """A new folder, removed when the process ends, or, if it is killed, by the next one that calls this.

    The process keeps a lock on it, which the system releases. Where there are no locks, what is left stays.
    """
    work = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    with suppress(ImportError, OSError):  # Windows, and file systems that have no locks
        import fcntl

        fcntl.flock(os.open(work, os.O_RDONLY), fcntl.LOCK_SH)  # before it holds a link, by which others find it
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/*/{GGUF_LINK}"):
            _remove_unlocked(left.parent.parent)
    return work


def _remove_unlocked(folder: Path) -> None:
    """Remove the folder of a process that is gone."""
    import fcntl

    with suppress(OSError):  # it is in use, or another user's
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(handle)


def _write_template(folder: Path, header: GgufHeader) -> None:
    template = header.value("tokenizer.chat_template", str, "")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
