"""A tokenizer's vocabulary as the token automaton needs it: bytes in prefix trees, and groups of tokens that act alike.

Most tokens are *plain*: whole characters that mean nothing to any syntax (letters, digits, punctuation other than quote
and backslash, everything from U+00A0 on). Where an automaton treats all plain characters alike, as inside a string, it
treats all plain tokens of the same length alike too, and none of them has to be walked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from redraft.text.tokenizer import Tokenizer

PLAIN_ASCII = tuple(byte for byte in range(0x20, 0x7F) if byte not in (0x22, 0x5C))


@dataclass(frozen=True, eq=False)
class Trie:
    """Byte strings as a tree in breadth-first order; the root is node 0 and a node's children are consecutive.

    first, count  int64 [N]  a node's children
    byte          int64 [N]  on the edge to the node
    token         int64 [N]  the token that ends here; -1 if none does
    """

    first: np.ndarray
    count: np.ndarray
    byte: np.ndarray
    token: np.ndarray

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
        parts = [_Level(np.array([-1]), np.zeros(1, np.int64), np.array([-1]))]
        node, base = np.zeros(len(ordered), dtype=np.int64), 1
        for level in range(1, depth + 1):
            rows = np.flatnonzero((shared < level) & (length >= level))
            ends = np.where(length[rows] == level, tokens[rows], -1)
            parts.append(_Level(node[rows], letters[rows, level - 1], ends))
            node = base - 1 + np.cumsum((shared < level) & (length >= level))
            base += len(rows)
        parent = np.concatenate([part.parent for part in parts])
        count = np.bincount(parent[1:], minlength=base) if base > 1 else np.zeros(1, np.int64)
        first = 1 + np.concatenate([[0], np.cumsum(count)[:-1]])
        byte = np.concatenate([part.byte for part in parts])
        return cls(first, count, byte, np.concatenate([part.token for part in parts]))


@dataclass(frozen=True, eq=False)
class _Level:
    """The nodes of one depth."""

    parent: np.ndarray
    byte: np.ndarray
    token: np.ndarray


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
    """What the automata of one tokenizer share. `Vocabulary.of` keeps one for each tokenizer."""

    _known: ClassVar[WeakKeyDictionary[Tokenizer, Vocabulary]] = WeakKeyDictionary()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer, made once."""
        known = cls._known.get(tokenizer)
        if known is None:
            special = set(tokenizer.special_ids.values())
            spelled = {i: b"" if i in special else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
            known = cls._known[tokenizer] = cls(list(spelled.values()), dict(tokenizer.special_ids))
        return known

    def __init__(self, spelled: list[bytes], special: dict[str, int]) -> None:
        """`spelled` are the tokens' bytes, empty for those that are no text; `special` are the others' names."""
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

    @cached_property
    def plain(self) -> Trie:
        """The plain tokens."""
        return self._trie(plain=True)

    @cached_property
    def odd(self) -> Trie:
        """All other tokens that are text."""
        return self._trie(plain=False)

    def _trie(self, *, plain: bool) -> Trie:
        kept = [(token, string) for token, string in self._texts if (token in self._plain) == plain]
        return Trie.of([string for _, string in kept], np.array([token for token, _ in kept], dtype=np.int64))


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
