"""Runs the data builders: `python -m redraft.train.build --out DIR [--only NAME ...]`.

Shards are encoded with the embedded tokenizer and kept free of the embedded evaluation items. The builders `tokenizer`,
`infill` and those of `..._items` write them to DIR; new ones take effect once they are copied over the embedded ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import InputError, why
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.build import (
    chat,
    edits,
    english,
    extraction,
    infill_eval,
    prompts,
    python_code,
    sudoku,
    tokenizer,
    tool_answers,
    tools,
)
from redraft.train.build.encoding import load_tokenizer
from redraft.train.build.sources import DEFAULT_CACHE, TOOL_WHEELS, wheel
from redraft.train.build.tool_api import read_operations
from redraft.train.build.tools import Shares
from redraft.train.build.wordnet import Lexicon, read_lexicon
from redraft.train.shards import write_shard

_PACKAGE = Path(__file__).parents[2]
_PROMPTS = 1200
_SUDOKU_PUZZLES, _CHAT_DOCUMENTS, _EDIT_DOCUMENTS = 120_000, 160_000, 150_000
_SUDOKU_ITEMS = {26: 300, 30: 1000, 36: 1000}
"""Puzzles of an evaluation by their number of clues."""
_TOOL_DOCUMENTS, _COMPOSED_DOCUMENTS = 163_000, 250_000
_FOREIGN = Shares(api=0.0, invented=0.3, foreign=1.0)
"""Tools with made-up names, so only the descriptions say what they are for."""
_COMPOSED_SEEDS = (43, 44)
_COMPOSED = Shares(api=0.0, invented=0.1, composed=0.75, none=0.06)
"""Mostly tools that are newly drawn each time."""
_ANSWER_DOCUMENTS = 150_000
_EXTRACTION_DOCUMENTS = 200_000
_ANSWERED = Shares(api=0.12, invented=0.08, composed=0.45, none=0.0, parallel=0.15)
"""Tools of all sorts, all of them called."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where builders write (`out`), where sources are cached (`cache`), and what the shards are made with."""

    out: Path
    cache: Path = DEFAULT_CACHE
    tokenizer: Path = _PACKAGE / "assets" / "tiny" / "tokenizer.json"
    infill: Path = _PACKAGE / "eval" / "data" / "infill.jsonl"


Builder = Callable[[Settings], list[Path]]


def _infill(settings: Settings) -> list[Path]:
    return [infill_eval.build(settings.out / "infill.jsonl", settings.cache)]


def _tokenizer(settings: Settings) -> list[Path]:
    return tokenizer.build(settings.out / "tokenizer", settings.cache)


def _python_code(settings: Settings) -> list[Path]:
    return python_code.build(settings.out, settings.cache, load_tokenizer(settings.tokenizer), settings.infill)


def _english(settings: Settings) -> list[Path]:
    return [english.build(settings.out, settings.cache, load_tokenizer(settings.tokenizer), settings.infill)]


def _sudoku(settings: Settings) -> list[Path]:
    return [sudoku.build(settings.out / "sudoku_base.npz", _SUDOKU_PUZZLES)]


def _tools(settings: Settings) -> list[Path]:
    return [_tool_shard(settings, "tools.xz", _TOOL_DOCUMENTS)]


def _tools_foreign(settings: Settings) -> list[Path]:
    return [_tool_shard(settings, "tools_foreign.xz", _TOOL_DOCUMENTS, seed=42, shares=_FOREIGN)]


def _tools_composed(settings: Settings) -> list[Path]:
    drawn = {"shares": _COMPOSED, "lexicon": read_lexicon(settings.cache)}
    return [
        _tool_shard(settings, f"tools_composed-{number}.xz", _COMPOSED_DOCUMENTS, seed=seed, **drawn)
        for number, seed in enumerate(_COMPOSED_SEEDS)
    ]


def _tool_answers(settings: Settings) -> list[Path]:
    path, (items, talk, lexicon) = settings.out / "tool_answers.xz", _called(settings, 47, 52)
    source = tool_answers.ConversationSource(items, talk, lexicon, 48)
    write_shard(path, tool_answers.documents(source, _ANSWER_DOCUMENTS, *_embedded(settings)))
    return [path]


def _extraction(settings: Settings) -> list[Path]:
    path, (items, talk, lexicon) = settings.out / "extraction.xz", _called(settings, 49, 53)
    source = extraction.ExtractionSource(items, talk, lexicon, 50)
    write_shard(path, extraction.documents(source, _EXTRACTION_DOCUMENTS, *_embedded(settings)))
    return [path]


