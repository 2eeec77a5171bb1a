"""Replies taken apart into reasoning, content and tool calls, whole or as they arrive, in the format of `text.tools`.

A call that does not follow the format is kept as written in the content: generated text is not the caller's mistake, so
nothing is raised, and nothing that the model wrote is lost.

Everything here reads marked text (`text.marks`).
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Literal

from redraft.text import tools
from redraft.text.call_reader import CALL_CLOSE, CallError, read_call
from redraft.text.marks import MARK, STRINGS, mark_all, unmarked
from redraft.text.tokenizer import EOS, PAD, TURN_END
from redraft.text.tools import THOUGHT, ToolCall

_CALL_OPEN = MARK + tools.CALL_OPEN
_CHANNEL_OPEN, _CHANNEL_CLOSE = MARK + tools.CHANNEL_OPEN, MARK + tools.CHANNEL_CLOSE
_ENDINGS = tuple(MARK + ending for ending in (TURN_END, EOS, PAD))
_LANDMARKS = (_CHANNEL_OPEN, _CALL_OPEN, MARK + tools.RESPONSE_OPEN, *_ENDINGS)
"""What ends a run of content."""
_CALL_ENDS = (CALL_CLOSE, *_LANDMARKS)
"""What a call, well-formed or not, ends with or before."""

_LANDMARK, _CALL_END, _ENDING, _ANY_MARK = (
    re.compile("|".join(map(re.escape, markers)))
    for markers in (_LANDMARKS, _CALL_ENDS, _ENDINGS, [MARK + string for string in STRINGS])
)
_CHANNEL_NAME = re.compile(rf"{THOUGHT}(?=\n|{MARK}|\Z)")
"""What names a channel as a thought: a line of its own, or all that there is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """A model turn taken apart, unmarked. `content` and `reasoning` are trimmed, as chat templates trim them.

    `malformed` lists the calls that do not follow the format; they are also in `content`.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """More of the visible answer."""

    text: str


Part = Reasoning | Content | ToolCall


def parse_reply(text: str, *, reasoning_open: bool = False) -> Reply:
    """`read_reply` for text whose tokens are unknown: every string that may be a special token's is treated as one."""
    return read_reply(mark_all(text), reasoning_open=reasoning_open)


def read_reply(text: str, *, reasoning_open: bool = False, exact: bool = False) -> Reply:
    """Split a whole reply, as marked text; see `ReplyParser`."""
    parser = ReplyParser(reasoning_open=reasoning_open, exact=exact)
    parts = parser.push(text) + parser.finish()
    return Reply(
        content="".join(part.text for part in parts if isinstance(part, Content)),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
        malformed=tuple(parser.malformed),
    )


def content_alone(text: str, *, reasoning_open: bool = False) -> str:
    """A marked text that may still grow, unmarked, with `MARK` for every character that is not part of the content.

    Those are thoughts, calls, malformed ones too, what follows an end marker, and the markers themselves. More text
    changes nothing here, so what is undecided, such as a call that is not closed, is no content either.
    """
    shown = ""
    for segment in _Segmenter(reasoning_open=reasoning_open).push(text):
        is_content = segment.kind == "content"
        shown += _ANY_MARK.sub(lambda found: _blank(found[0]), segment.text) if is_content else _blank(segment.text)
    return shown + MARK * (len(unmarked(text)) - len(shown))


def _blank(text: str) -> str:
    return MARK * len(unmarked(text))


class ReplyParser:
    """Splits a reply into reasoning, content and calls as it arrives: marked text, in pieces cut at any character.

    Everything from the first end marker on (`<turn|>`, `<eos>`, `<pad>`, or the `<|tool_response>` after calls) is
    dropped, unless the marker is inside a closed thought or a call. An empty thought is dropped too; several get a line
    each. A thought that is never closed, as in a truncated reply, goes up to the reply's end.

    malformed  the calls so far that do not follow the format, unmarked
    """

    def __init__(self, *, reasoning_open: bool = False, exact: bool = False) -> None:
        """`reasoning_open` says that the prompt itself ended inside a thought, after the channel's name; `exact` that
        white space around the content was requested, and stays."""
        self.malformed: list[str] = []
        self._segmenter = _Segmenter(reasoning_open=reasoning_open)
        self._trimmed_content = None if exact else _Trimmed()
        self._trimmed_reasoning = _Trimmed()

    def push(self, text: str) -> list[Part]:
        """Return the parts that have become certain with one more piece."""
        return [part for segment in self._segmenter.push(text) for part in self._parts(segment)]

    def finish(self) -> list[Part]:
        """Return the parts that were held back, now that no more text will come."""
        return [part for segment in self._segmenter.push("", final=True) for part in self._parts(segment)]

    def _parts(self, segment: "_Segment") -> Iterator[Part]:
        text = unmarked(segment.text)
        if segment.kind == "thought":
            if ready := self._trimmed_reasoning.push(text):
                yield Reasoning(ready)
            return
        self._trimmed_reasoning.separate("\n")
        if segment.call is not None:
            yield segment.call
        elif segment.kind != "markup":
            if segment.kind == "malformed":
                self.malformed.append(text)
            if ready := text if self._trimmed_content is None else self._trimmed_content.push(text):
                yield Content(ready)


