"""From an automaton over bytes to one over tokens, compact enough for a dynamic programme at every step.

Tokens that act alike in every state form a *class*; an *edge* leads from one state to another over a *set* of classes,
and equal sets are stored once. After acceptance there is one more state, the end: a closing token leads to it, and
filling tokens keep the canvas there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from redraft.constraints.automaton import Budget, Dfa, on_symbols
from redraft.constraints.spelling import BYTES
from redraft.constraints.vocabulary import Vocabulary, mixed
from redraft.constraints.walk import Moves, Walked, walk
from redraft.errors import ConstraintError

MAX_EDGES = 1_500_000
COUNTER_EDGES = 4096
"""Roughly how many edges all long length limits of one constraint share; beyond that they count more coarsely."""


@dataclass(frozen=True, eq=False)
class Ending:
    """How an answer ends: one of `closing` follows the text, then `filling` up to the end of the canvas."""

    closing: tuple[int, ...]
    filling: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """States 0 (start) .. Q-1, the last being the end; E edges, U sets, C classes.

    accept       bool [Q]    the text may end here
    distance     int64 [Q]   tokens of the shortest path to acceptance
    class_of     int64 [V]   a token's class; C for tokens that are never allowed
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
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    @property
    def end(self) -> int:
        """The state after the closing token."""
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
        """The state after `token`, or -1."""
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


def compile_tokens(
    dfa: Dfa, vocabulary: Vocabulary, ending: Ending, marks: tuple[str, ...], budget: Budget
) -> TokenAutomaton:
    """The token automaton of `dfa`, whose symbols are bytes and then `marks`."""
    table = on_symbols(dfa, BYTES + len(marks))  # [Q,256+M]
    end, rounded = len(table), _rounding(dfa)
    walked = walk(dfa, table, np.flatnonzero(rounded == np.arange(end)), vocabulary, budget)
    special = _marks(table, [vocabulary.special[name] for name in marks])
    single = Moves.joined([walked.single, special, _endings(dfa.accept, ending, end)])
    single = Moves(single.what, single.source, np.append(rounded, end)[single.target])
    grouped = Moves(walked.grouped.what, walked.grouped.source, rounded[walked.grouped.target])
    accept = np.append(dfa.accept, True)
    single, grouped, accept = _pruned(single, grouped, accept)
    return _classified(Walked(single, grouped, walked.groups), accept, vocabulary)


def _marks(table: np.ndarray, tokens: list[int]) -> Moves:
    mark, source = np.nonzero(table[:, BYTES:].T >= 0)
    return Moves(np.array(tokens, dtype=np.int64)[mark], source, table[source, BYTES + mark])


def _endings(accept: np.ndarray, ending: Ending, end: int) -> Moves:
    finals = np.flatnonzero(accept)
    closing = np.array(ending.closing, dtype=np.int64)
    filling = np.array(ending.filling, dtype=np.int64)
    source = np.concatenate([np.repeat(finals, len(closing)), np.full(len(filling), end)])
    return Moves(np.concatenate([np.tile(closing, len(finals)), filling]), source, np.full(len(source), end))


