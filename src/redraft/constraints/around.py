"""Languages in sequence: a thought before an answer, given bytes around a hole that begins inside a token."""

from __future__ import annotations

from collections.abc import Sequence

from redraft.constraints.automaton import Budget, Dfa, Nfa, determinise, ranges_of


def chained(parts: Sequence[Dfa], budget: Budget) -> Dfa:
    """One string of each part in sequence; counters keep counting."""
    nfa, end, counters = Nfa(), 0, 0
    for dfa in parts:
        states = [nfa.state() for _ in dfa.table]
        behind = nfa.state()
        if states:
            nfa.move(end, states[0])
        for number, state in enumerate(states):
            if dfa.accept[number]:
                nfa.move(state, behind)
            if dfa.family[number] >= 0:
                nfa.counters[state] = counters + int(dfa.family[number]), int(dfa.count[number])
            for target, ranges in ranges_of(dfa, number).items():
                for low, high in ranges:
                    nfa.edge(state, low, high, states[target])
        end, counters = behind, counters + int(dfa.family.max(initial=-1)) + 1
    nfa.move(end, 1)
    return determinise(nfa, budget)


def surrounded(dfa: Dfa, before: bytes, behind: bytes, budget: Budget) -> Dfa:
    """The automaton over bytes of `before` + text + `behind`, for every text that `dfa` accepts."""
    if dfa.empty or not (before or behind):
        return dfa
    return chained([_spelled(before, budget), dfa, _spelled(behind, budget)], budget)


def _spelled(written: bytes, budget: Budget) -> Dfa:
    """The automaton of exactly these bytes."""
    nfa = Nfa()
    nfa.path(0, written, 1)
    return determinise(nfa, budget)
