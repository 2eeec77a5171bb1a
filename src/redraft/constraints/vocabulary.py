"""A tokenizer's vocabulary as the token automaton needs it: bytes in prefix trees, and groups of tokens that act alike.

Most tokens are *plain*: whole characters with no special meaning in any syntax (letters, digits, punctuation other than
quote and backslash, everything from U+00A0 on). Where an automaton treats all plain characters alike, as inside a
string, it treats all plain tokens of the same length alike too, so none of them has to be walked.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from redraft.text.tokenizer import Tokenizer

SPELLINGS = 128
"""How many groupings of tokens by byte classes are kept."""
PLAIN_ASCII = tuple(byte for byte in range(0x20, 0x7F) if byte not in (0x22, 0x5C))


@dataclass(frozen=True, eq=False)
class Trie:
    """Byte strings as a tree in breadth-first order; the root is node 0 and a node's children are consecutive.

    first, count  int64 [N]  a node's children
    byte          int64 [N]  on the edge to the node
    token         int64 [N]  the token that ends here; -1 if none does
    low, high     int64 [N]  tokens[low:high] share the node's prefix
    depth, chars  int64 [N]  bytes, and characters (including incomplete ones), to the node
    tokens        int64 [T]  all tokens, ordered by their bytes

    The last node, `wide`, stands for all the root's children beyond ASCII, and has no parent.
    """

    first: np.ndarray
    count: np.ndarray
    byte: np.ndarray
    token: np.ndarray
    low: np.ndarray
    high: np.ndarray
    depth: np.ndarray
    chars: np.ndarray
    tokens: np.ndarray

    @property
    def wide(self) -> int:
        """The node that stands for all first bytes beyond ASCII."""
        return len(self.token) - 1

    @cached_property
    def of_root(self) -> np.ndarray:
        """The root's child for each byte [256]; -1 if there is none."""
        found = np.full(256, -1, dtype=np.int64)
        children = np.arange(self.first[0], self.first[0] + self.count[0])
        found[self.byte[children]] = children
        return found

    @classmethod
    def of(cls, strings: list[bytes], tokens: np.ndarray) -> Trie:
        """The tree of distinct non-empty strings and their tokens."""
        order = sorted(range(len(strings)), key=strings.__getitem__)
        ordered, tokens = [strings[i] for i in order], tokens[order]
        length = np.array([len(string) for string in ordered], dtype=np.int64)
        depth = int(length.max(initial=0))
        letters = np.zeros((len(ordered), depth), dtype=np.int64)
        letters[np.arange(depth) < length[:, None]] = np.frombuffer(b"".join(ordered), dtype=np.uint8)
        shared = _shared_prefixes(letters, length)
        parts = [_Level.of([-1], [0], [-1], [0], [len(ordered)])]
        node, base = np.zeros(len(ordered), dtype=np.int64), 1
        for level in range(1, depth + 1):
            starts = np.append(np.flatnonzero(shared < level), len(ordered))
            begins = length[starts[:-1]] >= level
            rows, ends = starts[:-1][begins], starts[1:][begins]
            token = np.where(length[rows] == level, tokens[rows], -1)
            parts.append(_Level(node[rows], letters[rows, level - 1], token, rows, ends))
            node = base - 1 + np.cumsum((shared < level) & (length >= level))
            base += len(rows)
        wide = int(np.searchsorted(letters[:, 0], 0x80)) if depth else 0
        parts.append(_Level.of([-1], [0xC2], [-1], [wide], [len(ordered)]))
        return cls._joined(parts, tokens)

    @classmethod
    def _joined(cls, parts: list[_Level], tokens: np.ndarray) -> Trie:
        names = ("parent", "byte", "token", "low", "high")
        parent, byte, token, low, high = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        count = np.bincount(parent[parent >= 0], minlength=len(parent))
        depth = np.repeat(np.arange(len(parts)), [len(part.token) for part in parts])
        depth[-1] = 1
        chars = np.zeros(len(parent), dtype=np.int64)
        start = 1
        for part in parts[1:]:
            here = slice(start, start + len(part.token))
            chars[here] = np.where(parent[here] >= 0, chars[parent[here]], 0) + (byte[here] & 0xC0 != 0x80)
            start = here.stop
        first = 1 + np.cumsum(count) - count
        return cls(first, count, byte, token, low, high, depth, chars, tokens)


@dataclass(frozen=True, eq=False)
class _Level:
    """The nodes of one depth."""

    parent: np.ndarray
    byte: np.ndarray
    token: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, *columns: list[int]) -> _Level:
        return cls(*(np.array(column, dtype=np.int64) for column in columns))


def _shared_prefixes(letters: np.ndarray, length: np.ndarray) -> np.ndarray:
    """How many leading letters each row [N] has in common with the row before; 0 for the first."""
    if len(letters) == 0:
        return np.zeros(0, dtype=np.int64)
    within = np.minimum(length[1:], length[:-1])
    differs = letters[1:] != letters[:-1]
    differs |= np.arange(letters.shape[1]) >= within[:, None]
    shared = np.where(differs.any(1), differs.argmax(1), within)
    return np.concatenate([[0], shared])