class _Trimmed:
    """Trims text that comes in pieces: white space is held back until something follows it."""

    def __init__(self) -> None:
        self._begun, self._fresh, self._space = False, True, ""

    def separate(self, separator: str) -> None:
        """Put `separator`, instead of white space, between the text so far and any text to come."""
        self._fresh, self._space = True, separator if self._begun else ""

    def push(self, text: str) -> str:
        """Return what is certain with one more piece."""
        text = text.lstrip() if self._fresh else text
        ready = text.rstrip()
        if not ready:
            self._space += text
            return ""
        space, self._space = self._space, text[len(ready) :]
        self._begun, self._fresh = True, False
        return space + ready


_Kind = Literal["content", "thought", "call", "malformed", "markup"]
"""What a stretch of a reply is. Markup opens or closes a thought, or follows the reply's end."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of a reply, as written."""

    kind: _Kind
    text: str
    call: ToolCall | None = None


class _Segmenter:
    """Cuts a reply into segments as it arrives; their texts, joined, are all of the reply that is certain."""

    def __init__(self, *, reasoning_open: bool) -> None:
        self._text, self._at, self._searched = "", 0, 0
        self._state: Callable[[bool], _Segment | None] = self._thought if reasoning_open else self._content

    def push(self, text: str, *, final: bool = False) -> list[_Segment]:
        """Return the segments that have become certain with one more piece; all that are left if it is `final`."""
        self._text += text
        return list(iter(lambda: self._state(final), None))

    # A state returns the next segment and moves on; None if the text at hand is used up or does not decide.

    def _content(self, final: bool) -> _Segment | None:
        landmark = _LANDMARK.search(self._text, self._at)
        if landmark is None:
            return self._take("content", self._certain(_LANDMARKS, final))
        if landmark.start() > self._at:
            return self._take("content", landmark.start())
        if landmark[0] == _CALL_OPEN:
            return self._call(landmark.end(), final)
        if landmark[0] == _CHANNEL_OPEN:
            return self._channel(landmark.end(), final)
        self._state = self._rest
        return self._rest(final)

    def _channel(self, start: int, final: bool) -> _Segment | None:
        """The marker that opens a thought, up to `start`, and the channel's name."""
        if not final and THOUGHT.startswith(self._text[start : start + len(THOUGHT) + 1]):
            return None
        name = _CHANNEL_NAME.match(self._text, start)
        self._state = self._thought
        return self._take("markup", name.end() if name else start)

    def _thought(self, final: bool) -> _Segment | None:
        close = self._text.find(_CHANNEL_CLOSE, self._at)
        if close > self._at:
            return self._take("thought", close)
        if close == self._at:
            self._state = self._content
            return self._take("markup", close + len(_CHANNEL_CLOSE))
        ending = _ENDING.search(self._text, self._at)  # belongs to the thought if that is closed later
        if ending is None:
            return self._take("thought", self._certain((_CHANNEL_CLOSE, *_ENDINGS), final))
        if final and ending.start() == self._at:
            self._state = self._rest
            return self._rest(final)
        return self._take("thought", ending.start())

    def _call(self, start: int, final: bool) -> _Segment | None:
        """The call whose opening marker ends at `start`. It is not read before it may have ended."""
        searched = max(start, self._searched)
        if not final and not _CALL_END.search(self._text, searched):
            self._searched = max(start, self._certain(_CALL_ENDS, final))
            return None
        try:
            call, end = read_call(self._text, start)
            return self._take("call", end, call)
        except CallError as error:
            if error.undecided and not final:
                return None
        return self._malformed(start, final)

    def _malformed(self, start: int, final: bool) -> _Segment | None:
        """A malformed call reaches to its closing marker, or to the next landmark if that comes first."""
        found = _CALL_END.search(self._text, start)
        if found is None:
            return self._take("malformed", len(self._text)) if final else None
        return self._take("malformed", found.end() if found[0] == CALL_CLOSE else found.start())

    def _rest(self, final: bool) -> _Segment | None:
        return self._take("markup", len(self._text))

    def _take(self, kind: _Kind, end: int, call: ToolCall | None = None) -> _Segment | None:
        start, self._at = self._at, end
        return _Segment(kind, self._text[start:end], call) if end > start else None

    def _certain(self, markers: tuple[str, ...], final: bool) -> int:
        """Where the text ends, or before what may be the beginning of one of the markers."""
        begun = -1 if final else self._text.rfind(MARK, self._at)
        may_be_one = begun >= 0 and any(marker.startswith(self._text[begun:]) for marker in markers)
        return begun if may_be_one else len(self._text)
