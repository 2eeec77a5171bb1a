"""Infilling items from packages that training never sees: one or more lines are missing, both sides are shown."""

from __future__ import annotations

import io
import json
import random
import token as token_kinds
import tokenize
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from redraft.eval.infill import InfillItem
from redraft.train.build.sources import HELD_OUT, SourceFile, archive_files, wheel

PACKAGES = ("attrs", "click", "rich", "more-itertools", "boltons", "toolz")
COUNTS = {"line": 300, "span": 200}
_PREFIX_CHARACTERS, _SUFFIX_CHARACTERS = 1200, 300
_MAX_SPAN_LINES = 3
_MAX_DIGITS = 0.2  # files with a higher share of digits, or a lower one of ASCII, are tables of data
_MIN_ASCII = 0.97
_LAYOUT = {token_kinds.NEWLINE, token_kinds.INDENT, token_kinds.DEDENT}
_NOT_CODE = {token_kinds.COMMENT, token_kinds.NL, token_kinds.ENDMARKER, *_LAYOUT}


def code_lines(text: str) -> set[int]:
    """Line numbers (from 0) with code: not blank, not just a comment, not part of a longer string."""
    found: set[int] = set()
    strings: set[int] = set()
    statement_start = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first, last = token.start[0] - 1, token.end[0] - 1
        if token.type == token_kinds.STRING and (last > first or statement_start):
            strings.update(range(first, last + 1))
        elif token.type not in _NOT_CODE:
            found.update(range(first, last + 1))
        if token.type not in (token_kinds.COMMENT, token_kinds.NL):
            statement_start = token.type in _LAYOUT
    lines = text.split("\n")
    return {line for line in found - strings if len("".join(lines[line].split())) >= 3}


def make_item(file: SourceFile, start: int, count: int, name: str) -> InfillItem:
    """The item whose answer is `count` lines of `file` from line `start` (from 0), without their last newline."""
    lines = file.text.split("\n")
    before, after = lines[:start], lines[start + count :]
    return InfillItem(
        id=name,
        prefix="".join(line + "\n" for line in _closest(before[::-1], _PREFIX_CHARACTERS)[::-1]),
        answer="\n".join(lines[start : start + count]),
        suffix="".join("\n" + line for line in _closest(after, _SUFFIX_CHARACTERS)),
        source=f"{file.package} {HELD_OUT.get(file.package, '')} {file.path}:{start + 1}",
    )


def _closest(lines: list[str], limit: int) -> list[str]:
    """The first lines with at most `limit` characters in total, newlines included (at least one line)."""
    total = 0
    for index, line in enumerate(lines):
        total += len(line) + 1
        if index and total > limit:
            return lines[:index]
    return lines


def candidates(files: list[SourceFile], count: int) -> list[tuple[SourceFile, int]]:
    """Every (file, line) where `count` consecutive lines of code begin, none of them the last line of the file."""
    found: list[tuple[SourceFile, int]] = []
    for file in files:
        lines = code_lines(file.text)
        end = file.text.count("\n")
        starts = (line for line in sorted(lines) if line + count <= end and lines.issuperset(range(line, line + count)))
        found.extend((file, start) for start in starts)
    return found


def draw_items(files_of: dict[str, list[SourceFile]], counts: dict[str, int], seed: int) -> Iterator[InfillItem]:
    """Draws items evenly from the packages of `files_of`, never the same place twice within a kind."""
    rng = random.Random(seed)
    sizes = range(1, _MAX_SPAN_LINES + 1)
    places = {(name, size): candidates(files, size) for name, files in files_of.items() for size in sizes}
    for kind, total in counts.items():
        used: set[tuple[str, str, int]] = set()
        for index in range(total):
            name = list(files_of)[index % len(files_of)]
            size = 1 if kind == "line" else rng.randint(1, _MAX_SPAN_LINES)
            free = [place for place in places[name, size] if (name, place[0].path, place[1]) not in used]
            file, start = rng.choice(free)
            used.add((name, file.path, start))
            yield make_item(file, start, size, f"{kind}-{index:03d}")


def evaluation_files(package: str, cache: Path) -> list[SourceFile]:
    """The files of a held-out package that people wrote: no tests, no data tables."""
    files = archive_files(package, wheel(package, HELD_OUT[package], cache))
    return [file for file in files if _is_written_code(file)]


def _is_written_code(file: SourceFile) -> bool:
    size = len(file.text)
    if "test" in file.path or "\f" in file.text or size < 1000:
        return False
    digits = sum(map(str.isdigit, file.text))
    return digits < _MAX_DIGITS * size and len(file.text.encode("ascii", "ignore")) > _MIN_ASCII * size


def build(out: Path, cache: Path, seed: int = 20) -> Path:
    """Writes the items as JSON lines to the file `out`."""
    files_of = {package: evaluation_files(package, cache) for package in PACKAGES}
    lines = [json.dumps(asdict(item), ensure_ascii=False) for item in draw_items(files_of, COUNTS, seed)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out
