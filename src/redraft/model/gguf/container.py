"""What a GGUF file says before its tensors' bytes: metadata, and where each tensor is and in which type.

The `gguf` package has a reader, too, but makes an array of every string: the 777,050 of the published vocabulary take
it 19 seconds and 1.7 GB, and this one half a second.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from redraft.errors import CheckpointError, why
from redraft.model.gguf.decoding import stored_as

SUFFIX = ".gguf"
ARCHITECTURE = "diffusion-gemma"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8",
            12: "<f8"}  # fmt: skip
_STRING, _ARRAY = 8, 9
"""The kinds of metadata, by their numbers in the file."""

T = TypeVar("T", int, float, str, bool, list)


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """A tensor's shape (of a matrix [N,K]), its type ("Q4_K"), and the place of its bytes in the file."""

    shape: tuple[int, ...]
    type: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """The metadata and the tensors of a file, by their names in it."""

    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A value of the metadata. Raises `CheckpointError` if it is of another kind, or absent without a default.

        A float has the seven digits that 32 bits hold, so that 1e-6 is read as it was meant.
        """
        found = self.metadata.get(key, default)
        if found is None:
            raise CheckpointError(f"{self.file} has no {key}.")
        if (kind is float and type(found) is int) or (kind is int and type(found) is float and found.is_integer()):
            found = float(found) if kind is float else int(found)
        if type(found) is not kind:
            raise CheckpointError(f"{self.file} sets {key} to {str(found)[:100]}, which is of the wrong kind.")
        return float(f"{found:.7g}") if kind is float else found  # type: ignore[return-value]

    def entries(self, key: str, kind: type[T]) -> list[T]:
        """A list of the metadata. Raises `CheckpointError` if it is absent, no list, or of items of another kind."""
        found = self.value(key, list)
        if found and type(found[0]) is not kind:  # the file gives all of them one kind
            raise CheckpointError(f"{self.file} sets {key} to a list of the wrong kind.")
        return found


def read_gguf(file: Path) -> GgufHeader:
    """The header of a GGUF file of DiffusionGemma.

    Raises `CheckpointError` for a file that is damaged, truncated or one part of several, and for another architecture.
    """
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(file, data)
    except CheckpointError:
        raise
    except (struct.error, ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{file} is damaged or truncated; fetch it again.") from error
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {why(error)}.") from error


def _read(file: Path, data: mmap.mmap) -> GgufHeader:
    if data[:4] != b"GGUF":
        raise CheckpointError(f"{file} is not a GGUF file: it does not begin with these letters.")
    cursor = _Cursor(data, 4)
    version = cursor.number("<u4")
    if int.from_bytes(version.to_bytes(4, "big"), "little") in _VERSIONS:
        raise CheckpointError(f"{file} is a GGUF file for big-endian machines; only little-endian ones are supported.")
    if version not in _VERSIONS:
        raise CheckpointError(f"{file} is a GGUF file of version {version}; versions 2 and 3 are supported.")
    tensors, entries = cursor.number("<u8"), cursor.number("<u8")
    metadata = {cursor.string(): cursor.value(cursor.number("<u4")) for _ in range(entries)}
    _check_kind(file, metadata)
    described = [cursor.tensor() for _ in range(tensors)]
    alignment = _alignment(file, metadata, len(data))
    begin = -(-cursor.at // alignment) * alignment
    found = {name: _placed(file, name, shape, type, begin + offset) for name, shape, type, offset in described}
    if len(found) < tensors:
        raise CheckpointError(f"{file} names some of its tensors twice; fetch it again.")
    if any(tensor.end > len(data) for tensor in found.values()):
        missing = max(tensor.end for tensor in found.values()) - len(data)
        raise CheckpointError(f"{file} is truncated: {missing:,} bytes are missing at its end; fetch it again.")
    _check_places(file, found, begin, alignment)
    return GgufHeader(file=file, metadata=metadata, tensors=found)


def _check_kind(file: Path, metadata: dict[str, Any]) -> None:
    """Raise `CheckpointError` for a file that is not a whole DiffusionGemma."""
    if (parts := metadata.get("split.count", 1)) > 1:  # only the first part says more
        raise CheckpointError(
            f"{file} is one of {parts} parts; join them first (`llama-gguf-split --merge` of llama.cpp does that)."
        )
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{file} is a GGUF file of the architecture {architecture!r}; Redraft runs only {ARCHITECTURE!r}."
        )


def _alignment(file: Path, metadata: dict[str, Any], size: int) -> int:
    """Of what number of bytes all offsets are multiples. Raises `CheckpointError` for one that cannot be meant."""
    found = metadata.get("general.alignment", _ALIGNMENT)
    if type(found) is not int or not 0 < found <= size or found.bit_count() != 1:
        raise CheckpointError(
            f"{file} sets general.alignment to {str(found)[:100]}; it must be a power of two no larger than the file."
        )
    return found


def _check_places(file: Path, tensors: dict[str, GgufTensor], begin: int, alignment: int) -> None:
    """Raise `CheckpointError` for tensors that are not aligned or that share bytes."""
    places = sorted(tensors.items(), key=lambda item: item[1].start)
    for name, tensor in places:
        if (tensor.start - begin) % alignment:
            raise CheckpointError(f"{name} in {file} is not aligned to {alignment} bytes; fetch it again.")
    for (name, tensor), (other, after) in pairwise(places):
        if after.start < tensor.end:
            raise CheckpointError(f"{name} and {other} in {file} share bytes; fetch it again.")


def _placed(file: Path, name: str, shape: tuple[int, ...], type: int, start: int) -> GgufTensor:
    try:
        stored = stored_as(type)
    except CheckpointError as error:
        raise CheckpointError(f"{name} in {file} cannot be read: {error}") from error
    if not shape or shape[-1] % stored.numbers:
        raise CheckpointError(f"{name} in {file} has the shape {list(shape)}, which {stored.name} cannot hold.")
    size = math.prod(shape) // stored.numbers * stored.bytes
    return GgufTensor(shape=shape, type=stored.name, start=start, end=start + size)


class _Cursor:
    """Reads values one after another. Raises `struct.error` or `ValueError` at the end of the data."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def numbers(self, dtype: str, count: int) -> list[Any]:
        found = np.frombuffer(self.data, dtype, count, self.at).tolist() if count else []
        self.at += count * np.dtype(dtype).itemsize
        return found

    def number(self, dtype: str) -> Any:
        return self.numbers(dtype, 1)[0]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        data, at, found = self.data, self.at, list[str]()
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", data, at)
            at += 8 + length
            found.append(data[at - length : at].decode())
        self.at = at
        return found

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self._dtype(kind))
        kind, count = self.number("<u4"), self.number("<u8")
        return self.strings(count) if kind == _STRING else self.numbers(self._dtype(kind), count)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of a tensor. The file counts dimensions from the innermost."""
        name = self.string()
        shape = tuple(reversed(self.numbers("<u8", self.number("<u4"))))
        return name, shape, self.number("<u4"), self.number("<u8")

    def _dtype(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ValueError(f"metadata of the unknown kind {kind}")
        return _NUMBERS[kind]