class Vocabulary:
    """What the automata of one tokenizer share; `Vocabulary.of` keeps one per tokenizer."""

    _known: ClassVar[WeakKeyDictionary[Tokenizer, Vocabulary]] = WeakKeyDictionary()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer, built once."""
        known = cls._known.get(tokenizer)
        if known is None:
            special = set(tokenizer.special_ids.values())
            spelled = {i: b"" if i in special else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
            known = cls._known[tokenizer] = cls(list(spelled.values()), dict(tokenizer.special_ids))
        return known

    def __init__(self, spelled: list[bytes], special: dict[str, int]) -> None:
        """`spelled` are the tokens' bytes, empty for non-text tokens; `special` maps names to the other tokens."""
        self.size, self.special = len(spelled), special
        first_of: dict[bytes, int] = {}
        self.same = np.array([first_of.setdefault(b, i) if b else i for i, b in enumerate(spelled)], dtype=np.int64)
        texts = [(token, string) for string, token in first_of.items()]
        shapes = {token: _plain_shape(string) for token, string in texts}
        self._texts, self._plain = texts, {token for token, shape in shapes.items() if shape}
        self.partial = np.zeros(self.size, dtype=bool)
        self.partial[[token for token, string in texts if not _whole(string)]] = True
        sizes = sorted({shape for shape in shapes.values() if shape})
        self.group_chars = np.array([size[0] for size in sizes], dtype=np.int64)
        self.group_bytes = np.array([size[1] for size in sizes], dtype=np.int64)
        number = {size: i for i, size in enumerate(sizes)}
        self.group = np.full(self.size, -1, dtype=np.int64)
        for token, shape in shapes.items():
            if shape:
                self.group[token] = number[shape]
        self.longest = int(max(self.group_bytes.max(initial=0), 1))
        """Bytes of the longest plain token."""
        self._spellings: OrderedDict[bytes, tuple[Trie, list[np.ndarray]]] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def groups(self) -> list[np.ndarray]:
        """The plain tokens of each shape."""
        return _members(self.group, len(self.group_chars))

    @cached_property
    def plain(self) -> Trie:
        """The plain tokens."""
        return self._trie(plain=True)

    @cached_property
    def odd(self) -> Trie:
        """All other tokens that are text."""
        return self._trie(plain=False)

    def spelled(self, spelling: np.ndarray) -> tuple[Trie, list[np.ndarray]]:
        """Plain tokens grouped by what `spelling` [256] maps their bytes to; those containing a 0 are left out.

        Returns a tree of the rewritten strings, whose tokens are group numbers, and the tokens of each group.
        """
        key = spelling.tobytes()
        with self._lock:  # constraints are compiled by several threads
            if key in self._spellings:
                self._spellings.move_to_end(key)
                return self._spellings[key]
        grouped = self._grouped(spelling)
        with self._lock:
            self._spellings[key] = grouped
            if len(self._spellings) > SPELLINGS:
                self._spellings.popitem(last=False)
        return grouped

    def _grouped(self, spelling: np.ndarray) -> tuple[Trie, list[np.ndarray]]:
        tokens, letters, first, place = self._plain_letters
        written = spelling[letters]
        whole = np.flatnonzero(np.minimum.reduceat(written, first)) if len(first) else first
        digest = np.add.reduceat(mixed(place * 256 + written), first) if len(first) else first
        _, sample, group = np.unique(digest[whole], return_index=True, return_inverse=True)
        ends = np.append(first[1:], len(letters))
        strings = [written[first[i] : ends[i]].tobytes() for i in whole[sample].tolist()]
        group_of = np.full(self.size, -1, dtype=np.int64)
        group_of[tokens[whole]] = group
        return Trie.of(strings, np.arange(len(strings))), _members(group_of, len(strings))

    @cached_property
    def _plain_letters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Plain tokens [P], their concatenated bytes [B], where each begins [P], and each byte's place in its token."""
        kept = [(token, string) for token, string in self._texts if token in self._plain]
        length = np.array([len(string) for _, string in kept], dtype=np.int64)
        first = np.cumsum(length) - length
        letters = np.frombuffer(b"".join(string for _, string in kept), dtype=np.uint8)
        tokens = np.array([token for token, _ in kept], dtype=np.int64)
        return tokens, letters, first, np.arange(len(letters)) - np.repeat(first, length)

    def _trie(self, *, plain: bool) -> Trie:
        kept = [(token, string) for token, string in self._texts if (token in self._plain) == plain]
        return Trie.of([string for _, string in kept], np.array([token for token, _ in kept], dtype=np.int64))


def _members(group_of: np.ndarray, groups: int) -> list[np.ndarray]:
    """The tokens of each group; -1 in `group_of` means no group."""
    order = np.argsort(group_of, kind="stable")
    return np.split(order, np.searchsorted(group_of[order], np.arange(groups + 1)))[1:-1]


def mixed(keys: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each key."""
    found = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found ^ (found >> np.uint64(31))


def _plain_shape(string: bytes) -> tuple[int, int] | None:
    """(characters, bytes) of a string of plain characters; None for any other."""
    if string.isascii():
        plain = string.isalnum() or all(byte in PLAIN_ASCII for byte in string)
        return (len(string), len(string)) if plain else None
    try:
        chars = string.decode()
    except UnicodeDecodeError:
        return None
    if all(ord(char) >= 0xA0 or (char.isascii() and ord(char) in PLAIN_ASCII) for char in chars):
        return len(chars), len(string)
    return None


def _whole(string: bytes) -> bool:
    try:
        string.decode()
    except UnicodeDecodeError:
        return False
    return True