def _called(settings: Settings, seed: int, talk_seed: int) -> tuple[tools.ItemSource, chat.ChatSource, Lexicon]:
    """Calls of tools, the talk beside them, and the words that both are made of."""
    lexicon = read_lexicon(settings.cache)
    items = tools.ItemSource(read_operations(*_tool_wheels(settings)), seed, shares=_ANSWERED, lexicon=lexicon)
    return items, chat.ChatSource(chat.all_tables(settings.cache, talk_seed), talk_seed), lexicon


def _tool_shard(settings: Settings, name: str, count: int, **drawn: Any) -> Path:
    path, (google, aws) = settings.out / name, _tool_wheels(settings)
    tokenizer, template = _embedded(settings)
    tools.build(path, count, google_wheel=google, aws_wheel=aws, tokenizer=tokenizer, template=template, **drawn)
    return path


def _embedded(settings: Settings) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and the chat template that prompts are rendered with."""
    folder = settings.tokenizer.parent
    return Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder)


def _tool_wheels(settings: Settings) -> list[Path]:
    return [wheel(name, version, settings.cache) for name, version in TOOL_WHEELS.items()]


def _chat(settings: Settings) -> list[Path]:
    path, (tokenizer, template) = settings.out / "chat.xz", _embedded(settings)
    chat.build(path, _CHAT_DOCUMENTS, cache=settings.cache, tokenizer=tokenizer, template=template)
    return [path]


def _chat_prompts(settings: Settings) -> list[Path]:
    return [prompts.sample_prompts(settings.out / "chat.xz", settings.out / "chat_prompts.jsonl", _PROMPTS)]


def _edits(settings: Settings) -> list[Path]:
    tokenizer, template = _embedded(settings)
    path = edits.build(settings.out / "edits.xz", _EDIT_DOCUMENTS, cache=settings.cache, tokenizer=tokenizer,
                       template=template, evaluation=settings.infill.parent)  # fmt: skip
    return [path]


def _edit_items(settings: Settings) -> list[Path]:
    return [edits.write_evaluation(settings.out / "edits.jsonl", settings.cache)]


def _sudoku_items(settings: Settings) -> list[Path]:
    paths = []
    for clues, count in _SUDOKU_ITEMS.items():
        paths.append(settings.out / f"sudoku_{clues}.csv")
        sudoku.write_evaluation(paths[-1], count, clues=clues, seed=100 * clues)
    return paths


def _tool_items(settings: Settings) -> list[Path]:
    paths = [settings.out / "tools.jsonl", settings.out / "tools_second.jsonl"]
    google, aws = _tool_wheels(settings)
    tools.write_evaluation(paths[0], 300, google_wheel=google, aws_wheel=aws)
    tools.write_second_evaluation(paths[1], 200)
    return paths


def _chat_items(settings: Settings) -> list[Path]:
    path = settings.out / "smalltalk.jsonl"
    chat.write_evaluation(path)
    return [path]


BUILDERS: Mapping[str, Builder] = {
    "infill": _infill,
    "tokenizer": _tokenizer,
    "python_code": _python_code,
    "english": _english,
    "sudoku": _sudoku,
    "tools": _tools,
    "tools_foreign": _tools_foreign,
    "tools_composed": _tools_composed,
    "tool_answers": _tool_answers,
    "extraction": _extraction,
    "chat": _chat,
    "chat_prompts": _chat_prompts,
    "edits": _edits,
    "edit_items": _edit_items,
    "sudoku_items": _sudoku_items,
    "tool_items": _tool_items,
    "chat_items": _chat_items,
}


def build(names: Sequence[str], settings: Settings) -> list[Path]:
    """Runs the builders `names` in the order of `BUILDERS` and returns the files that they wrote."""
    settings.out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name in (name for name in BUILDERS if name in names):
        start = time.monotonic()
        paths = BUILDERS[name](settings)
        for path in paths:
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", flush=True)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        written += paths
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 0, 1 if a file cannot be read or written, or 2 if a source cannot be obtained."""
    parser = argparse.ArgumentParser(prog="python -m redraft.train.build", description="Builds the data of `tiny`.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--only", action="append", choices=list(BUILDERS), help="a builder to run (default: all)")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder for downloaded sources")
    options = parser.parse_args(arguments)
    try:
        build(options.only or list(BUILDERS), Settings(out=options.out, cache=options.cache))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or options.out}: {why(error)}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
