"""Words that an answer must contain, anywhere or at some offset, or must not: automata to combine with a language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redraft.constraints.automaton import Budget, Dfa, Nfa, determinise
from redraft.constraints.spelling import BYTES
from redraft.errors import ConstraintError


def holding(words: Sequence[str], symbols: int, budget: Budget) -> Dfa:
    """Strings of `symbols` symbols (bytes first) that contain all the words in sequence, in this order."""
    nfa = Nfa()
    state = 0
    for word in words:
        nfa.edge(state, 0, symbols - 1, state)
        after = nfa.state()
        nfa.path(state, word.encode(), after)
        state = after
    nfa.edge(state, 0, symbols - 1, state)
    nfa.move(state, 1)
    return determinise(nfa, budget)


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
