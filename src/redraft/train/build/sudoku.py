"""Sudoku training data: base puzzles on disk, and a sampler that makes an endless stream of puzzles from them.

Adding clues of the solution keeps a puzzle unique, and so do the symmetries of the grid. A base file of a few ten
thousand hard puzzles (24 to 28 clues) therefore stands for an unlimited number of puzzles of any chosen difficulty: the
sampler draws a base puzzle, a random symmetry and a random number of further clues, all vectorised. The chat form is
that of the published DiffusionGemma Sudoku recipe.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redraft.errors import InputError
from redraft.eval.sudoku import SYSTEM_PROMPT
from redraft.text.tokenizer import TURN_END
from redraft.train.build.encoding import Encodes, Renders
from redraft.train.build.sudoku_solver import CELLS, dig, random_grid

Grids = NDArray[np.uint8]
Ids = NDArray[np.int32]

# --- base puzzles ---------------------------------------------------------------------------------


def generate(count: int, seed: int, target: int = 24) -> Iterator[tuple[list[int], list[int]]]:
    """Yields ``count`` pairs (puzzle, solution) of 81 digits with ``target`` clues, or as few as digging left."""
    rng = random.Random(seed)
    for _ in range(count):
        solution = random_grid(rng)
        yield dig(solution, target, rng), solution


def build(
    out: Path,
    n: int,
    *,
    seed: int = 24,
    target: int = 24,
    save_every: int = 4000,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Writes ``n`` base puzzles to ``out`` (``.npz`` with ``puzzles`` and ``solutions``, uint8 [n, 81]).

    Returns the number of puzzles written. The file is complete and readable after every ``save_every`` puzzles.
    """
    puzzles = np.zeros((n, CELLS), np.uint8)
    solutions = np.zeros((n, CELLS), np.uint8)
    for i, (puzzle, solution) in enumerate(generate(n, seed, target)):
        puzzles[i], solutions[i] = puzzle, solution
        if (i + 1) % save_every == 0 or i + 1 == n:
            _save(out, puzzles[: i + 1], solutions[: i + 1])
            if progress is not None:
                progress(i + 1)
    return n


def _save(out: Path, puzzles: Grids, solutions: Grids) -> None:
    partial = out.with_name(out.stem + ".partial.npz")
    np.savez_compressed(partial, puzzles=puzzles, solutions=solutions)
    partial.replace(out)


def load_base(path: Path) -> tuple[Grids, Grids]:
    """Reads a base file: (puzzles, solutions), uint8 [n, 81] each. Raises `InputError` for any other file."""
    try:
        with np.load(path) as arrays:
            puzzles, solutions = arrays["puzzles"], arrays["solutions"]
    except Exception as error:  # numpy raises many kinds of errors for other files and damaged ones
        raise InputError(f"{path} cannot be read as a base file of Sudoku puzzles.") from error
    if puzzles.shape != solutions.shape or puzzles.shape[1:] != (CELLS,) or not len(puzzles):
        raise InputError(f"{path} holds no Sudoku puzzles.")
    return puzzles, solutions


def write_evaluation(out: Path, n: int, *, clues: int, seed: int) -> None:
    """Writes ``n`` puzzles with exactly ``clues`` clues, from fresh random grids, as CSV (columns puzzle, solution)."""
    rng = random.Random(f"evaluation {seed}")
    with out.open("w", encoding="ascii") as file:
        file.write("puzzle,solution\n")
        while n:
            solution = random_grid(rng)
            puzzle = dig(solution, clues, rng)
            if CELLS - puzzle.count(0) == clues:
                file.write("".join(map(str, puzzle)) + "," + "".join(map(str, solution)) + "\n")
                n -= 1


# --- sampler --------------------------------------------------------------------------------------


def random_cell_orders(rng: np.random.Generator, batch: int) -> NDArray[np.int64]:
    """Random Sudoku-preserving orders of cells, [B, 81]: cell ``i`` of the new grid is cell ``order[i]`` of the old."""
    rows, columns = _line_orders(rng, batch), _line_orders(rng, batch)
    order = rows[:, :, None] * 9 + columns[:, None, :]  # [B, 9, 9]
    flip = rng.random(batch) < 0.5
    order[flip] = order[flip].transpose(0, 2, 1)
    return order.reshape(batch, CELLS)


def _line_orders(rng: np.random.Generator, batch: int) -> NDArray[np.int64]:
    """Random orders of nine rows (or columns) that keep bands together, [B, 9]."""
    bands = rng.random((batch, 3), np.float32).argsort(axis=1)
    inside = rng.random((batch, 3, 3), np.float32).argsort(axis=2)
    return (3 * bands[:, :, None] + inside).reshape(batch, 9)


def random_digit_maps(rng: np.random.Generator, batch: int) -> Grids:
    """Random renamings of the digits, [B, 10]: entry 0 (empty) stays 0."""
    maps = np.zeros((batch, 10), np.uint8)
    maps[:, 1:] = rng.random((batch, 9), np.float32).argsort(axis=1) + 1
    return maps


def add_clues(rng: np.random.Generator, puzzles: Grids, solutions: Grids, clues: NDArray[np.int64]) -> Grids:
    """Reveals random cells of ``solutions`` until puzzle ``i`` has ``clues[i]`` clues; no clue is removed."""
    score = rng.random(puzzles.shape, np.float32)
    score[puzzles > 0] = -1.0
    threshold = np.take_along_axis(np.sort(score, axis=1), clues[:, None] - 1, axis=1)
    return np.where(score <= threshold, solutions, 0).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class ClueRange:
    """Clue counts drawn uniformly from ``low`` to ``high``, both included."""

    low: int = 24
    high: int = 45

    def __post_init__(self) -> None:
        if not 17 <= self.low <= self.high <= CELLS:
            raise ValueError(f"clue range {self.low}..{self.high} must lie within 17..{CELLS} and not be empty")


