"""Finite automata over integers: code points, or bytes and marks.

`Nfa` collects edges; `determinise` builds the deterministic automaton that recognises the same strings; `product`
intersects or subtracts. A `Dfa` is a dense table over symbol classes with start state 0 and only states on a path from
the start to acceptance. States and time are bounded: an automaton that explodes raises an error instead of hanging the
process.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import le

import numpy as np

from redraft.constraints.expression import MAX_CODE
from redraft.errors import ConstraintError

MAX_STATES = 50_000
MAX_SECONDS = 10.0
_CHECKED_EVERY = 1 << 16
"""The subset construction checks its budget each time it has looked at about this many states and edges."""
_HELD_PER_STATE = 100
"""How many members of subsets count as one state: they are what takes the memory."""


_watch: ContextVar[Callable[[float], None] | None] = ContextVar("watch", default=None)


@contextmanager
def time_reported_to(watch: Callable[[float], None]) -> Iterator[None]:
    """While a constraint is built inside this block, call `watch` now and then with the seconds it has taken so far.

    `watch` may wait; an exception from it ends the work.
    """
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class BudgetError(ConstraintError):
    """A constraint costs more than its budget."""


class TooManyStatesError(BudgetError):
    """An automaton outgrew its budget."""


@dataclass(slots=True)
class Budget:
    """What building one constraint, or reading a text by one, may cost, shared by all its automata.

    Seconds are the thread's own CPU time.
    """

    states: int = MAX_STATES
    seconds: float = MAX_SECONDS
    started: float = field(default_factory=time.thread_time)

    def check(self, states: int, what: str = "The constraint") -> None:
        """Raise `BudgetError` if there are too many states or too much time has passed; call it repeatedly."""
        if states > self.states:
            raise TooManyStatesError(
                f"{what} needs an automaton of more than {self.states} states; shorten its repetitions or limits."
            )
        seconds = time.thread_time() - self.started
        if seconds > self.seconds:
            raise BudgetError(f"{what} took more than {self.seconds:g} s; make it simpler.")
        if (watch := _watch.get()) is not None:
            watch(seconds)


@dataclass(frozen=True, eq=False)
class Dfa:
    """A deterministic automaton.

    first    int64 [C]    first symbol of every class; class c holds first[c] .. first[c+1]-1
    table    int32 [Q,C]  the next state; -1 where there is none
    accept   bool [Q]
    family   int32 [Q]    states that differ only in how much a counter has left share a number; -1 elsewhere
    count    int32 [Q]    where that counter stands
    """

    first: np.ndarray
    table: np.ndarray
    accept: np.ndarray
    family: np.ndarray
    count: np.ndarray

    @property
    def empty(self) -> bool:
        """Whether no string is accepted."""
        return not len(self.table)

    @property
    def spelled(self) -> int:
        """About how many states it takes over UTF-8, if its symbols are code points."""
        changes, where, found = self.table[:, 1:] != self.table[:, :-1], self.first[1:], len(self.table)
        for first, block, whole in ((0x80, 1 << 6, 1), (0x800, 1 << 12, 3), (0x10000, 1 << 18, 3)):
            beyond = (self.table[:, np.append(where, MAX_CODE + 1) > first] >= 0).any(axis=1)
            found += whole * int(np.count_nonzero(beyond))
            inside = (where > first) & (where % block > 0)
            begins = np.flatnonzero(np.diff(where[inside] // block, prepend=-1))
            if len(begins):  # a block that is cut takes a state of its own
                cut = np.logical_or.reduceat(changes[:, inside], begins, axis=1)
                found += int(np.count_nonzero(cut))
        return found

    def matches(self, symbols: Iterable[int]) -> bool:
        """Whether the string is accepted."""
        *_, state = self._states(symbols)
        return state >= 0 and bool(self.accept[state])

    def prefixes(self, symbols: Iterable[int]) -> Iterator[int]:
        """The lengths of the string's beginnings that are accepted, in rising order."""
        return (length for length, state in enumerate(self._states(symbols)) if state >= 0 and self.accept[state])

    def _states(self, symbols: Iterable[int]) -> Iterator[int]:
        """The states before the first symbol and after each; -1, the last then, where there is none."""
        state = -1 if self.empty else 0
        yield state
        for symbol in symbols:
            if state < 0:
                return
            column = int(np.searchsorted(self.first, symbol, "right")) - 1
            state = int(self.table[state, column]) if column >= 0 else -1
            yield state


