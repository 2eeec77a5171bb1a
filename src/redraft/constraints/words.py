"""Words that an answer must contain, anywhere or at some offset, or must not: automata to combine with a language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redraft.constraints.automaton import Budget, Dfa, Nfa, determinise
from redraft.constraints.spelling import BYTES
from redraft.errors import ConstraintError


def holding(words: Sequence[str], symbols: int, budget: Budget) -> Dfa:
    """Strings of `symbols` symbols (bytes first) that contain all the words in sequence, in this order."""
    nfa, state = Nfa(), 0
    for word in words:
        state = _first(nfa, word.encode(), symbols, state)
    nfa.edge(state, 0, symbols - 1, state)
    nfa.move(state, 1)
    return determinise(nfa, budget)


def _first(nfa: Nfa, word: bytes, symbols: int, start: int) -> int:
    """Read from `start` on until the first time that `word` ends; returns the state there (Knuth, Morris and Pratt).

    Whatever comes between two words is read in one way, so that the states of several words add up.
    """
    states = [start, *(nfa.state() for _ in word)]
    longer: list[dict[int, int]] = []  # of each state: which bytes lead further than to its start, and how far
    shorter = 0  # bytes that match without the first one
    for place, byte in enumerate(word):
        others = longer[shorter] if longer else {}
        longer.append(others | {byte: place + 1})
        shorter = others.get(byte, 0)
    for state, matching in zip(states, longer, strict=False):
        low = 0
        for byte, count in sorted(matching.items()):
            if low < byte:
                nfa.edge(state, low, byte - 1, start)
            nfa.edge(state, byte, byte, states[count])
            low = byte + 1
        nfa.edge(state, low, symbols - 1, start)
    return states[-1]


def holding_any(words: Sequence[str], symbols: int, budget: Budget) -> Dfa:
    """Strings that contain at least one of the words."""
    nfa = Nfa()
    nfa.edge(0, 0, symbols - 1, 0)
    for word in words:
        nfa.path(0, word.encode(), 1)
    nfa.edge(1, 0, symbols - 1, 1)
    return determinise(nfa, budget)


def standing(pins: Mapping[int, str], symbols: int, budget: Budget) -> Dfa:
    """Strings that contain each text at its offset in characters; special tokens do not count.

    Raises `ConstraintError` for two texts that contradict each other.
    """
    nfa, state, pinned = Nfa(), 0, _by_offset(pins)
    for offset in range(max(pinned) + 1):
        budget.check(offset, "text_pins")
        if symbols > BYTES:
            nfa.edge(state, BYTES, symbols - 1, state)
        after = nfa.state()
        if offset in pinned:
            nfa.path(state, pinned[offset].encode(), after)
        else:  # a first byte, then whatever belongs to it
            nfa.edge(state, 0x00, 0x7F, after)
            nfa.edge(state, 0xC0, 0xFF, after)
            nfa.edge(after, 0x80, 0xBF, after)
        state = after
    nfa.edge(state, 0, symbols - 1, state)
    nfa.move(state, 1)
    return determinise(nfa, budget)


def _by_offset(pins: Mapping[int, str]) -> dict[int, str]:
    """The pinned characters."""
    found: dict[int, str] = {}
    for offset, text in sorted(pins.items()):
        for place, char in enumerate(text, start=offset):
            if found.setdefault(place, char) != char:
                raise ConstraintError(f"Two text_pins put different characters at offset {place}.")
    return found
