"""Shards: how tokenised training documents are stored on disk.

A shard is one xz-compressed file: a JSON header line `{"count": n, "tokens": total}`, then the little-endian arrays
`uint32 lengths[n]`, `uint32 prompt_lengths[n]` and `uint16 tokens[total]`. Builders write it once; the trainer reads it
in one pass into flat arrays, so packing sequences never loops over Python objects.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from redraft.errors import InputError, why

# Little-endian 16-bit tokens compress about a tenth better when xz knows that every second byte belongs together.
_XZ_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26, "lc": 2, "lp": 1, "pb": 1}]


class ShardError(InputError):
    """A shard file is damaged or does not follow the format."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One training text: `tokens` uint16 [n]; its first `prompt_length` tokens are context that is never noised.

    `prompt_length == 0` marks plain text, where a canvas may start at any position.
    """

    tokens: np.ndarray
    prompt_length: int = 0

    def __post_init__(self) -> None:
        if self.tokens.dtype != np.uint16 or self.tokens.ndim != 1:
            raise ShardError(f"tokens must be a uint16 vector, not {self.tokens.dtype} of shape {self.tokens.shape}")
        if not 0 <= self.prompt_length <= len(self.tokens):
            raise ShardError(f"prompt_length {self.prompt_length} is outside 0..{len(self.tokens)}")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Many documents as flat arrays.

    `tokens` uint16 [T]; `offsets` int64 [n + 1], document `i` is `tokens[offsets[i]:offsets[i + 1]]`;
    `prompt_lengths` uint32 [n].
    """

    tokens: np.ndarray
    offsets: np.ndarray
    prompt_lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __getitem__(self, index: int) -> Document:
        if not -len(self) <= index < len(self):
            raise IndexError(f"document {index} of a shard of {len(self)}")
        index %= len(self)
        tokens = self.tokens[self.offsets[index] : self.offsets[index + 1]]
        return Document(tokens=tokens, prompt_length=int(self.prompt_lengths[index]))

    def __iter__(self) -> Iterator[Document]:
        return (self[index] for index in range(len(self)))


def join(shards: Sequence[Shard]) -> Shard:
    """The documents of several shards as one."""
    bases = np.cumsum([0] + [len(shard.tokens) for shard in shards])
    offsets = [shard.offsets[:-1] + base for shard, base in zip(shards, bases[:-1], strict=True)]
    return Shard(
        tokens=np.concatenate([shard.tokens for shard in shards]),
        offsets=np.concatenate([*offsets, bases[-1:]]),
        prompt_lengths=np.concatenate([shard.prompt_lengths for shard in shards]),
    )


def write_shard(path: Path | str, documents: Iterable[Document]) -> None:
    """Writes `documents` to `path`, replacing it only once everything has been written."""
    documents = list(documents)
    lengths = np.array([len(document.tokens) for document in documents], dtype="<u4")
    prompts = np.array([document.prompt_length for document in documents], dtype="<u4")
    header = json.dumps({"count": len(documents), "tokens": int(lengths.sum(dtype=np.int64))})
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with lzma.open(partial, "wb", filters=_XZ_FILTERS) as file:
        file.write(header.encode() + b"\n" + lengths.tobytes() + prompts.tobytes())
        for document in documents:
            file.write(document.tokens.astype("<u2", copy=False).tobytes())
    partial.replace(path)


def read_shard(path: Path | str) -> Shard:
    """Reads a shard into flat arrays; `ShardError` for a damaged file, `FileNotFoundError` for a missing one."""
    try:
        with lzma.open(path, "rb") as file:
            data = file.read()
    except (lzma.LZMAError, EOFError) as error:
        raise ShardError(f"{path} is not a complete xz file: {error}") from error
    except (IsADirectoryError, PermissionError) as error:
        raise ShardError(f"{path} cannot be read: {why(error)}") from error
    header, start = _read_header(path, data)
    count, total = header["count"], header["tokens"]
    if len(data) != start + 8 * count + 2 * total:
        raise ShardError(f"{path} holds {len(data) - start} bytes after its header, not {8 * count + 2 * total}")
    lengths = np.frombuffer(data, dtype="<u4", count=count, offset=start)
    prompts = np.frombuffer(data, dtype="<u4", count=count, offset=start + 4 * count)
    tokens = np.frombuffer(data, dtype="<u2", count=total, offset=start + 8 * count)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
    _check_lengths(path, offsets, lengths, prompts, total)
    return Shard(tokens=tokens, offsets=offsets, prompt_lengths=prompts)


def _read_header(path: Path | str, data: bytes) -> tuple[dict[str, int], int]:
    """The parsed header line and the position after it."""
    end = data.find(b"\n", 0, 200)
    try:
        header = json.loads(data[:end])
        valid = end > 0 and all(isinstance(header[key], int) and header[key] >= 0 for key in ("count", "tokens"))
    except (ValueError, KeyError, TypeError):
        valid, header = False, {}
    if not valid:
        raise ShardError(f"{path} does not begin with a shard header")
    return header, end + 1


def _check_lengths(path: Path | str, offsets: np.ndarray, lengths: np.ndarray, prompts: np.ndarray, total: int) -> None:
    if offsets[-1] != total:
        raise ShardError(f"the document lengths of {path} sum to {offsets[-1]}, its header says {total}")
    if (prompts > lengths).any():
        raise ShardError(f"{path} holds a prompt longer than its document")
