"""Shards: how tokenised training documents are stored on disk.

A shard is one xz-compressed file: a JSON header line `{"count": n, "tokens": total}`, then the little-endian arrays
`uint32 lengths[n]`, `uint32 prompt_lengths[n]` and `uint16 tokens[total]`. Builders write it once; the trainer reads it
in one pass into flat arrays, so packing sequences never loops over Python objects.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redraft.errors import InputError, why

Ints = NDArray[np.int64]

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
    """Many documents as flat arrays, of one file or several, int64 but for `tokens`.

    `tokens` uint16 or int32 [T]; `offsets` [n + 1], document `i` is `tokens[offsets[i]:offsets[i + 1]]`; it begins with
    `prompt_lengths[i]` tokens of context and ends with `suffix_lengths[i]` tokens of given text after a hole, [n] each.
    `lines` [L + 1] and `files` [F + 1] are the first documents of each line and of each file, followed by n: the
    documents of one JSON line contain each other. Other documents are lines of their own.
    """

    tokens: np.ndarray
    offsets: Ints
    prompt_lengths: Ints
    suffix_lengths: Ints
    lines: Ints
    files: Ints

    @classmethod
    def of_file(
        cls, tokens: np.ndarray, lengths: ArrayLike, prompts: ArrayLike, suffixes: ArrayLike | None = None,
        lines: ArrayLike | None = None,
    ) -> Shard:  # fmt: skip
        """The documents of one file; `lines` [L] are the first ones of its lines, by default all."""
        offsets, count = _running(lengths), len(np.asarray(lengths))
        return cls(
            tokens=tokens,
            offsets=offsets,
            prompt_lengths=np.asarray(prompts, np.int64),
            suffix_lengths=np.zeros(count, np.int64) if suffixes is None else np.asarray(suffixes, np.int64),
            lines=np.arange(count + 1) if lines is None else np.append(np.asarray(lines, np.int64), count),
            files=np.array([0, count]),
        )

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def pieces(self, index: int) -> tuple[list[int], list[int], list[int]]:
        """The tokens of document `index`: its prompt, its answer, and the given text after it."""
        start, end = self.offsets[index : index + 2]
        cuts = start, start + self.prompt_lengths[index], end - self.suffix_lengths[index], end
        prompt, answer, suffix = (self.tokens[low:high].tolist() for low, high in pairwise(cuts))
        return prompt, answer, suffix


def join(shards: Sequence[Shard]) -> Shard:
    """The documents of several shards as one."""

    def beside(name: str) -> np.ndarray:
        return np.concatenate([getattr(shard, name) for shard in shards])

    def behind(name: str) -> Ints:
        """Edges that count tokens or documents, [... + 1], one after the other."""
        return _running(np.concatenate([np.diff(getattr(shard, name)) for shard in shards]))

    return Shard(
        **{name: beside(name) for name in ("tokens", "prompt_lengths", "suffix_lengths")},
        **{name: behind(name) for name in ("offsets", "lines", "files")},
    )


def _running(lengths: ArrayLike) -> Ints:
    """The edges [n + 1] of pieces of these lengths [n]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


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
    _check_lengths(path, lengths, prompts, total)
    return Shard.of_file(tokens, lengths, prompts)


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


def _check_lengths(path: Path | str, lengths: np.ndarray, prompts: np.ndarray, total: int) -> None:
    if (found := int(lengths.sum(dtype=np.int64))) != total:
        raise ShardError(f"the document lengths of {path} sum to {found}, its header says {total}")
    if (prompts > lengths).any():
        raise ShardError(f"{path} holds a prompt longer than its document")
