"""Strings of a schema: limits on length, patterns, formats, and values that are excluded, several of them together."""

from __future__ import annotations

from dataclasses import replace

from redraft.constraints.automaton import Budget, Dfa, product
from redraft.constraints.expression import ANY, NOTHING, Expression, alt, chars, repeat, text
from redraft.constraints.json_schema.formats import PATTERNS
from redraft.constraints.json_schema.shapes import String
from redraft.constraints.json_schema.style import Style
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_codes

_EXACT_PATTERN = 32
"""Limits on the length of a string with a pattern are never lowered to less, nor other limits to less than four times
as much: every character and every state of the pattern together are a state."""


class Strings:
    """Writes strings in a style; what took an automaton is kept."""

    def __init__(self, style: Style, budget: Budget) -> None:
        self._style, self._budget = style, budget
        self._known: dict[String, Expression] = {}

    def content(self, shape: String, longest: int) -> Expression:
        """A string without its quotes. Limits on length beyond `longest` are lowered to it."""
        free = not shape.patterns and not shape.formats and not shape.excluded
        if shape.most is not None:
            high = longest if free else max(longest // 4, _EXACT_PATTERN)
            shape = replace(shape, most=max(min(shape.most, high), shape.least))
        if free:
            return self._style.free(shape.least, shape.most, self._budget)
        if shape not in self._known:
            found = self._machine(shape)
            self._known[shape] = NOTHING if found.empty else self._style.machine(found, self._budget)
        return self._known[shape]

    def quoted(self, shape: String, longest: int) -> Expression:
        """A string with its quotes."""
        return self._style.quoted(self.content(shape, longest))

    def _machine(self, shape: String) -> Dfa:
        """The automaton of the characters."""
        wanted = [parse_regex(PATTERNS[name], budget=self._budget) for name in shape.formats]
        wanted += [self._pattern(pattern) for pattern, positive in shape.patterns if positive]
        if not wanted or shape.least or shape.most is not None:
            wanted.append(repeat(chars(ANY), shape.least, shape.most))
        unwanted = [self._pattern(pattern) for pattern, positive in shape.patterns if not positive]
        unwanted += [alt(*map(text, shape.excluded))] if shape.excluded else []
        found = compile_codes(wanted[0], self._budget)
        for expression in wanted[1:]:
            found = product(found, compile_codes(expression, self._budget), self._budget)
        for expression in unwanted:
            found = product(found, compile_codes(expression, self._budget), self._budget, subtract=True)
        return found

    def _pattern(self, pattern: str) -> Expression:
        return parse_regex(pattern, anchored=False, what="schema keyword 'pattern' with the value", budget=self._budget)
