"""Token healing: where a given text ends inside what would be one token, the hole takes that token back.

A model has never seen "return" begin with the token "retu". So the last tokens of the text before a hole, and the first
one after it, may grow into the hole: they are taken out of the given tokens, and the hole's first (last) token must
begin (end) with their bytes. The text itself never changes.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redraft.text.tokenizer import Tokenizer

LONGEST = 3
"""The most tokens before a hole that one token may replace."""


@dataclass(frozen=True, slots=True)
class Seam:
    """Given text that a hole's outermost token must repeat, and the tokens that do."""

    text: bytes
    tokens: tuple[int, ...]


class Seams:
    """Finds the tokens that begin or end with some bytes; special tokens never do. Built once per tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = set(tokenizer.special_ids.values())
        ids = [id for id in range(tokenizer.vocab_size) if id not in special]
        self._bytes = {id: text for id in ids if (text := tokenizer.token_bytes(id))}
        self._texts = frozenset(self._bytes.values())
        self._forward = sorted((text, id) for id, text in self._bytes.items())
        self._backward = sorted((text[::-1], id) for id, text in self._bytes.items())

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Seams:
        """The index of a tokenizer, kept as long as the tokenizer lives."""
        if tokenizer not in _KNOWN:
            _KNOWN[tokenizer] = cls(tokenizer)
        return _KNOWN[tokenizer]

    def beginning(self, text: bytes) -> tuple[int, ...]:
        """Ids of all tokens that begin with `text`, sorted."""
        return _starting(self._forward, text)

    def ending(self, text: bytes) -> tuple[int, ...]:
        """Ids of all tokens that end with `text`, sorted."""
        return _starting(self._backward, text[::-1])

    def fewest(self, text: bytes) -> int:
        """The smallest number of tokens that spell `text`, the bytes of tokens."""
        least = [0]
        for end in range(1, len(text) + 1):
            last = (least[start] for start in range(end) if text[start:end] in self._texts)
            least.append(1 + min(last, default=len(text)))  # if no token ends here, more than any spelling takes
        return least[-1]

    def before(self, ids: Sequence[int]) -> list[Seam]:
        """Seams of the last token, the last two, and so on before a hole, as long as some token can replace them."""
        seams = []
        for count in range(1, min(LONGEST, len(ids)) + 1):
            if (seam := self._seam(ids[-count:], self.beginning)) is None:
                break
            seams.append(seam)
        return seams

    def behind(self, ids: Sequence[int]) -> Seam | None:
        """The seam of the first token after a hole; None if it cannot grow."""
        return self._seam(ids[:1], self.ending)

    def both(self, first: Seam, last: Seam) -> tuple[int, ...]:
        """Tokens that can fill a hole between two seams alone: they contain both texts, one after the other."""
        least = len(first.text) + len(last.text)
        common = set(first.tokens) & set(last.tokens)
        return tuple(sorted(id for id in common if len(self._bytes[id]) >= least))

    def _seam(self, ids: Sequence[int], growing: Callable[[bytes], tuple[int, ...]]) -> Seam | None:
        text = b"".join(self._bytes.get(id, b"") for id in ids)
        tokens = growing(text) if text else ()
        return Seam(text, tokens) if any(self._bytes[token] != text for token in tokens) else None


_KNOWN: weakref.WeakKeyDictionary[Tokenizer, Seams] = weakref.WeakKeyDictionary()


def _starting(entries: list[tuple[bytes, int]], text: bytes) -> tuple[int, ...]:
    """Ids of the sorted entries whose bytes begin with `text`."""
    low = bisect_left(entries, (text, -1))
    behind = text.rstrip(b"\xff")  # the first text after those that begin with it has its last byte one higher
    high = bisect_left(entries, (behind[:-1] + bytes([behind[-1] + 1]), -1)) if behind else len(entries)
    return tuple(sorted(id for _, id in entries[low:high]))
