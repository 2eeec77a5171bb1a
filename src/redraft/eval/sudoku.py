"""Sudoku: one chat question per puzzle, solved if the last 81 digits of the answer are the solution."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redraft.errors import InputError
from redraft.eval.files import read_text
from redraft.eval.task import Task
from redraft.text.json_lines import fail

CELLS = 81
SYSTEM_PROMPT = (
    "Solve the following Sudoku puzzle. Empty cells are represented by 0. Output ONLY the solved puzzle immediately "
    "as a 9x9 grid of numbers separated by spaces. Do not include ####, explanations, or any other text."
)

_PUZZLE = re.compile(r"[0-9]{81}")
_SOLUTION = re.compile(r"[1-9]{81}")
_UNITS = (
    [("row", [9 * i + k for k in range(9)]) for i in range(9)]
    + [("column", [9 * k + i for k in range(9)]) for i in range(9)]
    + [("box", [27 * (i // 3) + 3 * (i % 3) + 9 * (k // 3) + k % 3 for k in range(9)]) for i in range(9)]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SudokuItem:
    """A puzzle and its solution, 81 digits each, row by row; 0 is an empty cell of the puzzle."""

    id: str
    puzzle: str
    solution: str

    @property
    def clues(self) -> int:
        """Digits given."""
        return CELLS - self.puzzle.count("0")


def read_sudoku_csv(path: str | Path) -> list[SudokuItem]:
    """Reads a CSV file with the columns ``puzzle`` and ``solution``; others are allowed.

    Raises :class:`InputError`, naming file and line, for missing columns, for cells that are not 81 digits, for a
    solution that is not a Sudoku grid or contradicts its puzzle, and for a file without items.
    """
    path = Path(path)
    rows = csv.reader(read_text(path).splitlines())
    try:
        header = [name.strip() for name in next(rows, [])]
        for column in ("puzzle", "solution"):
            if column not in header:
                fail(path, 1, f"the column {column!r} is missing")
        items = [_item(path, rows.line_num, header, row) for row in rows if row]
    except csv.Error as error:
        fail(path, rows.line_num, f"not valid CSV ({error})")
    if not items:
        raise InputError(f"{path} holds no items.")
    return items


def _item(path: Path, line: int, header: Sequence[str], row: Sequence[str]) -> SudokuItem:
    if len(row) != len(header):
        fail(path, line, f"{len(row)} columns instead of {len(header)}")
    puzzle, solution = row[header.index("puzzle")].strip(), row[header.index("solution")].strip()
    if not _PUZZLE.fullmatch(puzzle):
        fail(path, line, f"a puzzle needs 81 digits, 0 for an empty cell, got {len(puzzle)} characters")
    if not _SOLUTION.fullmatch(solution):
        fail(path, line, f"a solution needs 81 digits from 1 to 9, got {len(solution)} characters")
    _check_grid(path, line, solution)
    wrong = next((i for i, digit in enumerate(puzzle) if digit not in ("0", solution[i])), None)
    if wrong is not None:
        fail(path, line, f"puzzle and solution differ in row {wrong // 9 + 1}, column {wrong % 9 + 1}")
    return SudokuItem(id=f"sudoku-{line - 1:04d}", puzzle=puzzle, solution=solution)


def _check_grid(path: Path, line: int, solution: str) -> None:
    for index, (kind, cells) in enumerate(_UNITS):
        if len({solution[cell] for cell in cells}) != 9:
            fail(path, line, f"the solution repeats a digit in {kind} {index % 9 + 1}")


def messages_for(puzzle: str) -> list[dict[str, str]]:
    """The chat messages that ask for the solution of a puzzle of 81 digits."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": " ".join(puzzle)}]


def is_solved(item: SudokuItem, text: str) -> bool:
    """Whether the last 81 digits of ``text`` are the solution."""
    return "".join(re.findall(r"[0-9]", text))[-CELLS:] == item.solution


TASK = Task(
    file="sudoku_30.csv",
    read=read_sudoku_csv,
    chat=lambda item: (messages_for(item.puzzle), None),
    solved=is_solved,
    expected=lambda item: " ".join(item.solution),
    id=lambda item: item.id,
)
