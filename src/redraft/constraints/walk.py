"""Walking the tokens of a vocabulary through an automaton over bytes: where each leads from every state.

Walking token by token is slow, and needless where tokens act alike, so most are walked as *groups*: plain tokens of one
length where a state treats all plain characters alike (`uniform`), tokens that share a beginning and then reach such a
state, and plain tokens that spell the same string of byte classes where states distinguish only a few kinds of bytes
(inside a string with a pattern).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redraft.constraints.automaton import Budget, Dfa
from redraft.constraints.uniform import Uniform
from redraft.constraints.vocabulary import PLAIN_ASCII, Trie, Vocabulary, mixed
from redraft.errors import ConstraintError

MAX_MOVES = 30_000_000
"""Steps through the tree of tokens while compiling."""
_BLOCK = 256
"""How many states go through the tree at a time: unfinished paths take more memory than their results."""
_WIDE_CHOICE = 12
"""A state that continues with more plain bytes than this is worth walking by byte classes."""
_PLAIN_BYTES = np.array([*PLAIN_ASCII, *range(0x80, 0x100)])


@dataclass(frozen=True, eq=False)
class Moves:
    """Parallel arrays: what (tokens, groups or classes) leads from `source` to `target`."""

    what: np.ndarray
    source: np.ndarray
    target: np.ndarray

    def kept(self, mask: np.ndarray) -> Moves:
        """The moves that the mask selects."""
        return Moves(self.what[mask], self.source[mask], self.target[mask])

    @staticmethod
    def joined(parts: list[Moves]) -> Moves:
        """All of the parts."""
        columns = ([part.what for part in parts], [part.source for part in parts], [part.target for part in parts])
        return Moves(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in columns))


@dataclass(frozen=True, eq=False)
class Walked:
    """Moves of single tokens, moves of groups, and the tokens of each group."""

    single: Moves
    grouped: Moves
    groups: list[np.ndarray]


def walk(dfa: Dfa, table: np.ndarray, states: np.ndarray, vocabulary: Vocabulary, budget: Budget) -> Walked:
    """All moves of ordinary tokens from `states`; `table` is [Q,256+M]."""
    counting = dfa.family >= 0
    odd = _along(table, vocabulary.odd, states, budget).ended
    # Inside a counted text only whole characters are allowed, because there any byte counts as a character.
    odd = odd.kept(~(vocabulary.partial[odd.what] & (counting[odd.source] | counting[odd.target])))
    uniform = Uniform(table, counting, vocabulary.longest)
    found = _Groups()
    found.add(_by_length(uniform, states[~uniform.mixed[states]], vocabulary), vocabulary.groups)
    left = uniform.mixed & np.isin(np.arange(len(table)), states)
    for alike, spelling in _alike(table, np.flatnonzero(left), uniform):
        tree, members = vocabulary.spelled(spelling)
        found.add(_along(table, tree, alike, budget).ended, members)
        left[alike] = False
    plain = _along(table, vocabulary.plain, np.flatnonzero(left), budget, uniform)
    found.add(*_rest(plain.stopped, uniform, vocabulary))
    return Walked(Moves.joined([odd, plain.ended]), Moves.joined(found.moves), found.groups)


class _Groups:
    """Groups of several kinds, numbered consecutively."""

    def __init__(self) -> None:
        self.moves: list[Moves] = []
        self.groups: list[np.ndarray] = []

    def add(self, moves: Moves, groups: list[np.ndarray]) -> None:
        self.moves.append(Moves(moves.what + len(self.groups), moves.source, moves.target))
        self.groups += groups


def _by_length(uniform: Uniform, states: np.ndarray, vocabulary: Vocabulary) -> Moves:
    """Moves of all plain tokens of one length."""
    reached = uniform.behind(vocabulary.group_chars[:, None], vocabulary.group_bytes[:, None], states)  # [G,S]
    group, place = np.nonzero(reached >= 0)
    return Moves(group, states[place], reached[group, place])


@dataclass(frozen=True, eq=False)
class _Path:
    """Moves of whole tokens, and moves of token prefixes (nodes of the tree) that were not followed further."""

    ended: Moves
    stopped: Moves


@dataclass(slots=True)
class _Steps:
    """The number of steps taken through the tree."""

    budget: Budget
    taken: int = 0

    def add(self, steps: int) -> None:
        """Raise `ConstraintError` if there are too many."""
        self.taken += steps
        if self.taken > MAX_MOVES:
            raise ConstraintError("The constraint is too large for this vocabulary; shorten its repetitions or limits.")
        self.budget.check(0)


def _along(table: np.ndarray, trie: Trie, states: np.ndarray, budget: Budget, uniform: Uniform | None = None) -> _Path:
    """Every token of the tree from every given state, until the automaton ends or reaches a live state of `uniform`."""
    steps, table = _Steps(budget), np.ascontiguousarray(table)
    blocks = np.split(states, range(_BLOCK, len(states), _BLOCK))
    paths = [_followed(table, trie, block, steps, uniform) for block in blocks]
    return _Path(Moves.joined([path.ended for path in paths]), Moves.joined([path.stopped for path in paths]))


def _followed(table: np.ndarray, trie: Trie, states: np.ndarray, steps: _Steps, uniform: Uniform | None) -> _Path:
    width, flat = table.shape[1], table.ravel()
    node, source, state = _first_steps(table, trie, states, uniform)
    steps.add(len(node))
    ended, stopped = list[Moves](), list[Moves]()
    while len(node):
        if uniform is not None:
            stop = uniform.live[state]
            stopped.append(Moves(node[stop], source[stop], state[stop]))
            node, source, state = node[~stop], source[~stop], state[~stop]
        ends = trie.token[node] >= 0
        ended.append(Moves(trie.token[node[ends]], source[ends], state[ends]))
        count = trie.count[node]
        steps.add(int(count.sum()))
        before = np.repeat(np.arange(len(node)), count)
        child = np.arange(len(before)) + np.repeat(trie.first[node] - np.cumsum(count) + count, count)
        after = flat[state[before] * width + trie.byte[child]]
        alive = np.flatnonzero(after >= 0)
        node, state, source = child[alive], after[alive], source[before[alive]]
    return _Path(Moves.joined(ended), Moves.joined(stopped))


def _first_steps(
    table: np.ndarray, trie: Trie, states: np.ndarray, uniform: Uniform | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(node, source, state) after the first byte; or after any first character beyond ASCII, if that is one state."""
    after = table[states, :256]
    together = np.zeros(len(states), dtype=bool)
    if uniform is not None:
        wide = uniform.wide[states]
        together = (wide >= 0) & uniform.live[wide]
        after = np.where(together[:, None] & (np.arange(256) >= 0x80), -1, after)
    row, byte = np.nonzero(after >= 0)  # states continue with few bytes, while the root has many children
    node = trie.of_root[byte]
    row, byte, node = (column[node >= 0] for column in (row, byte, node))
    wide_node = np.full(int(together.sum()), trie.wide)
    node = np.concatenate([node, wide_node])
    state = np.concatenate([after[row, byte], uniform.wide[states[together]] if uniform is not None else wide_node])
    return node, np.concatenate([states[row], states[together]]), state


