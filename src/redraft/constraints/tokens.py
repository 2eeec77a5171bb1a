"""From an automaton over bytes to one over tokens, compact enough for a dynamic programme at every step.

Tokens that act alike in every state form a *class*; an *edge* leads from one state to another over a *set* of classes,
and equal sets are stored once. Behind acceptance lies one more state, the end: a closing token leads to it, and filling
tokens keep the canvas there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from redraft.constraints.automaton import Budget, Dfa, on_symbols
from redraft.constraints.spelling import BYTES
from redraft.constraints.vocabulary import PLAIN_ASCII, Trie, Vocabulary
from redraft.errors import ConstraintError

MAX_MOVES = 30_000_000
"""Token moves that are looked at while compiling."""
MAX_EDGES = 1_500_000
COUNTER_EDGES = 4096
"""About the edges that all long limits on length of one constraint share; where more are needed they count coarser."""

_DEAD, _MIXED = -1, -2


@dataclass(frozen=True, eq=False)
class Ending:
    """How an answer ends: one of `closing` stands behind the text, then `filling` up to the end of the canvas."""

    closing: tuple[int, ...]
    filling: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """States 0 (start) .. Q-1, the last being the end; E edges, U sets, C classes.

    accept       bool [Q]    the text may end here
    distance     int64 [Q]   tokens of the shortest way to acceptance
    class_of     int64 [V]   a token's class; C for tokens that stand nowhere
    source, target, label  int64 [E]  edges: from, to, and the number of their set
    set_first    int64 [U+1] and set_class: the classes of each set, sorted
    """

    accept: np.ndarray
    distance: np.ndarray
    class_of: np.ndarray
    classes: int
    source: np.ndarray
    target: np.ndarray
    label: np.ndarray
    set_first: np.ndarray
    set_class: np.ndarray

    @property
    def states(self) -> int:
        return len(self.accept)

    @property
    def end(self) -> int:
        """The state behind the closing token."""
        return self.states - 1

    @property
    def sets(self) -> int:
        return len(self.set_first) - 1

    @cached_property
    def _moves(self) -> dict[tuple[int, int], int]:
        return {}

    @cached_property
    def _edges_of(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.source, kind="stable")
        return order, np.searchsorted(self.source[order], np.arange(self.states + 1))

    def step(self, state: int, token: int) -> int:
        """The state behind `token`, or -1."""
        kind = int(self.class_of[token]) if 0 <= token < len(self.class_of) else self.classes
        if (state, kind) not in self._moves:
            self._moves[state, kind] = self._find(state, kind)
        return self._moves[state, kind]

    def _find(self, state: int, kind: int) -> int:
        order, first = self._edges_of
        for edge in order[first[state] : first[state + 1]]:
            members = self.set_class[self.set_first[self.label[edge]] : self.set_first[self.label[edge] + 1]]
            at = np.searchsorted(members, kind)
            if at < len(members) and members[at] == kind:
                return int(self.target[edge])
        return -1


@dataclass(frozen=True, eq=False)
class _Moves:
    """Moves of single tokens or of groups of plain tokens; parallel arrays."""

    what: np.ndarray
    source: np.ndarray
    target: np.ndarray

    def kept(self, mask: np.ndarray) -> _Moves:
        return _Moves(self.what[mask], self.source[mask], self.target[mask])

    @staticmethod
    def joined(parts: list[_Moves]) -> _Moves:
        columns = ([part.what for part in parts], [part.source for part in parts], [part.target for part in parts])
        return _Moves(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in columns))


def compile_tokens(
    dfa: Dfa, vocabulary: Vocabulary, ending: Ending, marks: tuple[str, ...], budget: Budget
) -> TokenAutomaton:
    """The token automaton of `dfa`, whose symbols are bytes and then `marks`."""
    table = on_symbols(dfa, BYTES + len(marks)).astype(np.int64)  # [Q,256+M]
    single, groups = _walk_all(dfa, table, vocabulary, budget)
    end = len(table)
    special = _marks(table, [vocabulary.special[name] for name in marks])
    single = _Moves.joined([single, special, _endings(dfa.accept, ending, end)])
    rounded = _rounding(dfa)
    if rounded is not None:
        single = _Moves(single.what, single.source, np.append(rounded, end)[single.target])
        groups = _Moves(groups.what, groups.source, rounded[groups.target])
    accept = np.append(dfa.accept, True)
    single, groups, accept = _pruned(single, groups, accept)
    return _classified(single, groups, accept, vocabulary)


def _walk_all(dfa: Dfa, table: np.ndarray, vocabulary: Vocabulary, budget: Budget) -> tuple[_Moves, _Moves]:
    """Moves of single tokens, and of groups of plain tokens where states treat them alike."""
    counting = dfa.family >= 0
    reached = _reached(table, counting, vocabulary)  # [G,Q]
    mixed = (reached == _MIXED).any(0)
    odd = _walk(table, vocabulary.odd, np.arange(len(table)), budget)
    # Inside a counted text only whole characters may stand, because there any byte counts as a character.
    odd = odd.kept(~(vocabulary.partial[odd.what] & (counting[odd.source] | counting[odd.target])))
    plain = _walk(table, vocabulary.plain, np.flatnonzero(mixed), budget)
    group, source = np.nonzero((reached >= 0) & ~mixed)
    return _Moves.joined([odd, plain]), _Moves(group, source, reached[group, source])


def _reached(table: np.ndarray, counting: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Where a plain token of each group leads from each state [G,Q]; -1 nowhere, -2 it depends on the token."""
    by_char = np.append(_next_plain(table), [_MIXED, _DEAD])  # indexed with -2 and -1 as well
    by_byte = np.append(_next_byte(table), [_MIXED, _DEAD])
    by_char[np.flatnonzero(counting)] = _MIXED
    by_byte[np.flatnonzero(~counting)] = _MIXED
    most = int(max(vocabulary.group_bytes.max(initial=0), 1))
    start = np.arange(len(table))
    chars, units = [start], [start]
    for _ in range(most):
        chars.append(by_char[chars[-1]])
        units.append(by_byte[units[-1]])
    in_chars = np.stack(chars)[vocabulary.group_chars]
    return np.where(counting, np.stack(units)[vocabulary.group_bytes], in_chars)


