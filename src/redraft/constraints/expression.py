"""Regular expressions as trees: what every front end writes and the automaton builder reads.

Leaves are characters (sets of code points), literal texts and marks (special tokens such as `<tool_call|>`, which are
one symbol and not text). `NOTHING` is the empty language; the constructors `seq`, `alt` and `repeat` simplify it away,
so a part that cannot be written removes the alternatives that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from redraft.constraints.automaton import Dfa

MAX_CODE = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive intervals of code points."""


_Measure: TypeAlias = "Callable[[Expression], int]"
_SIZE: _Measure = attrgetter("size")
_SPELLED: _Measure = attrgetter("spelled")


class _Part:
    """What all expressions share."""

    __slots__ = ("nullable", "size", "spelled")
    size: int
    """Roughly how many states it takes; an automaton counts as it is, over code points."""
    spelled: int
    """The same over bytes, where an automaton may take many times as many."""
    nullable: bool
    """Whether it is known to allow the empty text; marks, which may be anchors, are not looked into."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self._count(_SIZE))
        object.__setattr__(self, "spelled", self._count(_SPELLED))
        object.__setattr__(self, "nullable", self._may_be_empty())

    def _count(self, of: _Measure) -> int:
        return 1

    def _may_be_empty(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Chars(_Part):
    """One character of a set."""

    ranges: Ranges

    def _count(self, of: _Measure) -> int:
        return 1 if self.ranges[-1][1] < 0x80 else 8


@dataclass(frozen=True, slots=True, eq=False)
class Literal(_Part):
    """Exactly these characters, one or more."""

    string: str

    def _count(self, of: _Measure) -> int:
        return len(self.string)


@dataclass(frozen=True, slots=True, eq=False)
class Mark(_Part):
    """One special token, by its string."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Seq(_Part):
    """The parts one after the other."""

    parts: tuple[Expression, ...]

    def _count(self, of: _Measure) -> int:
        return sum(map(of, self.parts))

    def _may_be_empty(self) -> bool:
        return all(part.nullable for part in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Alt(_Part):
    """Any one of the parts."""

    parts: tuple[Expression, ...]

    def _count(self, of: _Measure) -> int:
        return sum(map(of, self.parts))

    def _may_be_empty(self) -> bool:
        return any(part.nullable for part in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Repeat(_Part):
    """The part at least `least` times and at most `most` times (None: unlimited).

    `lazy` does not affect the language: where a text can be split in several ways, fewer repetitions are preferred.
    """

    part: Expression
    least: int
    most: int | None
    lazy: bool = False

    def _count(self, of: _Measure) -> int:
        return of(self.part) * max(self.least + 1 if self.most is None else self.most, 1)

    def _may_be_empty(self) -> bool:
        return self.least == 0 or self.part.nullable


@dataclass(frozen=True, slots=True, eq=False)
class Counted(_Part):
    """A character of `ranges` or an `escape`, at most `most` times, for long limits.

    Every byte counts as one and the token automaton may round the count up. So the language is a subset of the one a
    `Repeat` gives, with a small fraction of its states. Its byte automaton does not tell how bytes make up characters;
    the token automaton uses only tokens of whole characters in it.
    """

    ranges: Ranges
    escape: Expression
    most: int

    def _count(self, of: _Measure) -> int:
        return 2 * self.most

    def _may_be_empty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Fields(_Part):
    """`least` to `most` of the items, in order, separated by `comma`; items whose flag is True are required."""

    items: tuple[tuple[Expression, bool], ...]
    comma: Expression
    least: int
    most: int

    def _count(self, of: _Measure) -> int:
        required = sum(flag for _, flag in self.items)
        copies = {True: self._copies(required), False: self._copies(required + 1)}
        return sum(of(item) * copies[flag] for item, flag in self.items)

    def _copies(self, certain: int) -> int:
        """How often an item is spelled out: once for each number of earlier items that matters to later ones.

        `certain` is how many items are always written along with it, itself included.
        """
        others = len(self.items) - certain
        low, high = max(self.least - certain, 0), self.most - certain
        return 1 + min(high, others - low, min(low, others - low) + min(high, others - high))


@dataclass(frozen=True, slots=True, eq=False)
class Graph(_Part):
    """The parts along a path from state 0 to one of `ends`; `edges` are (from, part, to)."""

    edges: tuple[tuple[int, Expression, int], ...]
    ends: frozenset[int]

    def _count(self, of: _Measure) -> int:
        return sum(of(part) for _, part, _ in self.edges)


@dataclass(frozen=True, slots=True, eq=False)
class Machine(_Part):
    """The language of an automaton over code points, with every character written as `escape` says.

    `source` is what a regular expression with conditions says apart from them: it reads these texts and others. Where a
    text can be split in several ways, it says which are preferred.
    """

    dfa: Dfa
    escape: Escape | None
    source: Expression | None = None

    def _count(self, of: _Measure) -> int:
        return len(self.dfa.table) if of is _SIZE else self.dfa.spelled

    def _may_be_empty(self) -> bool:
        return not self.dfa.empty and bool(self.dfa.accept[0])


@dataclass(frozen=True, slots=True, eq=False)
class Escape:
    """How characters are written: those in `plain` as they are, others as `special` says, and the rest not at all."""

    plain: Ranges
    special: tuple[tuple[int, str], ...]


Expression: TypeAlias = Chars | Literal | Mark | Seq | Alt | Repeat | Counted | Fields | Graph | Machine

EMPTY = Seq(())
"""The empty text."""
NOTHING = Alt(())
"""No text at all."""


def text(string: str) -> Expression:
    """Exactly this text."""
    return Literal(string) if string else EMPTY


def chars(ranges: Iterable[tuple[int, int]]) -> Expression:
    """One character of the given intervals, in any order."""
    merged = union(ranges)
    return Chars(merged) if merged else NOTHING


def seq(*parts: Expression) -> Expression:
    """The parts one after the other; `NOTHING` if one of them is."""
    if any(part is NOTHING for part in parts):
        return NOTHING
    kept = tuple(part for part in parts if part is not EMPTY)
    return kept[0] if len(kept) == 1 else Seq(kept) if kept else EMPTY


def alt(*parts: Expression) -> Expression:
    """Any one of the parts that can be written."""
    kept = tuple(part for part in parts if part is not NOTHING)
    return kept[0] if len(kept) == 1 else Alt(kept) if kept else NOTHING


def optional(part: Expression) -> Expression:
    """The part or nothing."""
    return EMPTY if part is NOTHING or part is EMPTY else Alt((part, EMPTY))


def repeat(part: Expression, least: int = 0, most: int | None = None, *, lazy: bool = False) -> Expression:
    """The part `least` to `most` times."""
    if part is NOTHING:
        return NOTHING if least else EMPTY
    if part is EMPTY or most == 0:
        return EMPTY
    return part if least == most == 1 else Repeat(part, least, most, lazy)


def joined(part: Expression, between: Expression, least: int, most: int | None) -> Expression:
    """The part `least` to `most` times, separated by `between`."""
    if part is NOTHING or most == 0:
        return EMPTY if least == 0 else NOTHING
    if least <= 1 and most is None:  # the part once: written twice, nested lists would double at every level
        loop = graph([(0, part, 1), (1, between, 0)], [1])
        return loop if least else optional(loop)
    more = seq(part, repeat(seq(between, part), max(least - 1, 0), None if most is None else most - 1))
    return more if least else optional(more)


def fields(
    items: Iterable[tuple[Expression, bool]], comma: Expression, least: int = 0, most: int | None = None
) -> Expression:
    """`least` to `most` of the items, in order; (item, True) must be among them, (item, False) may be."""
    kept = tuple((item, required) for item, required in items if required or item is not NOTHING)
    least = max(least, sum(required for _, required in kept))
    most = len(kept) if most is None else min(most, len(kept))
    if least > most or any(item is NOTHING for item, _ in kept):
        return NOTHING
    return Fields(kept, comma, least, most)


def graph(edges: Iterable[tuple[int, Expression, int]], ends: Iterable[int]) -> Expression:
    """The parts along any path from state 0 to one of `ends`, without states that cannot reach one."""
    possible = [edge for edge in edges if edge[1] is not NOTHING]
    sources: dict[int, list[int]] = {}
    for source, _, target in possible:
        sources.setdefault(target, []).append(source)
    alive, waiting = set(ends), list(ends)
    while waiting:
        new = set(sources.get(waiting.pop(), ())) - alive
        alive |= new
        waiting += new
    if 0 not in alive:
        return NOTHING
    return Graph(tuple(edge for edge in possible if edge[2] in alive), frozenset(ends))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, disjoint intervals of the same code points; surrogates, which UTF-8 cannot express, are left out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted((low, high) for low, high in ranges if low <= high):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    if not any(low <= SURROGATES[1] and high >= SURROGATES[0] for low, high in merged):
        return tuple(merged)
    return intersection(merged, ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, MAX_CODE)))


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every other code point."""
    gaps, start = [], 0
    for low, high in union(ranges):
        gaps.append((start, low - 1))
        start = high + 1
    return union([*gaps, (start, MAX_CODE)])


def intersection(left: Iterable[tuple[int, int]], right: Iterable[tuple[int, int]]) -> Ranges:
    """The code points in both."""
    others = list(right)
    found = [(max(a, c), min(b, d)) for a, b in left for c, d in others if max(a, c) <= min(b, d)]
    return tuple(sorted(found))


ANY = complement(())
"""Every character."""
LINE = complement(((10, 10),))
"""Every character but the line feed."""