class Nfa:
    """Edges and empty moves between numbered states; 0 is the start, 1 the only accepting state."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = [[], []]
        self.moves: list[list[int]] = [[], []]
        self.counters: dict[int, tuple[int, int]] = {}
        self.place: dict[int, int] = {}
        self.used: dict[int, tuple[int, ...]] = {}

    def state(self) -> int:
        """A new state."""
        self.edges.append([])
        self.moves.append([])
        return len(self.edges) - 1

    def edge(self, source: int, low: int, high: int, target: int) -> None:
        """From `source` to `target` over any symbol of low .. high."""
        self.edges[source].append((low, high, target))

    def move(self, source: int, target: int) -> None:
        """From `source` to `target` without reading a symbol."""
        self.moves[source].append(target)

    def path(self, source: int, symbols: Sequence[int], target: int) -> None:
        """From `source` to `target` over exactly these symbols."""
        if not symbols:
            self.move(source, target)
            return
        for symbol in symbols[:-1]:
            after = self.state()
            self.edge(source, symbol, symbol, after)
            source = after
        self.edge(source, symbols[-1], symbols[-1], target)

    def copies(self, begins: Sequence[int]) -> None:
        """Mark the states from each of `begins` on, the last up to now, as copies of one part.

        After each copy the rest may be omitted, so whatever can be read from a state can also be read from its `place`
        in an earlier copy.
        """
        first = begins[0]
        for count, begin in enumerate(begins):
            for offset in range(len(self.edges) - begins[-1]):
                self.place[begin + offset] = self.place.get(first + offset, first + offset)
                self.used[begin + offset] = (count, *self.used.get(begin + offset, ()))


Moves = list[tuple[int, int]]
"""(bit set of symbol classes, next state) of one deterministic state."""
_Partition = list[tuple[int, list[int]]]
"""(bit set of symbol classes, which intervals hold them)."""


class _Subsets:
    """The subset construction."""

    def __init__(self, nfa: Nfa, budget: Budget) -> None:
        self._nfa, self._budget = nfa, budget
        self.first = sorted({0} | {edge for edges in nfa.edges for low, high, _ in edges for edge in (low, high + 1)})
        self._masks: dict[tuple[int, int], int] = {}
        self._closures: dict[int, frozenset[int]] = {}
        self._partitions: dict[tuple[tuple[int, int], ...], _Partition] = {}
        self._numbers: dict[frozenset[int], int] = {}
        self.subsets: list[frozenset[int]] = []
        self.rows: list[Moves] = []
        self._work = self._held = 0

    def run(self) -> None:
        self._number(self._closure(0))
        while len(self.rows) < len(self.subsets):
            if len(self.rows) % 128 == 0:
                self._check()
            self.rows.append(self._row(self.subsets[len(self.rows)]))

    def _check(self) -> None:
        self._budget.check(max(len(self.subsets), self._held // _HELD_PER_STATE))

    def _worked(self, units: int) -> None:
        self._work += units
        if self._work >= _CHECKED_EVERY:
            self._work = 0
            self._check()

    def _number(self, subset: frozenset[int]) -> int:
        found = self._numbers.get(subset)
        if found is None:
            found = self._numbers[subset] = len(self.subsets)
            self.subsets.append(subset)
            self._held += len(subset)
        return found

    def _closure(self, state: int) -> frozenset[int]:
        """The relevant states reached without reading a symbol: those with edges, and accepting ones."""
        known = self._closures.get(state)
        if known is None and not self._nfa.moves[state]:
            known = self._closures[state] = frozenset((state,))
        elif known is None:
            seen, stack = {state}, [state]
            while stack:
                for target in self._nfa.moves[stack.pop()]:
                    if target not in seen:
                        seen.add(target)
                        stack.append(target)
            known = self._least_used(frozenset({s for s in seen if self._nfa.edges[s] or s == 1}))
            self._closures[state] = known
            self._held += len(known)
            self._worked(len(seen))
        return known

    def _least_used(self, subset: frozenset[int]) -> frozenset[int]:
        """Drop redundant states: those where another state is at the same place with fewer repetitions used up."""
        groups: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for state in subset & self._nfa.place.keys():
            groups.setdefault(self._nfa.place[state], []).append((self._nfa.used[state], state))
        if len(groups) == len(subset):
            return subset
        needless: list[int] = []
        for group in groups.values():
            kept: list[tuple[int, ...]] = []
            for used, state in sorted(group):
                self._worked(len(kept))
                if any(all(map(le, other, used)) for other in kept):
                    needless.append(state)
                else:
                    kept.append(used)
        return subset.difference(needless) if needless else subset

    def _mask(self, low: int, high: int) -> int:
        known = self._masks.get((low, high))
        if known is None:
            start, end = bisect_right(self.first, low) - 1, bisect_right(self.first, high)
            known = self._masks[low, high] = (1 << end) - (1 << start)
        return known

    def _row(self, subset: frozenset[int]) -> Moves:
        edges = [edge for state in subset for edge in self._nfa.edges[state]]
        if len(edges) == 1:
            low, high, target = edges[0]
            return [(self._mask(low, high), self._number(self._closure(target)))]
        partition = self._partition(tuple((low, high) for low, high, _ in edges))
        return [(mask, self._number(self._joint({edges[i][2] for i in members}))) for mask, members in partition]

    def _partition(self, intervals: tuple[tuple[int, int], ...]) -> _Partition:
        """The partition of some intervals: many states have the same intervals."""
        known = self._partitions.get(intervals)
        if known is None:
            known = []
            for number, (low, high) in enumerate(intervals):
                self._worked(len(known))
                known = _refined(known, self._mask(low, high), number)
            self._partitions[intervals] = known
        return known

    def _joint(self, targets: set[int]) -> frozenset[int]:
        if len(targets) == 1:
            return self._closure(targets.pop())
        closures = [self._closure(target) for target in targets]
        self._worked(sum(map(len, closures)))
        return self._least_used(frozenset().union(*closures))


def _refined(split: _Partition, mask: int, number: int) -> _Partition:
    """Add `number` to the parts of a partition that lie inside `mask`, cutting parts where needed."""
    after: _Partition = []
    for part, members in split:
        if inside := part & mask:
            mask &= ~part
            if outside := part & ~inside:
                after.append((outside, members.copy()))
            members.append(number)
            part = inside
        after.append((part, members))
    if mask:
        after.append((mask, [number]))
    return after


def determinise(nfa: Nfa, budget: Budget) -> Dfa:
    """The deterministic automaton of `nfa`."""
    subsets = _Subsets(nfa, budget)
    subsets.run()
    accept = [1 in subset for subset in subsets.subsets]
    families = _families(nfa, subsets.subsets)
    return _trimmed(np.array(subsets.first, dtype=np.int64), subsets.rows, accept, families)


def _families(nfa: Nfa, subsets: list[frozenset[int]]) -> list[tuple[int, int]]:
    """(family, count) of every subset: subsets whose first counting state differs only in its count form a family."""
    if not nfa.counters:
        return [(-1, 0)] * len(subsets)
    numbers: dict[tuple[int, frozenset[int]], int] = {}
    found = []
    for subset in subsets:
        first = min((state for state in subset if state in nfa.counters), default=None)
        if first is None:
            found.append((-1, 0))
            continue
        counter, count = nfa.counters[first]
        found.append((numbers.setdefault((counter, subset - {first}), len(numbers)), count))
    return found


def _trimmed(first: np.ndarray, rows: list[Moves], accept: list[bool], families: list[tuple[int, int]]) -> Dfa:
    """The table of `rows` without states from which nothing is accepted."""
    useful = _useful(rows, accept)
    if not rows or not useful[0]:
        none = np.zeros(0, dtype=np.int32)
        return Dfa(first, np.zeros((0, len(first)), np.int32), none.astype(bool), none, none)
    kept = np.flatnonzero(useful)
    number = np.full(len(rows), -1, dtype=np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    table = np.full((len(kept), len(first)), -1, dtype=np.int32)
    columns: dict[int, np.ndarray] = {}
    for row, source in zip(table, kept.tolist(), strict=True):
        for mask, target in rows[source]:
            if mask not in columns:
                columns[mask] = _bits(mask)
            row[columns[mask]] = number[target]
    pairs = np.array(families, dtype=np.int32)[kept]
    return Dfa(first, table, np.array(accept)[kept], pairs[:, 0], pairs[:, 1])


def _bits(mask: int) -> np.ndarray:
    raw = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(raw, bitorder="little"))


def _useful(rows: list[Moves], accept: list[bool]) -> list[bool]:
    """Which states lead to acceptance."""
    sources: list[list[int]] = [[] for _ in rows]
    for source, groups in enumerate(rows):
        for _, target in groups:
            sources[target].append(source)
    useful, stack = list(accept), [state for state, ok in enumerate(accept) if ok]
    while stack:
        for source in sources[stack.pop()]:
            if not useful[source]:
                useful[source] = True
                stack.append(source)
    return useful


def product(left: Dfa, right: Dfa, budget: Budget, *, subtract: bool = False) -> Dfa:
    """Strings that both accept; with `subtract`, strings that `left` accepts and `right` does not."""
    if left.empty or (right.empty and not subtract):
        return _trimmed(left.first, [], [], [])
    first = np.union1d(left.first, right.first)
    a = _on_classes(left, first)
    b = _on_classes(right, first)
    dead = len(right.table)  # where `right` has given up
    b = np.vstack([np.where(b < 0, dead, b), np.full((1, len(first)), dead, np.int32)])
    accepts = np.append(right.accept, False)
    numbers, pairs, rows = {(0, 0): 0}, [(0, 0)], []
    while len(rows) < len(pairs):
        if len(rows) % 128 == 0:
            budget.check(len(pairs))
        p, q = pairs[len(rows)]
        groups: dict[tuple[int, int], int] = {}
        for column, pair in enumerate(zip(a[p].tolist(), b[q].tolist(), strict=True)):
            if pair[0] >= 0 and (subtract or pair[1] != dead):
                groups[pair] = groups.get(pair, 0) | 1 << column
        for pair in groups:
            if pair not in numbers:
                numbers[pair] = len(pairs)
                pairs.append(pair)
        rows.append([(mask, numbers[pair]) for pair, mask in groups.items()])
    accept = [bool(left.accept[p] and (accepts[q] != subtract)) for p, q in pairs]
    return _trimmed(first, rows, accept, _product_families(left, right, pairs))


def _product_families(left: Dfa, right: Dfa, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """A counter of either automaton keeps counting in the product, for each state of the other; of two the left one."""
    numbers: dict[tuple[int, int, int], int] = {}
    counters = [list(zip(dfa.family.tolist(), dfa.count.tolist(), strict=True)) for dfa in (left, right)]
    counters[1].append((-1, 0))  # where `right` has given up
    found = []
    for pair in pairs:
        side = 0 if counters[0][pair[0]][0] >= 0 else 1
        family, count = counters[side][pair[side]]
        key = (side, family, pair[1 - side])
        found.append((-1, 0) if family < 0 else (numbers.setdefault(key, len(numbers)), count))
    return found


def _on_classes(dfa: Dfa, first: np.ndarray) -> np.ndarray:
    """The table [Q,C'] over finer classes that begin at `first`."""
    return dfa.table[:, np.searchsorted(dfa.first, first, "right") - 1]


def on_symbols(dfa: Dfa, count: int) -> np.ndarray:
    """The table [Q,count] over single symbols 0 .. count-1."""
    return _on_classes(dfa, np.arange(count))


def accepts_of(dfa: Dfa, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether any accepted string has all its symbols in the given intervals."""
    last = np.append(dfa.first[1:] - 1, MAX_CODE)
    inside = np.any([(dfa.first <= high) & (last >= low) for low, high in ranges], axis=0)
    seen, waiting = {0}, [] if dfa.empty else [0]
    while waiting:
        state = waiting.pop()
        if dfa.accept[state]:
            return True
        after = set(dfa.table[state, inside].tolist()) - seen - {-1}
        seen |= after
        waiting.extend(after)
    return False


def shortest_of(dfa: Dfa) -> int | None:
    """How many symbols the shortest accepted string has; None if there is none."""
    seen, here, length = {-1}, set() if dfa.empty else {0}, 0
    while here:
        states = list(here)
        if dfa.accept[states].any():
            return length
        seen |= here
        here, length = set(dfa.table[states].ravel().tolist()) - seen, length + 1
    return None


def texts_of(dfa: Dfa, most: int) -> list[str] | None:
    """The texts that an automaton over code points accepts; None if there are more than `most`."""
    found, begun = list[str](), [] if dfa.empty else [("", 0)]
    for _ in range(len(dfa.table)):  # a longer text would come back to a state, and could do so again
        found += [text for text, state in begun if dfa.accept[state]]
        after = [(text, *way) for text, state in begun for way in ranges_of(dfa, state).items()]
        size = sum(high - low + 1 for _, _, ranges in after for low, high in ranges)
        if len(found) + size > most:  # something is accepted behind each state
            return None
        begun = [
            (text + chr(code), state)
            for text, state, ranges in after
            for low, high in ranges
            for code in range(low, high + 1)
        ]
    return None if begun else found


def ranges_of(dfa: Dfa, state: int) -> dict[int, list[tuple[int, int]]]:
    """next state -> intervals of symbols, of one state; none begins where another one ends."""
    found: dict[int, list[tuple[int, int]]] = {}
    row = dfa.table[state]
    begins = np.flatnonzero(np.diff(row, prepend=-2))
    lows = dfa.first[begins].tolist()
    for low, end, target in zip(lows, [*lows[1:], MAX_CODE + 1], row[begins].tolist(), strict=True):
        if target >= 0:
            found.setdefault(target, []).append((low, end - 1))
    return found
