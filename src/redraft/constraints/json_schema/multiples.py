"""Multiples of a number as automata over its decimal digits: a multiple of 0.05 is one of 5, two places further on."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import gcd, lcm

from redraft.constraints.automaton import Budget, Dfa, Nfa, determinise


def common(steps: Iterable[Decimal]) -> Decimal:
    """The smallest number that is a multiple of each."""
    ratios = [step.as_integer_ratio() for step in steps]
    return Decimal(lcm(*(above for above, _ in ratios))) / gcd(*(below for _, below in ratios))


def places_of(step: Decimal) -> int:
    """How many digits a number has after its point."""
    exponent = step.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def multiples(step: Decimal, budget: Budget) -> Dfa:
    """Decimals that `step` divides, with no more digits after the point than it has, over code points.

    A state is a remainder. Digits that may still follow make up for some factors of the divisor, so before the point,
    and at each place after it, the remainder is modulo what is left of the divisor.
    """
    places = places_of(step)
    whole = int(step.scaleb(places))
    divisors = [whole // gcd(whole, 10 ** (places - place)) for place in range(places + 1)]
    budget.check(sum(divisors), "The schema keyword 'multipleOf'")
    nfa = Nfa()
    before = [nfa.state() for _ in range(divisors[0])]
    behind = [[nfa.state() for _ in range(divisor)] for divisor in divisors]
    nfa.move(0, before[0])
    nfa.edge(0, ord("-"), ord("-"), before[0])
    _digits(nfa, before, before)
    for state, pointed in zip(before, behind[0], strict=True):
        nfa.edge(state, ord("."), ord("."), pointed)
    for place in range(places):
        _digits(nfa, behind[place], behind[place + 1])
    for zero in (before[0], *(states[0] for states in behind[1:])):
        nfa.move(zero, 1)
    return determinise(nfa, budget)


def _digits(nfa: Nfa, sources: list[int], targets: list[int]) -> None:
    """One more digit, from the remainders that `sources` stand for to those of `targets`."""
    for remainder, state in enumerate(sources):
        for digit in range(10):
            nfa.edge(state, 48 + digit, 48 + digit, targets[(remainder * 10 + digit) % len(targets)])
