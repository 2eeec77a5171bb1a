"""Base puzzles of Sudoku, from which `redraft.train.sudoku` draws endlessly, and the puzzles of the evaluation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from redraft.train.build.sudoku_solver import CELLS, dig, random_grid


def generate(count: int, seed: int, target: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yields ``count`` pairs (puzzle, solution) of 81 digits with ``target`` clues, or as few as digging left."""
    rng = random.Random(seed)
    for _ in range(count):
        solution = random_grid(rng)
        yield dig(solution, target, rng), solution


def build(out: Path, n: int, *, seed: int = 24, target: int = 24) -> Path:
    """Writes ``n`` base puzzles to ``out`` (``.npz`` with ``puzzles`` and ``solutions``, uint8 [n, 81])."""
    pairs = np.array(list(generate(n, seed, target)), np.uint8)  # [n,2,81]
    partial = out.with_name(out.stem + ".partial.npz")
    np.savez_compressed(partial, puzzles=pairs[:, 0], solutions=pairs[:, 1])
    partial.replace(out)
    return out


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
