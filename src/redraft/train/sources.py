"""Where training documents come from: shards on disk, or generators that never repeat themselves.

A source answers one question, as a pure function of a random generator: which documents may go in the next rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import glob
from os.path import exists
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from redraft.errors import SettingError
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train import jsonl
from redraft.train.holes import line_table, mark_table
from redraft.train.recipe import DataSettings, SourceSettings
from redraft.train.shards import Ints, Shard, ShardError, join, read_shard
from redraft.train.sudoku import SudokuEncoder, draw_puzzles, load_base

Part = Literal["train", "heldout"]
Tokens = NDArray[np.uint16] | NDArray[np.int32]
Bools = NDArray[np.bool_]
_TRIES = 48
"""How many documents are tried per row; more if they are so short that these would hardly fill it."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Documents as flat arrays: document i is tokens[starts[i]:ends[i]], its first prompts[i] tokens its prompt.

    In a document with a hole, the last suffixes[i] tokens are given text after it.
    """

    tokens: Tokens
    starts: Ints
    ends: Ints
    prompts: Ints
    suffixes: Ints


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What a source has to train on, without what it holds out; `answers` are their lengths, none in plain text."""

    documents: int
    tokens: int
    answers: Ints


class ChatSource(Protocol):
    """Documents with a prompt and an answer, several of which are packed into a row."""

    marks: Bools | None
    """Tokens [V] that may enclose holes; None if answers never have holes."""
    holds_out: bool
    """Whether documents are withheld from training, or are new each time."""
    extent: Extent | None
    """None if documents are new each time."""

    def draw(self, rng: np.random.Generator, rows: int, part: Part) -> tuple[Pool, Ints]:
        """A pool, and for each of `rows` rows the documents to try in order, int64 [rows, tries]."""
        ...