def _next_plain(table: np.ndarray) -> np.ndarray:
    """The state behind any plain character, -1 if there is none, -2 if it depends on the character."""
    found = _common(table[:, list(PLAIN_ASCII)])
    for sequences in _WIDE:
        found = np.where(_behind(table, sequences) == found, found, _MIXED)
    return found


def _next_byte(table: np.ndarray) -> np.ndarray:
    """The same where every byte of a plain character counts."""
    ascii_part, rest = _common(table[:, list(PLAIN_ASCII)]), _common(table[:, 0x80:0x100])
    return np.where(ascii_part == rest, ascii_part, _MIXED)


_WIDE = (
    ((0xC2, 0xC2), (0xA0, 0xBF)), ((0xC3, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)), ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)), ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)), ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)  # fmt: skip
"""UTF-8 of the plain characters beyond ASCII."""


def _common(columns: np.ndarray) -> np.ndarray:
    """The value that all columns of each row share, or -2."""
    return np.where((columns == columns[:, :1]).all(1), columns[:, 0], _MIXED)


def _behind(table: np.ndarray, sequence: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The state that all byte strings of a sequence of intervals lead to, or -1, or -2."""
    padded = np.vstack([table, np.full((1, table.shape[1]), _MIXED), np.full((1, table.shape[1]), _DEAD)])
    state = np.arange(len(table))
    for low, high in sequence:
        state = _common(padded[state, low : high + 1])
    return state


def _walk(table: np.ndarray, trie: Trie, states: np.ndarray, budget: Budget) -> _Moves:
    """Every token of the tree from every given state, as far as the automaton goes."""
    node, source, state = np.zeros(len(states), dtype=np.int64), states, states
    found, total = [], 0
    while len(node):
        count = trie.count[node]
        total += int(count.sum())
        if total > MAX_MOVES:
            raise ConstraintError("The constraint is too large for this vocabulary; shorten its repetitions or limits.")
        budget.check(0)
        before = np.repeat(np.arange(len(node)), count)
        child = np.arange(len(before)) - np.repeat(np.cumsum(count) - count, count) + trie.first[node][before]
        after = table[state[before], trie.byte[child]]
        alive = after >= 0
        node, state, source = child[alive], after[alive], source[before[alive]]
        ends = trie.token[node] >= 0
        found.append(_Moves(trie.token[node[ends]], source[ends], state[ends]))
    return _Moves.joined(found)


def _marks(table: np.ndarray, tokens: list[int]) -> _Moves:
    mark, source = np.nonzero(table[:, BYTES:].T >= 0)
    return _Moves(np.array(tokens, dtype=np.int64)[mark], source, table[source, BYTES + mark])


def _endings(accept: np.ndarray, ending: Ending, end: int) -> _Moves:
    finals = np.flatnonzero(accept)
    closing = np.array(ending.closing, dtype=np.int64)
    filling = np.array(ending.filling, dtype=np.int64)
    source = np.concatenate([np.repeat(finals, len(closing)), np.full(len(filling), end)])
    return _Moves(np.concatenate([np.tile(closing, len(finals)), filling]), source, np.full(len(source), end))


def _rounding(dfa: Dfa) -> np.ndarray | None:
    """Where long counters are rounded up to, per state [Q]; None if there are few enough states."""
    counting = np.flatnonzero(dfa.family >= 0)
    unit = 1  # a state has edges to what each length of a token, up to some 24 characters, leads to
    while len(counting) / unit * (1 + 24 / unit) > COUNTER_EDGES:
        unit += 1
    if unit == 1:
        return None
    span = int(dfa.count.max()) + 1
    order = counting[np.argsort(dfa.family[counting].astype(np.int64) * span + dfa.count[counting])]
    keys = dfa.family[order].astype(np.int64) * span + dfa.count[order]
    last = np.searchsorted(dfa.family[order], dfa.family[order], "right") - 1  # the highest count of each family
    wanted = dfa.family[order].astype(np.int64) * span + -(-dfa.count[order].astype(np.int64) // unit) * unit
    found = np.arange(len(dfa.table))
    found[order] = order[np.minimum(np.searchsorted(keys, wanted), last)]
    return found


def _pruned(single: _Moves, groups: _Moves, accept: np.ndarray) -> tuple[_Moves, _Moves, np.ndarray]:
    """Only states on a way from the start to acceptance, numbered anew; the last state stays last."""
    count = len(accept)
    keys = np.unique(np.concatenate([single.source * count + single.target, groups.source * count + groups.target]))
    source, target = keys // count, keys % count
    kept = _spread(source, target, np.arange(count) == 0) & _spread(target, source, accept)
    if not kept[0]:
        raise ConstraintError("The constraint allows no text that this tokenizer can write.")
    number = np.cumsum(kept) - 1
    both = [moves.kept(kept[moves.source] & kept[moves.target]) for moves in (single, groups)]
    renumbered = [_Moves(moves.what, number[moves.source], number[moves.target]) for moves in both]
    return renumbered[0], renumbered[1], accept[kept]


def _spread(source: np.ndarray, target: np.ndarray, start: np.ndarray) -> np.ndarray:
    """States [Q] that edges reach from those of `start`."""
    return _distances(source, target, start) >= 0


def _distances(source: np.ndarray, target: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Edges from the nearest state of `start` [Q], -1 if there is no way."""
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(len(start) + 1))
    targets = target[order]
    distance = np.where(start, 0, -1).astype(np.int64)
    front, steps = np.flatnonzero(start), 0
    while len(front):
        steps += 1
        counts = first[front + 1] - first[front]
        places = np.repeat(first[front] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        front = np.unique(targets[places])
        front = front[distance[front] < 0]
        distance[front] = steps
    return distance


def _classified(single: _Moves, groups: _Moves, accept: np.ndarray, vocabulary: Vocabulary) -> TokenAutomaton:
    """Classes of tokens that act alike, edges, and sets."""
    states = np.int64(len(accept))
    random = np.random.default_rng(0)
    group_hash = random.integers(0, 2**63, len(vocabulary.group_chars) + 1, dtype=np.uint64)
    used = np.zeros(len(group_hash), dtype=bool)
    used[groups.what] = True
    signature = np.where(used[vocabulary.group], group_hash[vocabulary.group], np.uint64(0))  # [V]
    np.add.at(signature, single.what, _mixed(single.source * states + single.target))
    signature = signature[vocabulary.same]
    kinds, first, class_of = np.unique(signature, return_index=True, return_inverse=True)
    if len(kinds) and kinds[0] == 0:  # tokens that stand nowhere
        first, class_of = first[1:], class_of - 1
    classes = len(first)
    class_of = np.where(class_of < 0, classes, class_of)
    leader = np.full(vocabulary.size, -1, dtype=np.int64)
    leader[first] = np.arange(classes)
    mine = single.kept(leader[single.what] >= 0)
    explicit = _Moves(leader[mine.what], mine.source, mine.target)
    members = [np.flatnonzero(vocabulary.group[first] == g) for g in range(len(vocabulary.group_chars))]
    return _edges(explicit, groups, members, accept, class_of, classes)


def _mixed(keys: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each key."""
    mixed = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _edges(
    explicit: _Moves,
    groups: _Moves,
    members: list[np.ndarray],
    accept: np.ndarray,
    class_of: np.ndarray,
    classes: int,
) -> TokenAutomaton:
    """Edges with their sets: explicit classes, and the classes of whole groups."""
    states = np.int64(len(accept))
    keys = np.concatenate([explicit.source * states + explicit.target, groups.source * states + groups.target])
    # A whole group is one item of a set until equal sets have been found.
    items = np.concatenate([explicit.what, classes + groups.what])
    pairs, edge = np.unique(keys, return_inverse=True)
    if len(pairs) > MAX_EDGES:
        raise ConstraintError("The constraint is too large for this vocabulary; shorten its repetitions or limits.")
    order = np.lexsort((items, edge))
    edge, items = edge[order], items[order]
    digest = np.zeros(len(pairs), dtype=np.uint64)
    np.add.at(digest, edge, _mixed(items))
    _, sample, label = np.unique(digest, return_index=True, return_inverse=True)
    first = np.searchsorted(edge, np.arange(len(pairs) + 1))
    sets = [_expanded(items[first[i] : first[i + 1]], members, classes) for i in sample.tolist()]
    sizes = np.array([len(members) for members in sets], dtype=np.int64)
    source, target = pairs // states, pairs % states
    return TokenAutomaton(
        accept=accept,
        distance=_distances(target, source, accept),
        class_of=class_of,
        classes=classes,
        source=source,
        target=target,
        label=label,
        set_first=np.concatenate([[0], np.cumsum(sizes)]),
        set_class=np.concatenate(sets),
    )


def _expanded(items: np.ndarray, members: list[np.ndarray], classes: int) -> np.ndarray:
    whole = items >= classes
    if not whole.any():
        return items
    return np.unique(np.concatenate([items[~whole], *(members[g] for g in (items[whole] - classes).tolist())]))