def _rounding(dfa: Dfa) -> np.ndarray:
    """The state each state's long counter is rounded up to [Q]; the state itself if there are few enough."""
    counting = np.flatnonzero(dfa.family >= 0)
    unit = 1  # a state has edges for each token length, up to some 24 characters
    while len(counting) / unit * (1 + 24 / unit) > COUNTER_EDGES:
        unit += 1
    found = np.arange(len(dfa.table))
    if unit == 1:
        return found
    span = int(dfa.count.max()) + 1
    order = counting[np.argsort(dfa.family[counting].astype(np.int64) * span + dfa.count[counting])]
    keys = dfa.family[order].astype(np.int64) * span + dfa.count[order]
    last = np.searchsorted(dfa.family[order], dfa.family[order], "right") - 1  # the highest count of each family
    wanted = dfa.family[order].astype(np.int64) * span + -(-dfa.count[order].astype(np.int64) // unit) * unit
    found[order] = order[np.minimum(np.searchsorted(keys, wanted), last)]
    return found


def _pruned(single: Moves, groups: Moves, accept: np.ndarray) -> tuple[Moves, Moves, np.ndarray]:
    """Only states on a path from the start to acceptance, renumbered; the last state stays last."""
    count = len(accept)
    keys = np.unique(np.concatenate([single.source * count + single.target, groups.source * count + groups.target]))
    source, target = keys // count, keys % count
    kept = _spread(source, target, np.arange(count) == 0) & _spread(target, source, accept)
    if not kept[0]:
        raise ConstraintError("The constraint allows no text that this tokenizer can write.")
    number = np.cumsum(kept) - 1
    both = [moves.kept(kept[moves.source] & kept[moves.target]) for moves in (single, groups)]
    renumbered = [Moves(moves.what, number[moves.source], number[moves.target]) for moves in both]
    return renumbered[0], renumbered[1], accept[kept]


def _spread(source: np.ndarray, target: np.ndarray, start: np.ndarray) -> np.ndarray:
    """States [Q] that edges reach from those of `start`."""
    return _distances(source, target, start) >= 0


def _distances(source: np.ndarray, target: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The distance in edges from the nearest state of `start` [Q], -1 if unreachable."""
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


def _classified(walked: Walked, accept: np.ndarray, vocabulary: Vocabulary) -> TokenAutomaton:
    """Classes of tokens that act alike, edges, and sets."""
    states = np.int64(len(accept))
    single, grouped = walked.single, walked.grouped
    of_group = np.zeros(len(walked.groups), dtype=np.uint64)
    np.add.at(of_group, grouped.what, mixed(grouped.source * states + grouped.target))
    signature = np.zeros(vocabulary.size, dtype=np.uint64)
    owner = np.repeat(np.arange(len(walked.groups)), list(map(len, walked.groups)))
    np.add.at(signature, np.concatenate([np.zeros(0, np.int64), *walked.groups]), of_group[owner])
    np.add.at(signature, single.what, mixed(single.source * states + single.target))
    signature = signature[vocabulary.same]
    kinds, first, class_of = np.unique(signature, return_index=True, return_inverse=True)
    if len(kinds) and kinds[0] == 0:  # tokens that are never allowed
        first, class_of = first[1:], class_of - 1
    classes = len(first)
    class_of = np.where(class_of < 0, classes, class_of)
    leader = np.full(vocabulary.size, -1, dtype=np.int64)
    leader[first] = np.arange(classes)
    mine = single.kept(leader[single.what] >= 0)
    explicit = Moves(leader[mine.what], mine.source, mine.target)
    members = [kept[kept >= 0] for group in walked.groups for kept in [leader[group]]]
    led = np.array(list(map(len, members))) > 0  # the others add nothing to the leaders' groups
    return _edges(explicit, grouped.kept(led[grouped.what]), members, accept, class_of, classes)


def _edges(
    explicit: Moves,
    grouped: Moves,
    members: list[np.ndarray],
    accept: np.ndarray,
    class_of: np.ndarray,
    classes: int,
) -> TokenAutomaton:
    """Edges with their sets: explicit classes, and the classes of whole groups."""
    states = np.int64(len(accept))
    keys = np.concatenate([explicit.source * states + explicit.target, grouped.source * states + grouped.target])
    # A whole group is one item of a set until equal sets have been found.
    items = np.concatenate([explicit.what, classes + grouped.what])
    pairs, edge = np.unique(keys, return_inverse=True)
    if len(pairs) > MAX_EDGES:
        raise ConstraintError("The constraint is too large for this vocabulary; shorten its repetitions or limits.")
    order = np.lexsort((items, edge))
    edge, items = edge[order], items[order]
    digest = np.zeros(len(pairs), dtype=np.uint64)
    np.add.at(digest, edge, mixed(items))
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
