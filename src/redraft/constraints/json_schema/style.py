"""How values are written: as JSON text, or as the arguments of a tool call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redraft.constraints.automaton import Budget, Dfa, accepts_of, product
from redraft.constraints.expression import (
    ANY,
    NOTHING,
    Counted,
    Escape,
    Expression,
    Machine,
    Mark,
    alt,
    chars,
    complement,
    optional,
    repeat,
    seq,
    text,
)
from redraft.constraints.json_schema.numbers import RoundedFloat
from redraft.constraints.spelling import compile_codes
from redraft.text.tools import QUOTE, is_bare_key

EXACT_COUNT = 32
"""Limits on length up to here are counted exactly; see `expression.Counted`."""

PLAIN = complement([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F)])
"""Characters that stand for themselves in a JSON string."""
_ESCAPED = ((0x22, '\\"'), (0x5C, "\\\\"), (8, "\\b"), (9, "\\t"), (10, "\\n"), (12, "\\f"), (13, "\\r"))
_BACKSLASH = seq(text("\\"), chars([(ord(written[1]), ord(written[1])) for _, written in _ESCAPED]))
_CALL_TEXT = complement([(0, 8), (0x0B, 0x1F), (0x7F, 0x9F)])


@dataclass(frozen=True, kw_only=True)
class Style:
    """The spelling of a notation.

    quote    around strings                      machine  a string's content, given the automaton of its characters
    free     a string's content of least .. most characters
    key      a member's name                     bare_key  a pattern for names that are not declared; None: any string
    ordered  the order of an object's members
    """

    comma: Expression
    colon: Expression
    quote: Expression
    free: Callable[[int, int | None, Budget], Expression]
    machine: Callable[[Dfa, Budget], Expression]
    key: Callable[[str], Expression]
    bare_key: str | None
    ordered: Callable[[Sequence[str]], list[str]]

    def value(self, value: Any) -> Expression:
        """How a value is written."""
        if isinstance(value, Mapping):
            members = [seq(self.key(key), self.colon, self.value(value[key])) for key in self.ordered(list(value))]
            return seq(text("{"), *self._between(members), text("}"))
        if isinstance(value, list | tuple):
            return seq(text("["), *self._between([self.value(item) for item in value]), text("]"))
        if isinstance(value, str):
            return self.string(value)
        return text(value.text if isinstance(value, RoundedFloat) else json.dumps(value))

    def quoted(self, content: Expression) -> Expression:
        """A string, given its content."""
        return seq(self.quote, content, self.quote)

    def string(self, value: str) -> Expression:
        """A string with its quotes; nothing if it cannot be written."""
        if not encodable(value):
            return NOTHING
        if self.bare_key is None:
            return text(json.dumps(value, ensure_ascii=False))
        return NOTHING if QUOTE in value else self.quoted(text(value))

    def _between(self, parts: list[Expression]) -> list[Expression]:
        return [piece for i, part in enumerate(parts) for piece in ([self.comma, part] if i else [part])]


def encodable(name: str) -> bool:
    """Whether UTF-8 can express it: JSON allows lone surrogates."""
    return not any(0xD800 <= ord(char) <= 0xDFFF for char in name)


def _json_string(least: int, most: int | None, _: Budget) -> Expression:
    unit = alt(chars(PLAIN), _BACKSLASH)
    if most is None or most - least <= EXACT_COUNT:
        return repeat(unit, least, most)
    return seq(repeat(unit, least, least), Counted(PLAIN, _BACKSLASH, most - least))


def _json_machine(dfa: Dfa, _: Budget) -> Expression:
    written = [*PLAIN, *((code, code) for code, _ in _ESCAPED)]
    return Machine(dfa, Escape(PLAIN, _ESCAPED)) if accepts_of(dfa, written) else NOTHING


def _call_string(least: int, most: int | None, budget: Budget) -> Expression:
    """Unescaped text that does not contain a spelled-out end-of-quote token."""
    return _call_machine(compile_codes(repeat(chars(_CALL_TEXT), least, most), budget), budget)


def _call_machine(dfa: Dfa, budget: Budget) -> Expression:
    free = repeat(chars(ANY))
    spelled = compile_codes(seq(free, text(QUOTE[2:]), free), budget)
    left = product(dfa, spelled, budget, subtract=True)
    return NOTHING if left.empty else Machine(left, None)


def _bare_key(name: str) -> Expression:
    return text(name) if encodable(name) and is_bare_key(name) else NOTHING


JSON = Style(
    comma=seq(text(","), optional(text(" "))),
    colon=seq(text(":"), optional(text(" "))),
    quote=text('"'),
    free=_json_string,
    machine=_json_machine,
    key=lambda name: text(json.dumps(name, ensure_ascii=False)) if encodable(name) else NOTHING,
    bare_key=None,
    ordered=list,
)
"""JSON text: compact, with at most one space after a comma or colon."""

CALL = Style(
    comma=text(","),
    colon=text(":"),
    quote=Mark(QUOTE),
    free=_call_string,
    machine=_call_machine,
    key=_bare_key,
    bare_key="^[0-9A-Za-z_]{1,32}$",
    ordered=lambda names: sorted(names, key=str.lower),
)
"""The arguments of a tool call (see `text.tools`): strings between quote tokens, bare keys in alphabetical order."""
