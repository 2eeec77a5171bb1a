"""Sudoku as training data: an endless stream of puzzles from a file of base puzzles, and their chat form as tokens.

Adding clues of the solution keeps a puzzle unique, and so do the symmetries of the grid. A base file of a few ten
thousand hard puzzles (24 to 28 clues, `build.sudoku`) therefore stands for an unlimited number of puzzles of any chosen
difficulty: a base puzzle, a random symmetry and a random number of further clues, all vectorised. The chat form is that
of the published DiffusionGemma Sudoku recipe.

Shapes: B puzzles of 81 cells, row by row, 0 where empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redraft.errors import InputError, SettingError
from redraft.eval.sudoku import CELLS, messages_for
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import TURN_END, Tokenizer

Grids = NDArray[np.uint8]
Digits = Sequence[int] | Grids
Base = tuple[Grids, Grids]
"""Puzzles and their solutions [n,81]."""


def load_base(path: Path) -> Base:
    """Reads a base file, `.npz` with `puzzles` and `solutions`. Raises `InputError` for any other file."""
    try:
        with np.load(path) as arrays:
            puzzles, solutions = arrays["puzzles"], arrays["solutions"]
    except Exception as error:  # numpy raises many kinds of errors for other files and damaged ones
        raise InputError(f"{path} cannot be read as a base file of Sudoku puzzles.") from error
    if puzzles.shape != solutions.shape or puzzles.shape[1:] != (CELLS,) or not len(puzzles):
        raise InputError(f"{path} holds no Sudoku puzzles.")
    return puzzles, solutions


def draw_puzzles(base: Base, count: int, clues: tuple[int, int], rng: np.random.Generator) -> Base:
    """`count` puzzles and their solutions [B,81], with a uniform number of clues between the two of `clues`.

    A base puzzle with more clues than the number drawn for it keeps its own number.
    """
    chosen = rng.integers(len(base[0]), size=count)
    order, maps = random_cell_orders(rng, count), _random_digit_maps(rng, count)
    puzzles, solutions = (_transform(grids[chosen], order, maps) for grids in base)
    counts = rng.integers(clues[0], clues[1] + 1, size=count)
    return _add_clues(rng, puzzles, solutions, counts), solutions


def random_cell_orders(rng: np.random.Generator, batch: int) -> NDArray[np.int64]:
    """Random Sudoku-preserving orders of cells [B,81]: cell `i` of the new grid is cell `order[i]` of the old."""
    rows, columns = _line_orders(rng, batch), _line_orders(rng, batch)
    order = rows[:, :, None] * 9 + columns[:, None, :]  # [B,9,9]
    flip = rng.random(batch) < 0.5
    order[flip] = order[flip].transpose(0, 2, 1)
    return order.reshape(batch, CELLS)


def _line_orders(rng: np.random.Generator, batch: int) -> NDArray[np.int64]:
    """Random orders of nine rows (or columns) that keep bands together, [B,9]."""
    bands = rng.random((batch, 3), np.float32).argsort(axis=1)
    inside = rng.random((batch, 3, 3), np.float32).argsort(axis=2)
    return (3 * bands[:, :, None] + inside).reshape(batch, 9)


def _random_digit_maps(rng: np.random.Generator, batch: int) -> Grids:
    """Random renamings of the digits, [B,10]: entry 0 (empty) stays 0."""
    maps = np.zeros((batch, 10), np.uint8)
    maps[:, 1:] = rng.random((batch, 9), np.float32).argsort(axis=1) + 1
    return maps


def _transform(grids: Grids, order: NDArray[np.int64], maps: Grids) -> Grids:
    moved = np.take_along_axis(grids, order, axis=1)
    return np.take_along_axis(maps, moved.astype(np.int64), axis=1)


def _add_clues(rng: np.random.Generator, puzzles: Grids, solutions: Grids, clues: NDArray[np.int64]) -> Grids:
    """Reveals random cells of `solutions` until puzzle `i` has `clues[i]` clues; no clue is removed."""
    score = rng.random(puzzles.shape, np.float32)
    score[puzzles > 0] = -1.0
    threshold = np.take_along_axis(np.sort(score, axis=1), clues[:, None] - 1, axis=1)
    return np.where(score <= threshold, solutions, 0).astype(np.uint8)


def render_sudoku(template: ChatTemplate, puzzle: Digits, solution: Digits) -> tuple[str, str]:
    """The prompt that asks for the solution of a puzzle, and the answer with its end of turn."""
    prompt = template.render(messages_for("".join(map(str, puzzle))), add_generation_prompt=True)
    return prompt, " ".join(map(str, solution)) + TURN_END


class SudokuEncoder:
    """Turns grids into token ids by table look-up: ten renderings are tokenised once, everything after is indexing."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Raises `SettingError` for a tokenizer that does not encode each digit of a grid as one token."""

        def encoded(puzzle: Digits, solution: Digits) -> list[int]:
            prompt, answer = render_sudoku(template, puzzle, solution)
            return tokenizer.encode(prompt) + tokenizer.encode(answer)

        empty = [0] * CELLS
        self.prompt_length = len(tokenizer.encode(render_sudoku(template, empty, empty)[0]))
        """Tokens before the answer, the same for every puzzle."""
        whole = [encoded([digit] * CELLS, [digit] * CELLS) for digit in range(10)]
        _check(len(set(map(len, whole))) == 1)
        self._digits = np.array(whole, np.int32)  # [10,T]
        self._cells = np.flatnonzero((self._digits != self._digits[0]).any(axis=0))
        _check(len(self._cells) == 2 * CELLS)
        rng = np.random.default_rng(0)  # its digits cover every pair of neighbours
        puzzles, solutions = (rng.integers(low, 10, (4, CELLS)).astype(np.uint8) for low in (0, 1))
        for puzzle, solution, fast in zip(puzzles, solutions, self.encode(puzzles, solutions), strict=True):
            _check(encoded(puzzle, solution) == fast.tolist())

    def encode(self, puzzles: Grids, solutions: Grids) -> NDArray[np.int32]:
        """Whole documents [B, prompt_length + answer tokens]."""
        documents = np.repeat(self._digits[:1], len(puzzles), axis=0)
        documents[:, self._cells] = self._digits[np.concatenate([puzzles, solutions], 1), self._cells]
        return documents


def _check(ok: bool) -> None:
    if not ok:
        raise SettingError("data.tokenizer: its tokenizer must encode each digit of a Sudoku grid as one token.")
