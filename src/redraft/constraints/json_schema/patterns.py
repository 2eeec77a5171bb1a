"""The patterns of a schema as automata over characters; each is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from redraft.constraints.automaton import Budget, Dfa, TooManyStatesError, texts_of
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_codes
from redraft.errors import ConstraintError

FEW_NAMES = 16
"""If a schema lists at most this many names, or its patterns match no others, each is a member of its own, which cannot
be repeated."""


class Patterns:
    """Reads patterns, both `pattern` and the names in `patternProperties`.

    The dialects of JSON Schema validators differ in a few characters. So every pattern has a narrow reading, what all
    dialects match, and a `wide` one, what any dialect matches: text that must not match has to fail the wide one. For
    text to be written the wide one is coarse, which leaves some valid text out and saves many states.
    """

    def __init__(self, budget: Budget, *, strict: bool) -> None:
        self._budget, self._strict = budget, strict
        self._known: dict[tuple[str, bool, bool], Dfa | None] = {}

    def automaton(self, pattern: str, *, wide: bool = False) -> Dfa | None:
        """The texts that contain a match, for writing these or (`wide`) none of them.

        None without `strict` if that cannot be expressed, else `ConstraintError`.
        """
        return self._found(pattern, wide, coarse=True)

    def match(self, pattern: str, value: str, *, wide: bool = False) -> bool | None:
        """Whether a text contains a match; None where `automaton` returns None."""
        dfa = self._found(pattern, wide, coarse=False)
        return None if dfa is None else dfa.matches(map(ord, value))

    def few_texts(self, patterns: Iterable[str]) -> list[str] | None:
        """All texts that contain a match of some pattern, in the order of the patterns, if they are few."""
        found = list[str]()
        for pattern in patterns:
            dfa = self.automaton(pattern)
            texts = None if dfa is None else texts_of(dfa, FEW_NAMES)
            if texts is None:
                return None
            found += sorted(texts, key=_order_in(pattern, texts))
        return list(dict.fromkeys(found))

    def _found(self, pattern: str, wide: bool, *, coarse: bool) -> Dfa | None:
        key = pattern, wide, wide and coarse
        if key not in self._known:
            self._known[key] = self._compiled(*key)
        return self._known[key]

    def _compiled(self, pattern: str, wide: bool, coarse: bool) -> Dfa | None:
        what = "schema keyword 'pattern' with the value"
        try:
            expression = parse_regex(pattern, anchored=False, wide=wide, coarse=coarse, what=what, budget=self._budget)
            return compile_codes(expression, self._budget)
        except TooManyStatesError as error:  # however far the schema is unfolded
            sentence = f"The {what} {pattern!a:.80} needs an automaton of more than {self._budget.states} states"
            raise ConstraintError(f"{sentence}; shorten its repetitions.") from error
        except ConstraintError:
            if self._strict:
                raise
            return None


def _order_in(pattern: str, texts: Iterable[str]) -> Callable[[str], tuple[int, str]]:
    """The key that sorts the texts of a pattern: in the order in which it spells them out, else by length."""
    spelled = all(text in pattern for text in texts)
    return lambda text: (pattern.index(text) if spelled else len(text), text)
