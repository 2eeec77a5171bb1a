"""The text of one answer as it grows, canvas by canvas: complete characters only, and nothing of a stop string."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from redraft.diffusion.records import FinishReason
from redraft.text.marks import Decoder, left_out


@dataclass(frozen=True, slots=True)
class Told:
    """What a canvas added: new text and the tokens that spell it, and why the answer ends with it, if it does."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Transcript:
    """Tokens and text of one answer. `told` of the tokens, and `text`, have been reported.

    `spelled` is what the first `kept` tokens spell, which are told and end with a whole character: not decoded again.
    """

    decoder: Decoder
    stop: tuple[str, ...]
    tokens: list[int] = field(default_factory=list)
    told: int = 0
    text: str = ""
    stop_text: str | None = None
    kept: int = 0
    spelled: str = ""

    def add(self, tokens: Sequence[int], finish_reason: FinishReason | None) -> Told:
        """Append a canvas' tokens. A stop string ends the answer before itself, whatever `finish_reason` says."""
        self.tokens += tokens
        spelled = self._decoded(len(self.tokens))
        decoded = _complete(spelled) if finish_reason is None else spelled
        text = whole = decoded[left_out(self.decoder, self.tokens) :]
        if (found := first_stop(whole, self.stop)) is not None:
            at, self.stop_text = found
            text, finish_reason = whole[:at], "stop"
        elif finish_reason is None:
            text = _without_partial_stop(whole, self.stop)
        # Tokens are told with their text: those of half a character, or that may begin a stop string, wait as well.
        is_all = text == whole and decoded == spelled
        told = len(self.tokens) if is_all else self._covering(len(decoded) - len(whole) + len(text))
        if is_all:
            self.kept, self.spelled = told, spelled
        if finish_reason is not None:
            del self.tokens[told:]
        news = Told(text[len(self.text) :], tuple(self.tokens[self.told : told]), finish_reason)
        self.text, self.told = text, told
        return news

    def close(self) -> Told:
        """Nothing follows, though the answer was broken off: tell what was held back."""
        return self.add((), "length")

    def _covering(self, length: int) -> int:
        """How many of the first tokens, none of the told ones taken back, spell `length` characters of the text."""
        # Every trial decodes what is not kept, so that they must be few.
        counts = range(self.told, len(self.tokens))
        return self.told + bisect_left(counts, length, key=self._complete_length)

    def _complete_length(self, count: int) -> int:
        return len(_complete(self._decoded(count)))

    def _decoded(self, count: int) -> str:
        """The text of the first tokens, at least the kept ones."""
        return self.spelled + self.decoder.decode(self.tokens[self.kept : count])


def _complete(text: str) -> str:
    """Decoded text without a character at its end whose other bytes may still come."""
    return text.rstrip("\ufffd")


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Where the stop string that ends first begins, and which it is: the one found however the canvases cut."""
    found = [(at + len(word), at, word) for word in stop if (at := text.find(word)) >= 0]
    return min(found)[1:] if found else None


def _without_partial_stop(text: str, stop: tuple[str, ...]) -> str:
    """Hold back an ending that may turn out to be the beginning of a stop string."""
    held = 0
    for word in stop:
        longest = min(len(word) - 1, len(text))
        held = next((n for n in range(longest, held, -1) if text.endswith(word[:n])), held)
    return text[: len(text) - held]
