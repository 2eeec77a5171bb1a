"""Special tokens in the text of an answer, distinguished from plain text that spells the same.

In *marked* text, `MARK` precedes the string of every special token that structures an answer. It is a lone surrogate,
which decoded text never contains. So an answer may quote `<eos>` or a call without being cut off or making one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from redraft.text.tokenizer import EOS, PAD, TURN_END, Tokenizer
from redraft.text.tools import (
    CALL_CLOSE,
    CALL_OPEN,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    EMPTY_THOUGHT,
    QUOTE,
    RESPONSE_CLOSE,
    RESPONSE_OPEN,
)

MARK = "\udc00"
STRINGS = (
    CALL_OPEN, CALL_CLOSE, QUOTE, CHANNEL_OPEN, CHANNEL_CLOSE, RESPONSE_OPEN, RESPONSE_CLOSE, TURN_END, EOS, PAD
)  # fmt: skip
"""The strings that are marked."""

_ANY = re.compile("|".join(map(re.escape, STRINGS)))


def mark_all(text: str) -> str:
    """Text whose tokens are unknown, with every string that may be a special token's treated as one."""
    return _ANY.sub(MARK + r"\g<0>", text)


def marked_at(text: str, places: Sequence[int]) -> str:
    """Text with a mark at each of these places, which are in order."""
    return MARK.join(text[start:end] for start, end in pairwise([0, *places, len(text)]))


def unmarked(text: str) -> str:
    """Marked text without its marks."""
    return text.replace(MARK, "")


class Decoder(Protocol):
    """The part of a tokenizer that tells special tokens from text."""

    @property
    def special_ids(self) -> Mapping[str, int]: ...
    def decode(self, token_ids: Sequence[int], /) -> str:
        """Their text; decoding in pieces gives the same text, as long as each piece ends with a whole character."""
        ...


def empty_thought_length(decoder: Decoder, token_ids: Sequence[int]) -> int:
    """How many characters at the beginning are not part of the answer: an empty thought in special tokens."""
    opens, closes = (decoder.special_ids.get(name) for name in (CHANNEL_OPEN, CHANNEL_CLOSE))
    first = token_ids[: len(EMPTY_THOUGHT)]  # each spells at least one character
    if not first or first[0] != opens or closes not in first:
        return 0
    thought = first[: first.index(closes) + 1]
    return len(EMPTY_THOUGHT) if decoder.decode(thought) == EMPTY_THOUGHT else 0


class Marker:
    """Marks the text of one answer, which arrives piece by piece with the tokens that spell it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, tokenizer.stream()
        self._lengths = {tokenizer.special_ids[s]: len(s) for s in STRINGS if s in tokenizer.special_ids}
        self._spelled: int | None = None
        self._marked = 0
        self._places: list[int] = []

    def mark(self, text: str, token_ids: Iterable[int]) -> str:
        """The next piece, marked. Its tokens may spell more than the piece; the rest comes with a later one."""
        self._places += self._found(tuple(token_ids))
        first, self._marked = self._marked, self._marked + len(text)
        cuts = [place - first for place in self._places if place < self._marked]
        self._places = self._places[len(cuts) :]
        return marked_at(text, cuts)

    def _found(self, token_ids: tuple[int, ...]) -> Iterator[int]:
        """Where special tokens begin, in characters of the whole answer."""
        if self._spelled is None and token_ids:  # an empty thought at the beginning is not part of the answer's text
            self._spelled = -empty_thought_length(self._tokenizer, token_ids)
        for token in token_ids:
            assert self._spelled is not None
            self._spelled += len(self._stream.push((token,)))
            length = self._lengths.get(token)
            if length is not None and self._spelled >= length:
                yield self._spelled - length
