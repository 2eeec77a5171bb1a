r"""Literal text with typed holes: `Name: {name:str<40}, age {age:int}`.

    {name}, {name:str}      some characters, no line break        {name:str<40}  fewer than 40, {name:str<=40} up to 40
    {name:text}             any characters, line breaks too (limits as for str)
    {name:int} {name:float} a number ({name:int<120} below 120)   {name:bool}    true or false
    {name:date} {name:time} {name:date-time} {name:email} {name:uri} {name:uuid} … formats of JSON Schema
    {name:/[A-Z]{3}/}       what a regular expression matches     {name:red|green|blue}  one of these words

`{{` and `}}` are braces. `read_template` takes a finished text apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from redraft.constraints.automaton import Budget
from redraft.constraints.expression import (
    ANY,
    LINE,
    NOTHING,
    Counted,
    Expression,
    alt,
    chars,
    repeat,
    seq,
    text,
)
from redraft.constraints.json_schema.formats import PATTERNS
from redraft.constraints.json_schema.keywords import MAX_DIGITS
from redraft.constraints.json_schema.numbers import Bounds, number
from redraft.constraints.json_schema.style import EXACT_COUNT
from redraft.constraints.matching import split
from redraft.constraints.regex import parse_regex
from redraft.errors import ConstraintError

_KIND = re.compile(r"([a-z-]+)(?:(<=?)(.+))?")
_NUMERAL = re.compile(r"[0-9.eE+-]+")
_REGEX_HOLE = re.compile(r"\{[^{}:]*:/(?:\\.|\[\^?\]?+(?:\\.|[^]\\])*+\]|\{[^{}]*\}|[^\\[/{}]|/(?!\}))++/\}", re.DOTALL)
"""A regular expression ends at the first `/}`; braces in it that are not a pair are escaped or in a class."""
_NUMBER_TEXT = {"int": rf"-?[0-9]{{1,{MAX_DIGITS}}}", "float": r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"}


@dataclass(frozen=True, slots=True)
class TypedHole:
    """A hole: its name and what follows the colon."""

    name: str
    kind: str

    @property
    def regex(self) -> str | None:
        """The expression between slashes, if that is what it holds."""
        return self.kind[1:-1] if self.kind.startswith("/") and self.kind.endswith("/") and len(self.kind) > 2 else None

    @property
    def words(self) -> list[str]:
        """The words to choose from."""
        return self.kind.split("|") if "|" in self.kind and self.regex is None else []


def parse_template(template: str, budget: Budget) -> Expression:
    """The expression of a template. Raises `ConstraintError` naming a hole that cannot be read."""
    return seq(*(text(part) if isinstance(part, str) else _hole(part, budget) for part in _parts(template)))


def read_template(template: str, filled: str) -> dict[str, Any]:
    """The values of a template's holes in a text that was written for it: str, int, float or bool.

    Raises `ConstraintError` if the text does not fit the template, or telling takes too long.
    """
    for name, given in (("template", template), ("text", filled)):
        if not isinstance(given, str):
            raise ConstraintError(f"The {name} must be a string, not {type(given).__name__}.")
    parts, budget = _parts(template), Budget()
    for rare in (False, True):
        read = [text(part) if isinstance(part, str) else _readable(part, budget, rare=rare) for part in parts]
        cut = split(read, filled, budget)
        if cut is not None:
            pairs = zip(parts, cut, strict=True)
            return {part.name: _value(part, written) for part, written in pairs if isinstance(part, TypedHole)}
    raise ConstraintError("The text does not fit the template.")


def _parts(template: str) -> list[str | TypedHole]:
    """Literal texts and holes in order."""
    found = list(_pieces(template))
    names = [part.name for part in found if isinstance(part, TypedHole)]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConstraintError(f"The template has more than one hole named {sorted(repeated)[0]!r}.")
    if not names:
        raise ConstraintError("The template has no hole; write one as {name:type}.")
    return found


def _pieces(template: str) -> Iterator[str | TypedHole]:
    at = 0
    while at < len(template):
        if template.startswith(("{{", "}}"), at):
            yield template[at]
            at += 2
        elif template[at] == "{":
            end = _closing(template, at)
            name, _, kind = template[at + 1 : end].partition(":")
            if not name.isidentifier():
                raise ConstraintError(
                    f"The template has a hole named {name!r}; a name consists of letters, digits and _, no digit first."
                )
            yield TypedHole(name, kind or "str")
            at = end + 1
        elif template[at] == "}":
            raise ConstraintError("The template has a '}' without its '{'; write '}}' for a brace.")
        else:
            end = min((i for brace in "{}" if (i := template.find(brace, at)) >= 0), default=len(template))
            yield template[at:end]
            at = end


def _closing(template: str, start: int) -> int:
    """Where the hole that opens at `start` closes."""
    if found := _REGEX_HOLE.match(template, start):
        return found.end() - 1
    depth = 0
    for at in range(start, len(template)):
        depth += (template[at] == "{") - (template[at] == "}")
        if depth == 0:
            return at
    raise ConstraintError("The template has a '{' without its '}'; write '{{' for a brace.")


def _hole(hole: TypedHole, budget: Budget) -> Expression:
    kind = hole.kind
    if hole.regex is not None:
        return parse_regex(hole.regex, what=f"regex of the hole {hole.name!r}", budget=budget)
    if hole.words:
        return alt(*map(text, hole.words))
    match = _KIND.fullmatch(kind)
    name = match[1] if match else ""
    if match and name in ("str", "text"):
        return _characters(hole, LINE if name == "str" else ANY, match[2], match[3])
    if match and name in ("int", "float"):
        return _number(hole, match[2], match[3], integer=name == "int")
    if kind == "bool":
        return alt(text("true"), text("false"))
    if kind in PATTERNS:
        return parse_regex(PATTERNS[kind], budget=budget)
    raise ConstraintError(
        f"The hole {hole.name!r} has the unknown type {kind!r}; known are str, text, int, float, bool, a|b, /regex/ "
        f"and {', '.join(PATTERNS)}."
    )


def _characters(hole: TypedHole, ranges: Any, sign: str | None, limit: str | None) -> Expression:
    if sign is None:
        return repeat(chars(ranges), 1, lazy=True)
    if limit is None or not (limit.isascii() and limit.isdecimal()) or len(limit) > MAX_DIGITS:
        raise ConstraintError(f"The hole {hole.name!r} has the limit {limit!r:.80}; it must be a natural number.")
    most = int(limit) - (sign == "<")
    if most < 1:
        raise ConstraintError(f"The hole {hole.name!r} leaves no room for a character.")
    if most <= EXACT_COUNT:
        return repeat(chars(ranges), 1, most, lazy=True)
    return seq(chars(ranges), Counted(ranges, NOTHING, most - 1))


def _number(hole: TypedHole, sign: str | None, limit: str | None, *, integer: bool) -> Expression:
    if sign is None:
        return number(Bounds(), integer=integer)
    try:
        high = Decimal(limit if limit and _NUMERAL.fullmatch(limit) else "NaN")
    except InvalidOperation:
        high = Decimal("NaN")
    if not high.is_finite() or high.adjusted() >= MAX_DIGITS:
        raise ConstraintError(f"The hole {hole.name!r} has the limit {limit!r:.80}; it must be a number.")
    return number(Bounds(high=high, high_open=sign == "<"), integer=integer)


def _readable(hole: TypedHole, budget: Budget, *, rare: bool) -> Expression:
    """What is read as a hole's text; with `rare`, also unwritten forms of regexes and of unlimited numbers."""
    if rare and hole.regex is not None:
        return parse_regex(hole.regex, wide=True, budget=budget)
    if rare and hole.kind in _NUMBER_TEXT:
        return parse_regex(_NUMBER_TEXT[hole.kind])
    return _hole(hole, budget)


def _value(hole: TypedHole, written: str) -> Any:
    if hole.words or hole.regex is not None:
        return written
    name = hole.kind.partition("<")[0]
    if name in ("int", "float"):
        return int(written) if name == "int" else float(written)
    return written == "true" if name == "bool" else written
