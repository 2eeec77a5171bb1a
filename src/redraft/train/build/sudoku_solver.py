"""Solves, counts and generates Sudoku puzzles with one 729-bit integer per state.

Bit ``81 * digit + cell`` says that ``digit`` (0..8) is still possible in ``cell`` (0..80, row by row). Python's big
integers then act as wide vector registers: one pass over a family of units (cells, rows, columns or boxes) finds every
single of all nine digits at once, which makes plain Python fast enough to build training data (about a hundred hard
puzzles a second) without a compiled helper.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

CELLS = 81
ALL = (1 << 9 * CELLS) - 1


def _family(anchors: Sequence[int], shifts: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    return sum(1 << anchor for anchor in anchors), tuple(shifts)


# Every unit of a family has its first member at an anchor bit and its k-th member ``shifts[k]`` bits above.
_FAMILIES = (
    _family([81 * d + 9 * r for d in range(9) for r in range(9)], range(9)),
    _family([81 * d + c for d in range(9) for c in range(9)], range(0, 81, 9)),
    _family(
        [81 * d + 27 * i + 3 * j for d in range(9) for i in range(3) for j in range(3)],
        [0, 1, 2, 9, 10, 11, 18, 19, 20],
    ),
    _family(range(81), range(0, 729, 81)),
)


def _keep(bit: int) -> int:
    """All bits but those that placing ``bit`` rules out."""
    digit, cell = divmod(bit, CELLS)
    row, column = divmod(cell, 9)
    ruled_out = sum(1 << 81 * other + cell for other in range(9))
    for peer in range(CELLS):
        r, c = divmod(peer, 9)
        if r == row or c == column or (r // 3 == row // 3 and c // 3 == column // 3):
            ruled_out |= 1 << 81 * digit + peer
    return ALL & ~(ruled_out & ~(1 << bit))


_KEEP = tuple(_keep(bit) for bit in range(9 * CELLS))


def state_of(puzzle: Sequence[int]) -> int:
    """The candidates left by the clues of ``puzzle`` (81 digits, 0 empty), before any deduction."""
    state = ALL
    for cell, digit in enumerate(puzzle):
        if digit:
            state &= _KEEP[81 * (int(digit) - 1) + cell]
    return state


def _singles(state: int, anchors: int, shifts: tuple[int, ...]) -> int | None:
    """Bits that are the only candidate of their unit in one family; None when a unit has none left."""
    once = twice = 0
    for shift in shifts:
        member = (state >> shift) & anchors
        twice |= once & member
        once |= member
    if once != anchors:
        return None
    alone = once & ~twice
    found = 0
    for shift in shifts:
        found |= alone << shift
    return found & state


def propagate(state: int, done: int = 0) -> tuple[int, int] | None:
    """Applies naked and hidden singles to a fixed point: (state, placed bits), or None for a contradiction."""
    quiet = 0
    while quiet < len(_FAMILIES):
        for anchors, shifts in _FAMILIES:
            found = _singles(state, anchors, shifts)
            if found is None:
                return None
            fresh = found & ~done
            quiet = 0 if fresh else quiet + 1
            done |= fresh
            while fresh:
                low = fresh & -fresh
                state &= _KEEP[low.bit_length() - 1]
                fresh ^= low
    return state, done


def _branch_cell(state: int) -> int:
    """An undecided cell with the fewest candidates (two, if there is one)."""
    mask = (1 << CELLS) - 1
    once = twice = thrice = 0
    for shift in range(0, 729, 81):
        member = (state >> shift) & mask
        thrice |= twice & member
        twice |= once & member
        once |= member
    pool = twice & ~thrice or twice
    return (pool & -pool).bit_length() - 1


def search(state: int, limit: int, shuffle: Callable[[list[int]], None] | None = None, done: int = 0) -> list[int]:
    """Up to ``limit`` solved states below ``state``, by propagation and depth-first guesses."""
    settled = propagate(state, done)
    if settled is None:
        return []
    state, done = settled
    if done.bit_count() == CELLS:
        return [state]
    cell = _branch_cell(state)
    bits = [81 * digit + cell for digit in range(9) if state >> 81 * digit + cell & 1]
    if shuffle is not None:
        shuffle(bits)
    solutions: list[int] = []
    for bit in bits:
        solutions += search(state & _KEEP[bit], limit - len(solutions), shuffle, done)
        if len(solutions) >= limit:
            break
    return solutions


def grid_of(state: int) -> list[int]:
    """The 81 digits (1..9) of a solved state."""
    grid = [0] * CELLS
    while state:
        low = state & -state
        digit, cell = divmod(low.bit_length() - 1, CELLS)
        grid[cell] = digit + 1
        state ^= low
    return grid


def is_unique(puzzle: Sequence[int]) -> bool:
    """Whether ``puzzle`` has exactly one solution."""
    return len(search(state_of(puzzle), 2)) == 1


def random_grid(rng: random.Random) -> list[int]:
    """A random full grid: three diagonal boxes at random, the rest by randomised search."""
    puzzle = [0] * CELLS
    for box in range(3):
        digits = rng.sample(range(1, 10), 9)
        for k, digit in enumerate(digits):
            puzzle[(3 * box + k // 3) * 9 + 3 * box + k % 3] = digit
    return grid_of(search(state_of(puzzle), 1, rng.shuffle)[0])


def _group_size(clues: int, target: int) -> int:
    wanted = 6 if clues > 52 else 3 if clues > 42 else 1
    return min(wanted, clues - target)


def dig(grid: Sequence[int], target: int, rng: random.Random) -> list[int]:
    """Removes clues of a full ``grid`` in random order until ``target`` are left, as far as the solution stays unique.

    Early removals are tried in groups, because far above 40 clues nearly all of them succeed.
    """
    puzzle, clues = list(grid), CELLS
    order = rng.sample(range(CELLS), CELLS)
    while order and clues > target:
        size = _group_size(clues, target)
        group = [order.pop() for _ in range(min(size, len(order)))]
        if _removable(puzzle, grid, group):
            clues -= len(group)
        elif len(group) > 1:
            for cell in group:
                clues -= _removable(puzzle, grid, [cell])
    return puzzle


def _removable(puzzle: list[int], grid: Sequence[int], group: list[int]) -> bool:
    """Empties the cells of ``group`` if the solution stays unique; otherwise leaves ``puzzle`` as it was."""
    for cell in group:
        puzzle[cell] = 0
    if len(group) == 1:
        # Unique before, so another solution must differ in this very cell: rule out the known digit and look for any.
        cell = group[0]
        unique = not search(state_of(puzzle) & ~(1 << 81 * (grid[cell] - 1) + cell), 1)
    else:
        unique = is_unique(puzzle)
    if not unique:
        for cell in group:
            puzzle[cell] = grid[cell]
    return unique
