"""Strings of a schema: limits on length, patterns, formats, and excluded values, in any combination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from redraft.constraints.automaton import Budget, Dfa, product, shortest_of
from redraft.constraints.expression import ANY, NOTHING, Expression, alt, chars, repeat, text
from redraft.constraints.json_schema.formats import PATTERNS
from redraft.constraints.json_schema.keywords import count, text_of
from redraft.constraints.json_schema.negation import UNLIKE
from redraft.constraints.json_schema.patterns import Patterns
from redraft.constraints.json_schema.shapes import Shape, String
from redraft.constraints.json_schema.style import Style
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_codes

_EXACT_PATTERN = 32
"""Limits on the length of a string with a pattern are never lowered below this, nor other limits below four times this:
every pair of a character and a state of the pattern takes a state."""


def strings_of(raw: Mapping[str, Any]) -> list[Shape]:
    """The strings that the keywords of a schema allow."""
    least, most = count(raw, "minLength") or 0, count(raw, "maxLength")
    patterns = tuple((text_of(raw, name), name == "pattern") for name in ("pattern", UNLIKE) if name in raw)
    known = text_of(raw, "format")
    string = String(least=least, most=most, patterns=patterns, formats=(known,) if known in PATTERNS else ())
    return [string] if most is None or least <= most else []


class Strings:
    """Writes strings in a style; results that took an automaton are cached."""

    def __init__(self, style: Style, patterns: Patterns, budget: Budget) -> None:
        self._style, self._patterns, self._budget = style, patterns, budget
        self._known: dict[String, Expression] = {}

    def content(self, shape: String, longest: int, *, whole: bool = True) -> Expression:
        """A string without its quotes. Limits on length beyond `longest` are lowered to it.

        Where only longer ones match, its whole limit is kept, or (not `whole`) as much beyond the shortest.
        """
        free = not shape.patterns and not shape.formats and not shape.excluded
        high = longest if free else max(longest // 4, _EXACT_PATTERN)
        lowered = shape if shape.most is None else replace(shape, most=max(min(shape.most, high), shape.least))
        if free:
            return self._style.free(lowered.least, lowered.most, self._budget)
        found = self._matched(lowered)
        if found is NOTHING and lowered != shape:  # what it allows may be long
            return self._matched(shape) if whole else self._beyond(shape, high)
        return found

    def _beyond(self, shape: String, more: int) -> Expression:
        """The shortest strings of a shape, without quotes, and those that are up to `more` characters longer."""
        shortest = shortest_of(self._machine(replace(shape, most=None)))
        if shortest is None or shape.most is None:
            return NOTHING
        found = self._matched(replace(shape, most=min(shape.most, shortest + more)))
        return self._matched(shape) if found is NOTHING else found  # the shortest may have no spelling

    def _matched(self, shape: String) -> Expression:
        """A string without its quotes, given by its automaton."""
        if shape not in self._known:
            found = self._machine(shape)
            self._known[shape] = NOTHING if found.empty else self._style.machine(found, self._budget)
        return self._known[shape]

    def quoted(self, shape: String, longest: int, *, whole: bool = True) -> Expression:
        """A string with its quotes."""
        return self._style.quoted(self.content(shape, longest, whole=whole))

    def obstacle(self, shape: String) -> str:
        """Why no string of a shape can be written, as a sentence."""
        wanted = [pattern for pattern, wanted in shape.patterns if wanted]
        for pattern in wanted:
            if self._matched(String(patterns=((pattern, True),))) is NOTHING:
                return (
                    f"The schema keyword 'pattern' with the value {pattern!a} matches no text that can be written; "
                    "a surrogate, for example, is not a character, and only a few control characters can be written."
                )
        asked = [f"'pattern' {pattern!a}" for pattern in wanted] + [f"'format' {name!r}" for name in shape.formats]
        if shape != String(patterns=tuple((pattern, True) for pattern in wanted), formats=shape.formats):
            asked.append("the limits")
        return f"No string can be written that obeys {' and '.join(asked) or 'the limits'} of the schema at once."

    def name(self, shape: String, longest: int, *, whole: bool = True) -> Expression:
        """A member's name."""
        if self._style.bare_key is None:
            return self.quoted(shape, longest, whole=whole)
        bare = replace(shape, patterns=(*shape.patterns, (self._style.bare_key, True)))
        return self.content(bare, longest, whole=whole)

    def _machine(self, shape: String) -> Dfa:
        """The automaton of the characters."""
        wanted = [compile_codes(parse_regex(PATTERNS[name]), self._budget) for name in shape.formats]
        wanted += self._matching(shape, positive=True)
        if not wanted or shape.least or shape.most is not None:
            wanted.append(compile_codes(repeat(chars(ANY), shape.least, shape.most), self._budget))
        unwanted = self._matching(shape, positive=False)
        if shape.excluded:
            unwanted.append(compile_codes(alt(*map(text, shape.excluded)), self._budget))
        found = wanted[0]
        for dfa in wanted[1:]:
            found = product(found, dfa, self._budget)
        for dfa in unwanted:
            found = product(found, dfa, self._budget, subtract=True)
        return found

    def _matching(self, shape: String, *, positive: bool) -> list[Dfa]:
        """What the patterns match that must, or must not."""
        found = [self._patterns.automaton(p, wide=not positive) for p, wanted in shape.patterns if wanted == positive]
        return [dfa for dfa in found if dfa is not None]
