"""Where every tensor of a model folder is, from the headers of its shards alone."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from redraft.errors import CheckpointError, why
from redraft.model.folders import read_json
from redraft.model.gguf import names as gguf_names
from redraft.model.gguf.container import SUFFIX, read_gguf
from redraft.model.gguf.decoding import decoded

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GGUF_LINK = "described.gguf"
"""A link to a GGUF file in a folder that describes it (`redraft.model.gguf`)."""
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "U8": torch.uint8,
}
"""The dtypes of tensors that make up weights (`redraft.model.layouts`), by their names in the files."""
_MAP_NORESERVE = 0x4000
"""Linux' number on x86 and Arm; Python has the name from 3.13 on."""
_NAMED_AT_MOST = 10
_BLOCKS, _BLOCK = 8, 512
"""How many blocks of a tensor `fingerprint` reads, at most, and how many bytes each has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderEntry:
    """Where a tensor is and what its file's header says about it.

    `dtype` is spelled as safetensors does ("BF16"), or is the name of a quantized type of GGUF ("Q4_K"); then `coded`
    is true. The tensor's bytes are those of the file from `start` to `end`.
    """

    shard: Path
    shape: tuple[int, ...]
    dtype: str
    start: int
    end: int
    coded: bool = False


def read_headers(folder: Path) -> dict[str, HeaderEntry]:
    """Every tensor of every shard of the folder, by its name in the file. Raises `CheckpointError`."""
    stored: dict[str, HeaderEntry] = {}
    for shard in shards(folder):
        entries = read_header(shard)
        for name in stored.keys() & entries.keys():
            raise CheckpointError(f"{name} is in both {stored[name].shard} and {shard}.")
        stored |= entries
    return stored


def read_header(shard: Path) -> dict[str, HeaderEntry]:
    """Every tensor of one shard, by its name in the file (Hugging Face's for a GGUF file). Raises `CheckpointError`."""
    check_readable(shard)
    if shard.suffix.lower() == SUFFIX:
        return _gguf_header(shard)
    try:
        safe_open(shard, "np")  # checks the header; "pt" would reserve memory for the whole file
    except (SafetensorError, OSError) as error:
        reason = f"{error}".rstrip(".")
        raise CheckpointError(f"{shard} is damaged or truncated ({reason}); fetch it again.") from error
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return {name: _stored(shard, 8 + length, entry) for name, entry in entries.items()}


def _gguf_header(file: Path) -> dict[str, HeaderEntry]:
    found: dict[str, HeaderEntry] = {}
    for theirs, tensor in read_gguf(file).tensors.items():
        if (name := gguf_names.to_hugging_face(theirs)) is not None:
            place = {"shape": tensor.shape, "dtype": tensor.type, "start": tensor.start, "end": tensor.end}
            found[name] = HeaderEntry(shard=file, coded=tensor.type not in DTYPES, **place)
    return found


def _stored(shard: Path, data: int, entry: dict[str, Any]) -> HeaderEntry:
    """A tensor by its entry in the header; `data` is where the file's first tensor begins."""
    start, end = (data + offset for offset in entry["data_offsets"])
    return HeaderEntry(shard=shard, shape=tuple(entry["shape"]), dtype=entry["dtype"], start=start, end=end)


def map_shard(shard: Path) -> mmap.mmap:
    """The bytes of a shard of any size, read when they are used; what is written to them stays in this process.

    Linux reserves no memory for it: safetensors' own mapping counts as memory in use, and one of a file larger than the
    machine's memory is refused. Raises `CheckpointError` if the system refuses this one, too.
    """
    try:
        with shard.open("rb") as file:
            if sys.platform == "linux":
                flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                return mmap.mmap(file.fileno(), 0, flags=flags, prot=protection)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise CheckpointError(f"{shard} cannot be mapped into memory: {why(error)}.") from error


def tensor_in(mapped: mmap.mmap, entry: HeaderEntry) -> torch.Tensor:
    """One tensor of a mapped shard, without a copy unless it is coded; the mapping lives as long as it does."""
    if entry.coded:
        return decoded(mapped, entry.dtype, entry.shape, entry.start, entry.end)
    count = math.prod(entry.shape)
    return torch.frombuffer(mapped, dtype=DTYPES[entry.dtype], offset=entry.start, count=count).view(entry.shape)


def check_readable(file: Path) -> None:
    """Raise `CheckpointError` for a file that cannot be opened, which safetensors reports as missing."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {why(error)}.") from error


def fingerprint(folder: Path) -> str:
    """A fingerprint of a folder's weights, however they are divided into files.

    It is a digest of every tensor's name, dtype and shape, and of blocks of its bytes: all of a small tensor, and of a
    larger one `_BLOCKS` blocks at even distances, from its beginning to its end. So it is quick for any size, and
    notices training, which changes nearly all numbers of a tensor, but not a change of a few numbers between blocks.
    Raises `CheckpointError`.
    """
    digest, entries = hashlib.sha256(), read_headers(folder)
    mapped = {shard: map_shard(shard) for shard in dict.fromkeys(entry.shard for entry in entries.values())}
    for name, entry in sorted(entries.items()):
        digest.update(f"{name} {entry.dtype} {entry.shape} ".encode())
        for start, end in _sampled(entry):
            digest.update(mapped[entry.shard][start:end])
    return digest.hexdigest()


def _sampled(entry: HeaderEntry) -> list[tuple[int, int]]:
    """Where the blocks of a tensor that `fingerprint` reads begin and end."""
    room = entry.end - entry.start - _BLOCK
    if room <= (_BLOCKS - 1) * _BLOCK:
        return [(entry.start, entry.end)]
    starts = (entry.start + room * number // (_BLOCKS - 1) for number in range(_BLOCKS))
    return [(start, start + _BLOCK) for start in starts]


def shards(folder: Path) -> list[Path]:
    """The folder's weight files, in order. Raises `CheckpointError` if there are none or some are missing."""
    if (folder / GGUF_LINK).is_symlink():
        return [(folder / GGUF_LINK).readlink()]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if (folder / SINGLE_FILE).is_symlink():
        raise CheckpointError(f"{folder / SINGLE_FILE} is a broken link; fetch it again.")
    if not (folder / INDEX_FILE).is_file():
        raise CheckpointError(
            f"{folder} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE} (of GGUF files, fetch and name one)."
        )
    names = sorted({*_weight_map(folder).values()})
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {listed(missing)}, named in {INDEX_FILE}; fetch the rest.")
    return [folder / name for name in names]


def described(folder: Path) -> Path:
    """The GGUF file that a temporary folder describes, whose own name is new in every process; any other as it is."""
    link = folder / GGUF_LINK
    return link.readlink() if link.is_symlink() else folder


def all_here(folder: Path) -> bool:
    """Whether all weight files of the folder are there. Raises `CheckpointError` for an index that cannot be read."""
    if (folder / SINGLE_FILE).is_file() or (folder / GGUF_LINK).is_symlink():
        return True
    return (folder / INDEX_FILE).is_file() and all((folder / name).is_file() for name in _weight_map(folder).values())


def tensor_names(folder: Path) -> list[str] | None:
    """The names of the folder's tensors, from the index if not all of its shards are there; None without weights.

    Raises `CheckpointError`.
    """
    if all_here(folder):
        return list(read_headers(folder))
    return list(_weight_map(folder)) if (folder / INDEX_FILE).is_file() else None


def _weight_map(folder: Path) -> dict[str, str]:
    """What a folder's index says: the file of each tensor."""
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map.")
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise CheckpointError(f"{folder / INDEX_FILE} maps {name} to {file!r}; it must be a file's name.")
    return weight_map


def listed(names: Iterable[str]) -> str:
    """The first ten names, and how many more there are."""
    names = list(names)
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
