"""From expressions to automata, over code points or over bytes.

Tokens are made of bytes: every character becomes its UTF-8 bytes, so an automaton over bytes never allows text that is
not valid UTF-8, except inside a `Counted`, which takes bytes as they come: there only tokens of whole characters are
used (`walk.py`). Marks (special tokens) are further symbols after the 256 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from redraft.constraints.automaton import Budget, Dfa, Nfa, determinise, ranges_of
from redraft.constraints.expression import (
    EMPTY,
    MAX_CODE,
    Alt,
    Chars,
    Counted,
    Escape,
    Expression,
    Fields,
    Graph,
    Literal,
    Machine,
    Mark,
    Ranges,
    Repeat,
    Seq,
    alt,
    intersection,
)

BYTES = 256
_START, _END, _LAST = MAX_CODE + 1, MAX_CODE + 2, MAX_CODE + 3

_LENGTHS = ((0x0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))


def compile_bytes(expression: Expression, budget: Budget, marks: Sequence[str] = ()) -> Dfa:
    """The automaton of an expression over bytes; mark i of `marks` is the symbol 256 + i."""
    writer = _Writer(budget, {name: BYTES + i for i, name in enumerate(marks)}, as_bytes=True)
    return writer.run(expression)


def compile_codes(expression: Expression, budget: Budget) -> Dfa:
    """The automaton of an expression without marks over code points."""
    return _Writer(budget, {}, as_bytes=False).run(expression)


def compile_anchored(expression: Expression, budget: Budget, *, line_feed: bool = False) -> Dfa:
    r"""The same for an expression in which the mark `^` stands for the start of the text, `$` and `\Z` for its end.

    With `line_feed`, a line feed may follow a `$`, which the expression may also read itself.
    """
    writer = _Writer(budget, {"^": _START, "$": _END, r"\Z": _LAST}, as_bytes=False)
    return determinise(_layered(writer.nondeterministic(expression), line_feed), budget)


def _layered(nfa: Nfa, line_feed: bool) -> Nfa:
    """`nfa` without its anchors: they become moves that exist only where the anchor holds.

    Six layers of states: 0 nothing read yet, 1 something read; 2 and 3 the same after a `$`, where nothing more can be
    read except, if allowed, the line feed; 4 and 5 the same where nothing at all can be read any more.
    """
    found, count = Nfa(), len(nfa.edges)
    while len(found.edges) < 2 + 6 * count:
        found.state()
    found.move(0, 2)
    for layer in range(6):
        base = 2 + layer * count
        found.move(base + 1, 1)
        found.place |= {base + state: base + place for state, place in nfa.place.items()}
        found.used |= {base + state: used for state, used in nfa.used.items()}
        for state in range(count):
            for target in nfa.moves[state]:
                found.move(base + state, base + target)
            for low, high, target in nfa.edges[state]:
                if low == _START:
                    if layer % 2 == 0:
                        found.move(base + state, base + target)
                elif low == _END:
                    found.move(base + state, 2 + (layer | 2 if layer < 4 else layer) * count + target)
                elif low == _LAST:
                    found.move(base + state, 2 + (4 | layer % 2) * count + target)
                elif layer < 2:
                    found.edge(base + state, low, high, 2 + count + target)
                elif line_feed and layer < 4 and low <= 10 <= high:
                    found.edge(base + state, 10, 10, 2 + 5 * count + target)
    return found


class _Writer:
    """Writes expressions into a nondeterministic automaton."""

    def __init__(self, budget: Budget, marks: dict[str, int], *, as_bytes: bool) -> None:
        self._budget, self._marks, self._as_bytes = budget, marks, as_bytes
        self._nfa = Nfa()
        self._counters = 0

    def run(self, expression: Expression) -> Dfa:
        return determinise(self.nondeterministic(expression), self._budget)

    def nondeterministic(self, expression: Expression) -> Nfa:
        self._write(expression, 0, 1)
        return self._nfa

    def _write(self, expression: Expression, start: int, end: int) -> None:
        match expression:
            case Chars(ranges):
                self._chars(ranges, start, end)
            case Literal(string):
                self._nfa.path(start, self._symbols(string), end)
            case Mark(name):
                symbol = self._marks[name]
                self._nfa.edge(start, symbol, symbol, end)
            case Seq(parts):
                self._sequence(parts, start, end)
            case Alt(parts):
                self._literals([part.string for part in parts if isinstance(part, Literal)], start, end)
                for part in parts:
                    if not isinstance(part, Literal):
                        self._write(part, start, end)
            case Repeat(part, least, most):
                self._repeat(part, least, most, start, end)
            case Counted():
                self._counted(expression, start, end)
            case Fields():
                self._fields(expression, start, end)
            case Graph():
                self._graph(expression, start, end)
            case Machine(dfa, escape):
                self._machine(dfa, escape, start, end)

    def _chars(self, ranges: Ranges, start: int, end: int) -> None:
        if not self._as_bytes:
            for low, high in ranges:
                self._nfa.edge(start, low, high, end)
            return
        tails: dict[tuple[tuple[int, int], ...], int] = {(): end}
        for sequence in _utf8(ranges):
            target = end
            for i in range(len(sequence) - 1, 0, -1):  # sequences share the states of their last bytes
                tail = sequence[i:]
                if tail not in tails:
                    tails[tail] = self._nfa.state()
                    self._nfa.edge(tails[tail], *sequence[i], target)
                target = tails[tail]
            self._nfa.edge(start, *sequence[0], target)

    def _literals(self, strings: list[str], start: int, end: int) -> None:
        """Any of the texts: they share states for common beginnings and common endings."""
        children, stops = self._prefixes(strings)
        states, known = [end] * len(children), dict[tuple[bool, tuple[tuple[int, int], ...]], int]()
        for node in range(len(children) - 1, 0, -1):
            edges = tuple((symbol, states[child]) for symbol, child in sorted(children[node].items()))
            if not edges:
                continue
            here = known.get((node in stops, edges))
            if here is None:
                here = known[node in stops, edges] = self._nfa.state()
                self._edges(here, edges)
                if node in stops:
                    self._nfa.move(here, end)
            states[node] = here
        self._edges(start, [(symbol, states[child]) for symbol, child in children[0].items()])

    def _prefixes(self, strings: list[str]) -> tuple[list[dict[int, int]], set[int]]:
        """A prefix tree: each node's children by symbol, with children after their parents; and where a text ends."""
        children, stops = [dict[int, int]()], set[int]()
        for string in strings:
            node = 0
            for symbol in self._symbols(string):
                after = children[node].setdefault(symbol, len(children))
                if after == len(children):
                    children.append({})
                node = after
            self._budget.check(len(children) // 6)
            stops.add(node)
        return children, stops

    def _symbols(self, string: str) -> Sequence[int]:
        return string.encode() if self._as_bytes else list(map(ord, string))

    def _edges(self, source: int, edges: Iterable[tuple[int, int]]) -> None:
        for symbol, target in edges:
            self._nfa.edge(source, symbol, symbol, target)

    def _sequence(self, parts: Sequence[Expression], start: int, end: int) -> None:
        if not parts:
            self._nfa.move(start, end)
            return
        for part in parts[:-1]:
            after = self._nfa.state()
            self._write(part, start, after)
            start = after
        self._write(parts[-1], start, end)

    def _repeat(self, part: Expression, least: int, most: int | None, start: int, end: int) -> None:
        if part.nullable:  # (a?){9} is a{0,9}, which has far fewer ways to count
            part, least = _not_empty(part), 0
        begins: list[int] = []
        for count in range(least if most is None else most):
            if count >= least:
                self._nfa.move(start, end)
            begins.append(len(self._nfa.edges))
            start = self._after(part, start)
        if most is None:
            loop = self._nfa.state()
            self._nfa.move(start, loop)
            start = self._after(part, loop)
            self._nfa.move(start, loop)
            start = loop
        elif most > least:
            self._nfa.copies(begins[max(least - 1, 0) :])
        self._nfa.move(start, end)

    def _after(self, part: Expression, start: int) -> int:
        """The state after one more `part`."""
        self._budget.check(len(self._nfa.edges) // 6)
        after = self._nfa.state()
        self._write(part, start, after)
        return after

    def _counted(self, node: Counted, start: int, end: int) -> None:
        ascii_part = intersection(node.ranges, ((0, 0x7F),))
        counter, self._counters = self._counters, self._counters + 2
        here = self._nfa.state()
        self._nfa.move(start, here)
        begins: list[int] = []
        for used in range(node.most + 1):
            self._nfa.counters[here] = (counter, used)
            self._nfa.move(here, end)
            if used == node.most:
                break
            begins.append(len(self._nfa.edges))
            after = self._nfa.state()
            for low, high in (*ascii_part, (0x80, 0xFF)):
                self._nfa.edge(here, low, high, after)
            self._escape(node.escape, here, after, (counter + 1, used))
            here = after
            self._budget.check(len(self._nfa.edges) // 6)
        self._nfa.copies(begins)

    def _escape(self, escape: Expression, start: int, end: int, counter: tuple[int, int]) -> None:
        """An escape inside a counted text; the state after its backslash counts as well."""
        if isinstance(escape, Seq) and len(escape.parts) == 2:
            middle = self._nfa.state()
            self._nfa.counters[middle] = counter
            self._write(escape.parts[0], start, middle)
            self._write(escape.parts[1], middle, end)
        else:
            self._write(escape, start, end)

    def _fields(self, node: Fields, start: int, end: int) -> None:
        """States know how many items are written, as far as that affects the rest."""
        here = {0: start}  # items written -> state
        left, needed = len(node.items), sum(required for _, required in node.items)
        for item, required in node.items:
            left, needed = left - 1, needed - required
            after: dict[int, int] = {}
            opened: dict[int, int] = {}
            for count, state in here.items():
                if not required and (level := _level(node, count, left, needed)) is not None:
                    self._nfa.move(state, self._state_of(after, level))
                if (level := _level(node, count + 1, left, needed)) is not None:
                    self._write(node.comma if count else EMPTY, state, self._state_of(opened, level))
            for level, state in opened.items():
                self._budget.check(len(self._nfa.edges) // 6)
                self._write(item, state, self._state_of(after, level))
            here = after
        for state in here.values():
            self._nfa.move(state, end)

    def _state_of(self, states: dict[int, int], number: int) -> int:
        """The state that has a number, new if there is none yet."""
        if number not in states:
            states[number] = self._nfa.state()
        return states[number]

    def _graph(self, node: Graph, start: int, end: int) -> None:
        states: dict[int, int] = {}
        self._nfa.move(start, self._state_of(states, 0))
        for source, part, target in node.edges:
            self._budget.check(len(self._nfa.edges) // 6)
            self._write(part, self._state_of(states, source), self._state_of(states, target))
        for state in node.ends:
            self._nfa.move(self._state_of(states, state), end)

    def _machine(self, dfa: Dfa, escape: Escape | None, start: int, end: int) -> None:
        states = [self._nfa.state() for _ in range(len(dfa.table))]
        if states:
            self._nfa.move(start, states[0])
        for number, state in enumerate(states):
            if dfa.accept[number]:
                self._nfa.move(state, end)
            for target, ranges in ranges_of(dfa, number).items():
                self._spelled(tuple(ranges), escape, state, states[target])

    def _spelled(self, ranges: Ranges, escape: Escape | None, start: int, end: int) -> None:
        """One character of `ranges`, as `escape` writes it."""
        if escape is None:
            self._chars(ranges, start, end)
            return
        if plain := intersection(ranges, escape.plain):
            self._chars(plain, start, end)
        for code, written in escape.special:
            if any(low <= code <= high for low, high in ranges):
                self._nfa.path(start, self._symbols(written), end)


def _level(node: Fields, count: int, left: int, needed: int) -> int | None:
    """The smallest number of written items (0 is special) with which the rest may go on as with `count` of them.

    `left` is the number of items to come, `needed` how many of them are required. None: the rest no longer fits.
    """
    if count + left < node.least or count + needed > node.most:
        return None
    free = max(node.least - needed, 1)  # from here on nothing is missing, whichever of the rest are left out
    return free if free <= count <= node.most - left else count


def _not_empty(part: Expression) -> Expression:
    """The part without the empty text if that is an alternative of its own, else as it is."""
    match part:
        case Repeat(inner, 0, 1):
            return inner
        case Alt(parts):
            return alt(*(option for option in parts if option is not EMPTY))
    return part


@lru_cache(maxsize=4096)
def _utf8(ranges: Ranges) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Sequences of byte intervals that together spell the code points of `ranges`."""
    found = []
    for low, high in ranges:
        for first, last in _LENGTHS:
            if max(low, first) <= min(high, last):
                found += _split(max(low, first), min(high, last))
    return tuple(found)


def _split(low: int, high: int) -> list[tuple[tuple[int, int], ...]]:
    """Byte intervals for code points low .. high, all of the same UTF-8 length."""
    length = len(chr(low).encode())
    for i in range(1, length):
        block = (1 << 6 * i) - 1  # code points that share all but their last i bytes
        if low | block != high | block:
            if low & block:
                return _split(low, low | block) + _split((low | block) + 1, high)
            if high & block != block:
                return _split(low, (high & ~block) - 1) + _split(high & ~block, high)
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))]