class ChatShard:
    """Chat documents of a shard, drawn at random; those whose prompt leaves no room in a row are left out."""

    def __init__(self, shard: Shard, tokens: int, heldout: float, name: str, *, marks: Bools | None = None) -> None:
        """`tokens` is the length of a row, `heldout` a share, `marks` [V]; errors name the source, `name`.

        Raises `SettingError` if no document can be trained.
        """
        self.marks = marks
        prompts = shard.prompt_lengths
        usable = np.flatnonzero((prompts > 0) & (prompts < tokens) & (prompts < np.diff(shard.offsets)))
        if not len(usable):
            raise SettingError(f"source {name}: no document has a prompt of 1 to {tokens - 1} tokens and an answer.")
        self._pool = Pool(
            tokens=shard.tokens,
            starts=shard.offsets[:-1][usable],
            ends=shard.offsets[1:][usable],
            prompts=prompts[usable],
            suffixes=shard.suffix_lengths[usable],
        )
        self._tries = max(_TRIES, 2 * tokens // int(np.median(self._pool.ends - self._pool.starts)))
        ranges = _split(np.searchsorted(usable, shard.files), np.unique(np.searchsorted(usable, shard.lines)), heldout)
        self._parts = {part: np.concatenate([np.arange(low, high) for low, high in ranges[part]]) for part in ranges}
        self.holds_out = len(self._parts["heldout"]) > 0
        self.extent: Extent | None = self._extent(self._parts["train"])

    def draw(self, rng: np.random.Generator, rows: int, part: Part) -> tuple[Pool, Ints]:
        documents = self._parts[part]
        return self._pool, documents[rng.integers(0, len(documents), (rows, self._tries))]

    def _extent(self, mine: Ints) -> Extent:
        pool = self._pool
        lengths = pool.ends - pool.starts
        answers = lengths - pool.prompts - pool.suffixes
        return Extent(documents=len(mine), tokens=int(lengths[mine].sum()), answers=answers[mine])


class SudokuSource:
    """Fresh puzzles for every row."""

    marks: Bools | None = None
    holds_out = True
    extent: Extent | None = None

    def __init__(self, base: Path, encoder: SudokuEncoder, tokens: int, clues: tuple[int, int], name: str) -> None:
        """`tokens` is the length of a row, `clues` the fewest and the most of a puzzle; errors name the source, `name`.

        Raises `InputError` for a wrong base file and `SettingError` for a row too short for a prompt.
        """
        self._base, self._encoder, self._clues = load_base(base), encoder, clues
        _check_room(encoder.prompt_length, tokens, name)
        self._per_row = tokens // encoder.prompt_length + 1

    def draw(self, rng: np.random.Generator, rows: int, part: Part) -> tuple[Pool, Ints]:
        fresh = np.random.default_rng(int(rng.integers(2**62)))
        puzzles, solutions = draw_puzzles(self._base, rows * self._per_row, self._clues, fresh)
        documents = self._encoder.encode(puzzles, solutions)
        return _equal_documents(documents, self._encoder.prompt_length, rows)


class ReverseSource:
    """A toy task for tests and first tries: eight random symbols, then the same symbols backwards and an end mark."""

    SYMBOLS, BOS, SEPARATOR, END, FIRST = 8, 2, 5, 6, 8
    marks: Bools | None = None
    holds_out = True
    extent: Extent | None = None

    def __init__(self, tokens: int, vocab_size: int, name: str) -> None:
        """`tokens` is the length of a row. Raises `SettingError` if it or the vocabulary is too small for symbols."""
        _check_room(self.SYMBOLS + 2, tokens, name)
        if vocab_size <= self.FIRST:
            raise SettingError(f"source {name}: its symbols begin at {self.FIRST}; model.vocab_size is {vocab_size}.")
        self._per_row, self._vocab = tokens // (self.SYMBOLS + 2) + 1, vocab_size

    def draw(self, rng: np.random.Generator, rows: int, part: Part) -> tuple[Pool, Ints]:
        symbols = rng.integers(self.FIRST, self._vocab, (rows * self._per_row, self.SYMBOLS))
        bos, separator, end = (np.full((len(symbols), 1), token) for token in (self.BOS, self.SEPARATOR, self.END))
        documents = np.concatenate([bos, symbols, separator, symbols[:, ::-1], end], 1).astype(np.int32)
        return _equal_documents(documents, self.SYMBOLS + 2, rows)


class TextShard:
    """Plain text, cut into windows that spread evenly over the shard, with the positions of its line ends."""

    def __init__(self, shard: Shard, newline: int, heldout: float, name: str, vocab_size: int) -> None:
        """`newline` is the token of a line end, `heldout` a share; errors name the source, `name`.

        Raises `SettingError` if there are fewer than two tokens.
        """
        if len(shard.tokens) < 2:
            raise SettingError(f"source {name}: the shard is empty.")
        self.tokens, self.offsets = shard.tokens, shard.offsets
        self.marks = line_table(newline, vocab_size)
        self.newlines = np.flatnonzero(shard.tokens == newline).astype(np.int64)
        ranges = _split(shard.files, shard.lines, heldout)
        self._spans = {part: self.offsets[ranges[part]] for part in ranges}
        self.holds_out = bool(np.diff(self._spans["heldout"]).any())
        documents, tokens = (int(np.diff(ends["train"]).sum()) for ends in (ranges, self._spans))
        self.extent = Extent(documents=documents, tokens=tokens, answers=np.zeros(0, np.int64))

    def windows(self, rng: np.random.Generator, first: int, rows: int, length: int, part: Part) -> tuple[Ints, Ints]:
        """Flat [start, end) of the windows for rows `first`... of the source; a short document never loses its start.

        Training rows step through the shard by the golden ratio, which covers it far more evenly than chance.
        """
        low, high = self._spans[part].T
        ends = np.cumsum(high - low)  # of the spans, if they were concatenated
        golden = 0.618_033_988_749_894_9
        turns = rng.random(rows) if part == "heldout" else np.mod((first + np.arange(rows)) * golden, 1.0)
        start = (turns * max(1, ends[-1] - 1)).astype(np.int64)
        span = np.searchsorted(ends, start, side="right")
        start, high = start + (high - ends)[span], high[span]
        document = np.searchsorted(self.offsets, start, side="right") - 1
        whole = self.offsets[document + 1] - self.offsets[document] <= length
        start = np.where(whole, self.offsets[document], start)
        return start, np.minimum(start + length, high)


def _split(files: Ints, lines: Ints, heldout: float) -> dict[Part, Ints]:
    """Document ranges [F,2] of the parts; `files` [F+1] and `lines` [L+1] as in `Shard`.

    The last lines of every file are held out. Files too small for the share take turns. With a share and two or more
    lines, both parts have at least one.
    """
    edges = np.searchsorted(lines, files)
    count = int(edges[-1])
    held = min(max(1, round(count * heldout)), count - 1) if heldout and count > 1 else 0
    first = edges[1:] - np.diff(edges * held // max(1, count))
    return {"train": lines[np.stack((edges[:-1], first), -1)], "heldout": lines[np.stack((first, edges[1:]), -1)]}


def _check_room(prompt: int, tokens: int, name: str) -> None:
    """Raises `SettingError` if prompts of this many tokens do not fit a row, which would then train nothing."""
    if prompt > tokens:
        raise SettingError(f"source {name}: its prompts have {prompt} tokens; data.tokens is {tokens}.")


def _equal_documents(documents: NDArray[np.int32], prompt: int, rows: int) -> tuple[Pool, Ints]:
    """Documents [n, length] as a pool, dealt out to `rows` rows in order."""
    count, length = documents.shape
    starts = np.arange(count, dtype=np.int64) * length
    pool = Pool(
        tokens=documents.reshape(-1), starts=starts, ends=starts + length, prompts=np.full(count, prompt, np.int64),
        suffixes=np.zeros(count, np.int64),
    )  # fmt: skip
    return pool, np.arange(count, dtype=np.int64).reshape(rows, -1)


def open_sources(data: DataSettings, vocab_size: int, canvas: int) -> list[ChatSource | TextShard]:
    """Open every source of a recipe, in order. `canvas` is the length of a canvas.

    Raises `SettingError`, naming the source, for files that are missing, wrong or of no use to it; `InputError`, naming
    the file, for JSON lines and Sudoku puzzles that cannot be read.
    """
    tokenizer = Tokenizer.from_folder(data.tokenizer) if data.tokenizer else None
    return [_open(source, data, tokenizer, vocab_size, canvas) for source in data.sources]


def _open(
    source: SourceSettings, data: DataSettings, tokenizer: Tokenizer | None, vocab_size: int, canvas: int
) -> ChatSource | TextShard:
    if source.kind == "reverse":
        return ReverseSource(data.tokens, vocab_size, source.name)
    paths = _files(source)
    if source.kind == "sudoku":
        assert tokenizer is not None
        encoder = SudokuEncoder(tokenizer, ChatTemplate.from_folder(data.tokenizer))
        return SudokuSource(paths[0], encoder, data.tokens, source.clues, source.name)
    shard = join(_read_all(source, paths, data, tokenizer, canvas))
    _check_vocabulary(source.name, shard, vocab_size)
    if source.kind == "text":
        assert tokenizer is not None
        return TextShard(shard, newline_id(tokenizer), source.heldout, source.name, vocab_size)
    if source.spare_holes and not shard.suffix_lengths.any():
        # Without one there is nothing to learn, and the exported model would still say that it knows spare room.
        raise SettingError(
            f"source {source.name}: spare_holes has no effect without a line of prefix, middle and a suffix; remove it."
        )
    marks = mark_table(tokenizer, vocab_size) if source.infill and tokenizer else None
    return ChatShard(shard, data.tokens, source.heldout, source.name, marks=marks)


def _files(source: SourceSettings) -> list[Path]:
    """The files of a source. Raises `SettingError` if there is none, or JSON lines under a path that hides them."""
    paths = [Path(source.path)] if exists(source.path) else sorted(map(Path, glob(source.path)))
    if not paths:
        raise SettingError(f"source {source.name}: there is no file {source.path!r}.")
    if not source.is_jsonl and (lines := [path for path in paths if path.suffix == ".jsonl"]):
        raise SettingError(
            f"source {source.name}: path {source.path!r} matches {str(lines[0])!r}; for JSON lines it must "
            "end in .jsonl."
        )
    return paths


def _read_all(
    source: SourceSettings, paths: list[Path], data: DataSettings, tokenizer: Tokenizer | None, canvas: int
) -> list[Shard]:
    """Every file of a source of kind `text` or `chat`."""
    if not source.is_jsonl:
        with ThreadPoolExecutor() as pool:  # unpacking releases the GIL
            return list(pool.map(lambda path: _read(source.name, path), paths))
    assert tokenizer is not None
    template = ChatTemplate.find(data.tokenizer)
    limits = jsonl.Limits(tokens=data.tokens, canvas=canvas, canvases=source.max_canvases)
    text = source.kind == "text"
    return [jsonl.read_jsonl(path, text=text, tokenizer=tokenizer, template=template, limits=limits) for path in paths]


def _read(name: str, path: Path) -> Shard:
    if path.suffix == ".json":
        raise SettingError(
            f"source {name}: {str(path)!r} is no shard; of a JSON list make JSON lines, one object a line, in a file "
            "that ends in .jsonl (jq -c '.[]' does)."
        )
    try:
        return read_shard(path)
    except ShardError as error:
        more = "" if path.suffix == ".xz" else "; JSON lines are read from files that end in .jsonl"
        raise SettingError(f"source {name}: {error}{more}.") from error


def _check_vocabulary(name: str, shard: Shard, vocab_size: int) -> None:
    """Raises `SettingError` if a shard contains tokens that the model does not know."""
    if len(shard.tokens) and int(shard.tokens.max()) >= vocab_size:
        raise SettingError(f"source {name}: token {int(shard.tokens.max())} is outside the vocabulary of {vocab_size}.")


def newline_id(tokenizer: Tokenizer) -> int:
    """The token of a line end. Raises `SettingError` if the tokenizer has no separate one."""
    ids: Sequence[int] = tokenizer.encode("\n")
    if len(ids) != 1:
        raise SettingError("data.tokenizer: its tokenizer must encode a line end as one token.")
    return ids[0]
