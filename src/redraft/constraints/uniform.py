"""Where plain tokens lead from states that treat all plain characters alike, e.g. inside a string."""

from __future__ import annotations

import numpy as np

from redraft.constraints.vocabulary import PLAIN_ASCII

NOWHERE, MIXED = -1, -2
"""In place of a state: there is none, or it depends on the token."""

_SPELLED = (
    ((0xC2, 0xC2), (0xA0, 0xBF)), ((0xC3, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)), ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)), ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)), ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)  # fmt: skip
"""UTF-8 of the plain characters beyond ASCII."""


class Uniform:
    """The states of an automaton, as plain characters see them.

    counting  bool [Q]  every byte counts, rather than every character
    wide      [Q]       the state after any plain character beyond ASCII (in counting states: after its first byte)
    mixed     bool [Q]  plain tokens of one length do not all lead to the same state
    live      bool [Q]  they do, and those of one character lead somewhere
    """

    def __init__(self, table: np.ndarray, counting: np.ndarray, longest: int) -> None:
        """`table` [Q,256+M] over bytes; tokens have up to `longest` bytes."""
        self.counting = counting
        ascii_part = _common(table[:, list(PLAIN_ASCII)])
        self.wide = np.where(counting, _common(table[:, 0x80:0x100]), _beyond_ascii(table))
        step = np.where(ascii_part == self.wide, ascii_part, MIXED)
        self._by_char = _steps(np.where(counting, MIXED, step), longest)
        self._by_byte = _steps(np.where(counting, step, MIXED), longest)
        states = np.arange(len(table))
        lengths = np.arange(longest + 1)[:, None]
        self.mixed = (self.behind(lengths, lengths, states) == MIXED).any(0)
        self.live = (step >= 0) & ~self.mixed

    def behind(self, chars: np.ndarray, count: np.ndarray, states: np.ndarray) -> np.ndarray:
        """The states after plain text of this many characters and bytes; `NOWHERE` or `MIXED` where there is none."""
        return np.where(self.counting[states], self._by_byte[count, states], self._by_char[chars, states])


def _steps(step: np.ndarray, most: int) -> np.ndarray:
    """Where 0 .. most steps lead [most+1,Q]."""
    padded = np.append(step, [MIXED, NOWHERE])  # indexed with -2 and -1 as well
    found = [np.arange(len(step))]
    for _ in range(most):
        found.append(padded[found[-1]])
    return np.stack(found)


def _beyond_ascii(table: np.ndarray) -> np.ndarray:
    """The state after any plain character beyond ASCII, or `MIXED`."""
    return _common(np.stack([_behind(table, sequence) for sequence in _SPELLED], axis=1))


def _common(columns: np.ndarray) -> np.ndarray:
    """The value that all columns of each row share, or `MIXED`."""
    return np.where((columns == columns[:, :1]).all(1), columns[:, 0], MIXED)


def _behind(table: np.ndarray, sequence: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The state that all byte strings of a sequence of intervals lead to, or `NOWHERE`, or `MIXED`."""
    state = np.arange(len(table))
    for low, high in sequence:
        step = np.append(_common(table[:, low : high + 1]), [MIXED, NOWHERE])
        state = step[state]
    return state