class SudokuSampler:
    """An endless stream of (puzzles, solutions), uint8 [B, 81] each, from a base file's arrays.

    The stream depends on ``seed`` alone. A base puzzle with more clues than the count drawn for it keeps its own count.
    """

    def __init__(self, base: tuple[Grids, Grids], seed: int, clues: ClueRange | None = None) -> None:
        puzzles, solutions = base
        if puzzles.shape != solutions.shape or puzzles.ndim != 2 or puzzles.shape[1] != CELLS or not len(puzzles):
            raise ValueError(
                f"a Sudoku base needs puzzles and solutions of shape [n, 81], got {puzzles.shape} and {solutions.shape}"
            )
        self._puzzles, self._solutions = puzzles, solutions
        self._rng = np.random.default_rng(seed)
        self._clues = clues or ClueRange()

    def sample(self, batch: int) -> tuple[Grids, Grids]:
        """The next ``batch`` puzzles and their solutions."""
        rng = self._rng
        chosen = rng.integers(len(self._puzzles), size=batch)
        order, maps = random_cell_orders(rng, batch), random_digit_maps(rng, batch)
        puzzles = _transform(self._puzzles[chosen], order, maps)
        solutions = _transform(self._solutions[chosen], order, maps)
        counts = rng.integers(self._clues.low, self._clues.high + 1, size=batch)
        return add_clues(rng, puzzles, solutions, counts), solutions


def _transform(grids: Grids, order: NDArray[np.int64], maps: Grids) -> Grids:
    moved = np.take_along_axis(grids, order, axis=1)
    return np.take_along_axis(maps, moved.astype(np.int64), axis=1)


# --- chat form ------------------------------------------------------------------------------------


def render_grid(digits: Sequence[int] | Grids) -> str:
    """81 digits separated by single spaces."""
    return " ".join(str(int(digit)) for digit in digits)


def messages_for(puzzle: Sequence[int] | Grids) -> list[dict[str, str]]:
    """The chat messages that ask for the solution of ``puzzle``."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": render_grid(puzzle)}]


def render_sudoku(template: Renders, puzzle: Sequence[int] | Grids, solution: Sequence[int] | Grids) -> tuple[str, str]:
    """(prompt text with generation prompt, answer text with its end of turn)."""
    prompt = template.render(messages_for(puzzle), add_generation_prompt=True)
    return prompt, render_grid(solution) + TURN_END


class SudokuEncoder:
    """Turns grids into token ids by table look-up: ten renderings are tokenised once, everything after is indexing.

    Works for any tokenizer that encodes each digit separately; otherwise the constructor raises ``ValueError``.
    """

    def __init__(self, tokenizer: Encodes, template: Renders) -> None:
        self._prompts = _uniform_encodings(
            lambda digit: tokenizer.encode(render_sudoku(template, [digit] * CELLS, [1] * CELLS)[0]), 10
        )
        self._answers = _uniform_encodings(lambda digit: tokenizer.encode(render_grid([digit] * CELLS) + TURN_END), 10)
        self._prompt_cells = _varying(self._prompts)
        self._answer_cells = _varying(self._answers)
        self._check(tokenizer, template)

    @property
    def prompt_length(self) -> int:
        """Tokens before the answer, the same for every puzzle."""
        return int(self._prompts.shape[1])

    def encode(self, puzzles: Grids, solutions: Grids) -> Ids:
        """Whole documents, int32 [B, prompt_length + answer tokens]."""
        prompts = _fill(self._prompts, self._prompt_cells, puzzles)
        return np.concatenate([prompts, _fill(self._answers, self._answer_cells, solutions)], axis=1)

    def _check(self, tokenizer: Encodes, template: Renders) -> None:
        """The look-up must equal tokenising the rendered text; random digits cover every pair of neighbours."""
        rng = np.random.default_rng(0)
        puzzles = rng.integers(0, 10, (4, CELLS)).astype(np.uint8)
        solutions = rng.integers(1, 10, (4, CELLS)).astype(np.uint8)
        for puzzle, solution, fast in zip(puzzles, solutions, self.encode(puzzles, solutions), strict=True):
            if tokenizer.encode("".join(render_sudoku(template, puzzle, solution))) != fast.tolist():
                raise ValueError(
                    "this tokenizer merges digits of a Sudoku grid, so grids cannot be encoded cell by cell"
                )


def _uniform_encodings(encode: Callable[[int], list[int]], digits: int) -> Ids:
    """Encodings of the grids made of one digit only, int32 [10, T]."""
    rows = [encode(digit) for digit in range(digits)]
    if len({len(row) for row in rows}) != 1:
        raise ValueError(
            "this tokenizer gives digits different numbers of tokens, so grids cannot be encoded cell by cell"
        )
    return np.array(rows, np.int32)


def _varying(encodings: Ids) -> NDArray[np.int64]:
    """The 81 token positions that depend on the digit."""
    positions = np.flatnonzero((encodings != encodings[:1]).any(axis=0))
    if len(positions) != CELLS:
        raise ValueError(f"this tokenizer spends {len(positions)} digit tokens on the {CELLS} cells of a Sudoku grid")
    return positions


def _fill(encodings: Ids, cells: NDArray[np.int64], grids: Grids) -> Ids:
    tokens = np.repeat(encodings[:1], len(grids), axis=0)  # [B, T]
    tokens[:, cells] = encodings[grids, cells]
    return tokens
