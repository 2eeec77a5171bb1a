"""The text of one answer as it grows, canvas by canvas: only complete characters, and no part of a stop string."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from redraft.diffusion.records import FinishReason
from redraft.text.marks import STRINGS, Decoder, empty_thought_length, marked_at
from redraft.text.reply import content_alone


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a canvas added: new text, the tokens that spell it, and why the answer ends there, if it does."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Transcript:
    """Tokens and text of one answer. The first `reported` tokens, and `text`, have been reported.

    `cached_text` is the text of the first `cached` tokens. These have been reported and end with a complete character,
    so they are not decoded again; `marks` are where special tokens that structure an answer begin in it.

    A stop string ends the answer wherever it stands, but in a `chat` only in the content: not in thoughts or calls, nor
    in the special tokens that mark them. `reasoning_open` says that the prompt ended inside a thought.
    """

    decoder: Decoder
    stop: tuple[str, ...]
    chat: bool = False
    reasoning_open: bool = False
    tokens: list[int] = field(default_factory=list)
    reported: int = 0
    text: str = ""
    stop_text: str | None = None
    cached: int = 0
    cached_text: str = ""
    marks: tuple[int, ...] = ()

    def add(self, tokens: Sequence[int], finish_reason: FinishReason | None) -> TextDelta:
        """Append a canvas' tokens. The answer ends before a stop string, whatever `finish_reason` says."""
        self.tokens += tokens
        spelled = self._decoded(len(self.tokens))
        decoded = _complete(spelled) if finish_reason is None else spelled
        start = empty_thought_length(self.decoder, self.tokens)
        text = whole = decoded[start:]
        in_content = self.chat and bool(self.stop)
        marks = self._marks() if in_content else ()
        searched = self._content(whole, [at - start for at in marks]) if in_content else whole
        if (found := first_stop(searched, self.stop)) is not None:
            at, self.stop_text = found
            text, finish_reason = whole[:at], "stop"
        elif finish_reason is None:
            text = whole[: len(whole) - _partial_stop(searched, self.stop)]
        # Tokens are reported with their text: those of half a character or a possible stop string wait as well.
        is_all = text == whole and decoded == spelled
        end = len(self.tokens) if is_all else self._covering(len(decoded) - len(whole) + len(text))
        if is_all:
            self.cached, self.cached_text, self.marks = end, spelled, marks
        if finish_reason is not None:
            del self.tokens[end:]
        delta = TextDelta(text[len(self.text) :], tuple(self.tokens[self.reported : end]), finish_reason)
        self.text, self.reported = text, end
        return delta

    def close(self) -> TextDelta:
        """Report what was held back when the answer is broken off and nothing follows."""
        return self.add((), "length")

    def _covering(self, length: int) -> int:
        """How many of the first tokens, at least those already reported, spell `length` characters of the text."""
        # Every probe decodes all tokens that are not cached, so there must be few probes.
        counts = range(self.reported, len(self.tokens))
        return self.reported + bisect_left(counts, length, key=self._complete_length)

    def _complete_length(self, count: int) -> int:
        return len(_complete(self._decoded(count)))

    def _decoded(self, count: int) -> str:
        """The text of the first `count` tokens, which include the cached ones."""
        return self.cached_text + self.decoder.decode(self.tokens[self.cached : count])

    def _content(self, text: str, marks: Sequence[int]) -> str:
        """The text with what is not content blanked out, given where its special tokens begin; of the same length."""
        marked = marked_at(text, [at for at in marks if at >= 0])
        return content_alone(marked, reasoning_open=self.reasoning_open)

    def _marks(self) -> tuple[int, ...]:
        """Where special tokens that structure an answer begin in the decoded text."""
        ids = {self.decoder.special_ids.get(string) for string in STRINGS}
        marks, at, first = list(self.marks), len(self.cached_text), self.cached
        for place in range(self.cached, len(self.tokens)):
            if self.tokens[place] in ids:
                at, first = at + len(self.decoder.decode(self.tokens[first:place])), place
                marks.append(at)
        return tuple(marks)


def _complete(text: str) -> str:
    """Decoded text without an incomplete character at its end."""
    return text.rstrip("\ufffd")


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """The position and text of the stop string that ends first, which is found no matter how canvases cut the text."""
    matches = [(at + len(word), at, word) for word in stop if (at := text.find(word)) >= 0]
    return min(matches)[1:] if matches else None


def _partial_stop(text: str, stop: tuple[str, ...]) -> int:
    """Count the last characters of a text that may turn out to be the start of a stop string."""
    return max((n for word in stop for n in range(1, len(word)) if text.endswith(word[:n])), default=0)
