"""A hole as the model sees it: committed text before it, pinned text after it, and every length it may have."""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from redraft.constraints.resident import resident_ids
from redraft.diffusion.constraint import CanvasConstraint
from redraft.diffusion.sampler import Distribution
from redraft.filling.obeying import Language, Obeying, language_of
from redraft.filling.seams import LONGEST, Seam, Seams
from redraft.filling.settle import Guess
from redraft.kernels.vocabulary import NEVER
from redraft.text.tokenizer import Tokenizer

_Utf8 = codecs.getincrementaldecoder("utf-8")

GAP = 8
"""Free positions that stand in for a later hole of the same canvas; they are denoised too and thrown away."""


Draft = Sequence[int | None]
"""How a hole begins: at each of its positions a token, or None for noise."""


class HoleConstraint:
    """A `CanvasConstraint` over a hole's free positions: no special tokens, and only some tokens at some of them."""

    def __init__(self, never: tuple[int, ...], only: dict[int, tuple[int, ...]]) -> None:
        self._never, self._only = resident_ids(never), {at: resident_ids(ids) for at, ids in only.items()}

    def tokens(self, device: torch.device) -> None:
        """Any token may appear somewhere."""
        return None

    def hold(self, canvas: Tensor) -> Tensor:
        """Free positions hold nothing fixed."""
        return canvas

    def restrict(self, logits: Tensor) -> Distribution:
        """Remove forbidden tokens from rows of tempered logits [F,V]."""
        logits[:, self._never.on(logits.device)] = NEVER
        for position, resident in self._only.items():
            ids = resident.on(logits.device)
            kept = logits[position, ids]
            logits[position] = NEVER
            logits[position, ids] = kept
        return Distribution.of(logits)

    def free(self, length: int, device: torch.device) -> None:
        """All positions count."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """One hole. `behind` are the given tokens that follow it, with None where there is another hole.

    `first` and `last` are the seams on either side; their texts belong to the given text, not to the filling.
    `language` is what the hole's tokens must spell, including the seams' texts; None if they may spell anything.
    `most` is how many of them may hold text of the filling; None for any number.
    """

    tokenizer: Tokenizer
    behind: tuple[int | None, ...]
    first: Seam | None
    last: Seam | None
    language: Language | None = None
    most: int | None = None

    @property
    def extra_positions(self) -> int:
        """How many positions beyond its filling's tokens a hole may need for the given text at its seams."""
        if self.language is None:
            return (self.first is not None) + (self.last is not None)
        return self._for_seams

    def possible(self, length: int) -> bool:
        """Whether `length` positions can hold the texts of both seams and a text of the language."""
        if self.language is not None:
            return length in self.language.lengths
        return length > 1 or self.first is None or self.last is None or bool(self._only(1)[0])

    def obeying(self, constraints: dict[str, Any], longest: int) -> Hole:
        """The hole with these constraints, for fillings of at most `longest` tokens."""
        if not constraints:
            return self
        before, behind = (seam.text if seam else b"" for seam in (self.first, self.last))
        most = longest + self._for_seams
        return replace(self, language=language_of(self.tokenizer, constraints, most, before, behind))

    def guess(self, draft: Draft, canvas_length: int, *, padded: bool = False) -> Guess:
        """The canvas with a hole that begins as `draft`; `padded` if a text may end sooner, followed by padding."""
        end, length = self.tokenizer.eos_id, len(draft)
        room = canvas_length - length
        behind = (self.behind + (end,) * room)[:room]
        canvas = (*draft, *behind)
        free = (*range(length), *(length + i for i, token in enumerate(behind) if token is None))
        return Guess(
            tokens=tuple(end if token is None else token for token in canvas),
            free=free,
            noisy=tuple(canvas[at] is None for at in free),
            limit=self._limit(length, padded=padded),
        )

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether a text ends as the seam after it requires; an empty one never does."""
        return bool(ids) and (self.last is None or ids[-1] in self._only(len(ids)).get(len(ids) - 1, ()))

    def accepts(self, ids: Sequence[int]) -> bool:
        """Whether these tokens add whole characters, with at most `most` of them."""
        try:
            self._own(ids).decode("utf-8")
        except UnicodeDecodeError:
            return False
        return self.most is None or len(self.holding(ids)) <= self.most

    def holding(self, ids: Sequence[int]) -> range:
        """The positions of tokens that hold text of the filling; others only repeat given text."""
        edges = self._edges(ids)
        start, end = self._given[0], edges[-1] - self._given[1]
        return range(bisect_right(edges, start) - 1, bisect_left(edges, end)) if start < end else range(0)

    def _limit(self, length: int, *, padded: bool) -> CanvasConstraint:
        special = set(self.tokenizer.special_ids.values()) - ({self.tokenizer.pad_id} if padded else set())
        never = tuple(sorted(special))
        if self.language is not None:
            return Obeying(self.language, length, never)
        only = {at: ids for at, ids in self._only(length).items() if at == 0 or not padded}
        return HoleConstraint(never, only)

    def text(self, ids: Sequence[int]) -> str:
        """What the hole's tokens add between the given texts, without bytes that form no character."""
        return self._own(ids).decode("utf-8", errors="ignore")

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of every token of a draft, less the given text at the seams; a split character at its last token.

        A draft in spare room may not end with the seam's text yet.
        """
        written, given = self.tokenizer.decode_bytes(ids), self.last.text if self.last else b""
        start = self._given[0]
        own = written[start:].removesuffix(given)
        edges = [_complete(own, at - start) for at in self._edges(ids)]
        text = own.decode("utf-8", errors="ignore")
        return tuple(text[start:end] for start, end in pairwise(edges))

    def offsets(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """For each token the (start, end) characters of the text that it covers, whole or in part."""
        own, edges = self._own(ids), [at - self._given[0] for at in self._edges(ids)]
        return tuple((_complete(own, start), _begun(own, end)) for start, end in pairwise(edges))

    @property
    def _for_seams(self) -> int:
        """How many positions are enough to spell both seams' texts, whatever text comes between them."""
        fewest = Seams.of(self.tokenizer).fewest
        before = max(LONGEST, fewest(self.first.text)) if self.first else 0
        return before + (fewest(self.last.text) if self.last else 0)

    @property
    def _given(self) -> tuple[int, int]:
        """The bytes of given text at each end."""
        return len(self.first.text) if self.first else 0, len(self.last.text) if self.last else 0

    def _edges(self, ids: Sequence[int]) -> list[int]:
        """Where each token's bytes begin, and where the last one's end."""
        return list(accumulate((len(self.tokenizer.token_bytes(id)) for id in ids), initial=0))

    def _own(self, ids: Sequence[int]) -> bytes:
        written = self.tokenizer.decode_bytes(ids)
        return written[self._given[0] : len(written) - self._given[1]]

    def _only(self, length: int) -> dict[int, tuple[int, ...]]:
        """Tokens that are allowed at the hole's outermost positions."""
        if self.first and self.last and length == 1:
            return {0: Seams.of(self.tokenizer).both(self.first, self.last)}
        first = {0: self.first.tokens} if self.first else {}
        return first | ({length - 1: self.last.tokens} if self.last else {})


def _begun(text: bytes, end: int) -> int:
    """How many characters begin in the first `end` bytes."""
    decoder = _Utf8("ignore")
    complete = len(decoder.decode(text[: max(end, 0)]))
    return min(complete + bool(decoder.getstate()[0]), len(text.decode("utf-8", errors="ignore")))


def _complete(text: bytes, end: int) -> int:
    """How many characters end in the first `end` bytes."""
    return len(_Utf8("ignore").decode(text[: max(end, 0)]))
