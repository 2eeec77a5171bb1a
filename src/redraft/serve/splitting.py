"""Splits an answer into reasoning, content and tool calls as it arrives, from text cut at any character.

Marked text (`redraft.text.marks`) comes a canvas at a time, so one piece may hold a whole thought, a call and the words
after it, or end in the middle of a marker. Whatever the cuts, the joined parts equal what
`redraft.text.reply.read_reply` makes of the whole text: white space at either end is dropped unless it was asked for,
several thoughts get a line each, and a call that does not follow the format stays in the content as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from redraft.text.marks import unmarked
from redraft.text.reply import (
    CALL_OPEN,
    CHANNEL_CLOSE,
    CHANNEL_NAME,
    CHANNEL_OPEN,
    ENDINGS,
    LANDMARKS,
    LONGEST_MARK,
    may_end_call,
    scan_call,
)
from redraft.text.tools import THOUGHT, ToolCall

_LANDMARK = re.compile("|".join(map(re.escape, LANDMARKS)))
_THOUGHT_MARKS = (CHANNEL_CLOSE, *ENDINGS)
_THOUGHT_MARK = re.compile("|".join(map(re.escape, _THOUGHT_MARKS)))


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the visible answer."""

    text: str


Part = Reasoning | Content | ToolCall


class Splitter:
    """Push text as it arrives; every call returns the parts that have become certain."""

    def __init__(self, *, reasoning_open: bool = False, exact: bool = False) -> None:
        """`reasoning_open` and `exact` mean the same as in `read_reply`."""
        self._text, self._looked = "", len(CALL_OPEN)
        self._content = _Exact(Content) if exact else _Trimmed(Content)
        self._reasoning = _Trimmed(Reasoning)
        self._state: Callable[[bool], Iterator[Part] | None] = self._in_thought if reasoning_open else self._in_content

    def push(self, text: str) -> list[Part]:
        """Return the parts that a piece of marked text adds."""
        self._text += text
        return self._drain(final=False)

    def finish(self) -> list[Part]:
        """Return the parts that were held back, now that no more text will come."""
        return self._drain(final=True)

    def _drain(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while (step := self._state(final)) is not None:
            parts += step
        return parts

    def _take(self, end: int) -> str:
        taken, self._text = self._text[:end], self._text[end:]
        return taken

    # A state yields parts and moves on, or returns None when the text at hand is used up.

    def _in_content(self, final: bool) -> Iterator[Part] | None:
        landmark = _LANDMARK.search(self._text)
        if landmark is None:
            return self._rest(self._content, LANDMARKS, final)
        before = self._take(landmark.start())
        match landmark[0]:
            case opened if opened == CALL_OPEN:
                self._state = self._in_call
            case opened if opened == CHANNEL_OPEN:
                self._take(len(CHANNEL_OPEN))
                self._begin_thought()
            case _:
                self._state = self._over
        return self._content.push(before)

    def _begin_thought(self) -> None:
        self._reasoning.separate("\n")
        self._state = self._at_thought

    def _at_thought(self, final: bool) -> Iterator[Part] | None:
        """Skip the channel's name after the marker that opens a channel; it is not part of the thought."""
        if not final and THOUGHT.startswith(self._text):
            return None
        if name := CHANNEL_NAME.match(self._text):
            self._take(name.end())
        self._state = self._in_thought
        return iter(())

    def _in_thought(self, final: bool) -> Iterator[Part] | None:
        mark = _THOUGHT_MARK.search(self._text)
        if mark is None:
            return self._rest(self._reasoning, _THOUGHT_MARKS, final)
        if mark[0] != CHANNEL_CLOSE and CHANNEL_CLOSE not in self._text:
            return self._at_ending(mark.start(), final)
        # An end marker belongs to the thought if the thought is closed after it.
        thought = self._take(self._text.index(CHANNEL_CLOSE))
        self._take(len(CHANNEL_CLOSE))
        self._state = self._in_content
        return self._reasoning.push(thought)

    def _at_ending(self, start: int, final: bool) -> Iterator[Part] | None:
        """Handle an end marker inside a thought: it ends everything unless the thought is closed later."""
        if start == 0 and not final:
            return None
        if final:
            self._state = self._over
        return self._reasoning.push(self._take(start))

    def _in_call(self, final: bool) -> Iterator[Part] | None:
        if not final and not may_end_call(self._text, self._looked):
            self._looked = max(len(CALL_OPEN), len(self._text) - LONGEST_MARK + 1)  # a mark may have begun after this
            return None
        scan = scan_call(self._text, 0, final=final)
        if scan is None:
            return None
        self._looked = len(CALL_OPEN)
        call, end = scan
        written = self._take(end)
        self._state = self._in_content
        return self._content.push(written) if call is None else iter((call,))

    def _over(self, final: bool) -> None:
        self._text = ""

    def _rest(self, out: _Trimmed | _Exact, marks: tuple[str, ...], final: bool) -> Iterator[Part] | None:
        """Push all text except an ending that may be the beginning of a marker."""
        held = 0 if final else _partial(self._text, marks)
        ready = self._take(len(self._text) - held)
        return out.push(ready) if ready else None


class _Exact:
    """Text of one kind, unchanged."""

    def __init__(self, kind: type[Content] | type[Reasoning]) -> None:
        self._kind = kind

    def push(self, text: str) -> Iterator[Part]:
        if text:
            yield self._kind(unmarked(text))


class _Trimmed:
    """Text of one kind. White space is held back until something follows it, and dropped at either end."""

    def __init__(self, kind: type[Content] | type[Reasoning]) -> None:
        self._kind = kind
        self._begun, self._fresh, self._space = False, True, ""

    def separate(self, separator: str) -> None:
        """Put `separator`, instead of white space, between the text so far and any text to come."""
        self._fresh, self._space = True, separator if self._begun else ""

    def push(self, text: str) -> Iterator[Part]:
        text = unmarked(text).lstrip() if self._fresh else unmarked(text)
        ready = text.rstrip()
        if not ready:
            self._space += text
            return
        yield self._kind(self._space + ready)
        self._begun, self._fresh, self._space = True, False, text[len(ready) :]


def _partial(text: str, marks: tuple[str, ...]) -> int:
    """Count the last characters that may be the beginning of a marker."""
    longest = max(map(len, marks)) - 1
    candidates = range(min(longest, len(text)), 0, -1)
    return next((n for n in candidates if any(mark.startswith(text[-n:]) for mark in marks)), 0)