def _rest(stopped: Moves, uniform: Uniform, vocabulary: Vocabulary) -> tuple[Moves, list[np.ndarray]]:
    """Moves of all tokens that continue from a node of the tree, grouped by node and length."""
    tree, shape = vocabulary.plain, vocabulary.group
    nodes, which = np.unique(stopped.what, return_inverse=True)
    low, count = tree.low[nodes], tree.high[nodes] - tree.low[nodes]
    of_node = np.repeat(np.arange(len(nodes)), count)
    tokens = tree.tokens[np.arange(len(of_node)) + np.repeat(low - np.cumsum(count) + count, count)]
    order = np.lexsort((shape[tokens], of_node))
    of_node, tokens = of_node[order], tokens[order]
    first = np.flatnonzero(np.diff(of_node * len(vocabulary.groups) + shape[tokens], prepend=-1))
    groups = np.split(tokens, first[1:]) if len(first) else []
    node, kind = of_node[first], shape[tokens[first]]
    chars = vocabulary.group_chars[kind] - tree.chars[nodes[node]]
    length = vocabulary.group_bytes[kind] - tree.depth[nodes[node]]
    per_node = np.bincount(node, minlength=len(nodes))[which]  # each stopped move becomes this many
    begins = np.searchsorted(node, which)
    move = np.repeat(np.arange(len(which)), per_node)
    group = np.arange(len(move)) + np.repeat(begins - np.cumsum(per_node) + per_node, per_node)
    target = uniform.behind(chars[group], length[group], stopped.target[move])
    found = Moves(group, stopped.source[move], target)
    return found.kept(target >= 0), groups


