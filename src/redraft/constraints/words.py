"""Words that an answer must hold, or must not: automata over every symbol, to be multiplied with a language."""

from __future__ import annotations

from collections.abc import Sequence

from redraft.constraints.automaton import Budget, Dfa, Nfa, determinise


def holding(words: Sequence[str], symbols: int, budget: Budget) -> Dfa:
    """Strings of `symbols` symbols (bytes first) that hold all the words, one behind the other, in this order."""
    nfa = Nfa()
    state = 0
    for word in words:
        nfa.edge(state, 0, symbols - 1, state)
        state = _spelled(nfa, word, state, nfa.state())
    nfa.edge(state, 0, symbols - 1, state)
    nfa.move(state, 1)
    return determinise(nfa, budget)


def holding_any(words: Sequence[str], symbols: int, budget: Budget) -> Dfa:
    """Strings that hold at least one of the words."""
    nfa = Nfa()
    nfa.edge(0, 0, symbols - 1, 0)
    for word in words:
        _spelled(nfa, word, 0, 1)
    nfa.edge(1, 0, symbols - 1, 1)
    return determinise(nfa, budget)


def _spelled(nfa: Nfa, word: str, start: int, end: int) -> int:
    data = word.encode()
    for byte in data[:-1]:
        after = nfa.state()
        nfa.edge(start, byte, byte, after)
        start = after
    nfa.edge(start, data[-1], data[-1], end)
    return end