def _alike(table: np.ndarray, states: np.ndarray, uniform: Uniform) -> list[tuple[np.ndarray, np.ndarray]]:
    """(states, spelling): for these states, and all that plain bytes lead to, a byte acts as `spelling` [256] says.

    Each byte is spelled by the lowest byte that acts like it, and bytes that lead nowhere by 0. States from which plain
    bytes lead to a live state of `uniform` are left out.
    """
    plain = table[:, _PLAIN_BYTES]
    wide = states[(plain[states] >= 0).sum(1) > _WIDE_CHOICE]
    region = np.flatnonzero(_closure(plain, wide))
    place = np.full(len(table) + 1, -1)
    place[region] = np.arange(len(region))
    local = place[plain[region]]  # [R,B]; -1 is no state
    digest = mixed(local * len(region) + np.arange(len(region))[:, None])  # [R,B]
    _, distinct = np.unique(digest.sum(0), return_index=True)  # bytes that act alike in the whole region, once
    part = _connected(local[:, distinct])
    is_wide = np.zeros(len(table), dtype=bool)
    is_wide[wide] = True
    order = np.argsort(part, kind="stable")
    found: dict[bytes, list[np.ndarray]] = {}
    for rows in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
        states = region[rows]
        if is_wide[states].any() and not uniform.live[states].any():
            key = _spelling(digest[rows].sum(0), local[rows].max(0) >= 0)
            found.setdefault(key, []).append(states[is_wide[states]])
    return [(np.concatenate(states), np.frombuffer(key, np.uint8)) for key, states in found.items()]


def _closure(plain: np.ndarray, start: np.ndarray) -> np.ndarray:
    """bool [Q]: states that plain bytes lead to from those of `start`, including these."""
    seen = np.zeros(len(plain) + 1, dtype=bool)
    seen[start] = seen[-1] = True  # the last entry stands for "no state"
    front = start
    while len(front):
        reached = np.zeros(len(seen), dtype=bool)
        reached[plain[front]] = True
        front = np.flatnonzero(reached & ~seen)
        seen |= reached
    return seen[:-1]


def _connected(target: np.ndarray) -> np.ndarray:
    """A number for each connected part of the graph with the edges row -> target[row] (-1: none)."""
    source, column = np.nonzero(target >= 0)
    ends = target[source, column]
    label = np.arange(len(target))
    while True:
        before = label.copy()
        low = np.minimum(before[source], before[ends])
        np.minimum.at(label, before[source], low)
        np.minimum.at(label, before[ends], low)
        label = label[label]
        if (label == before).all():
            return label


def _spelling(digest: np.ndarray, alive: np.ndarray) -> bytes:
    """For each byte the lowest plain byte with the same digest [B], 0 where it is not alive [B]."""
    _, first, same = np.unique(digest, return_index=True, return_inverse=True)
    found = np.zeros(256, dtype=np.uint8)
    found[_PLAIN_BYTES] = np.where(alive, _PLAIN_BYTES[first[same]], 0)
    return found.tobytes()
