"""Replies taken apart into reasoning, content and tool calls, in the format of `text.tools`.

A call that does not follow the format is kept as written in `Reply.content` and listed in `Reply.malformed`: generated
text is not the caller's mistake, so nothing is raised, and nothing that the model wrote is lost.

Everything here reads marked text (`text.marks`).
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

from redraft.text import tools
from redraft.text.marks import MARK, STRINGS, mark_all, unmarked
from redraft.text.tokenizer import EOS, PAD, TURN_END
from redraft.text.tools import BARE_KEY, MAX_DEPTH, THOUGHT, TOOL_NAME, ToolCall

QUOTE, CALL_OPEN, CALL_CLOSE = MARK + tools.QUOTE, MARK + tools.CALL_OPEN, MARK + tools.CALL_CLOSE
CHANNEL_OPEN, CHANNEL_CLOSE = MARK + tools.CHANNEL_OPEN, MARK + tools.CHANNEL_CLOSE
ENDINGS = tuple(MARK + ending for ending in (TURN_END, EOS, PAD))
LANDMARKS = (CHANNEL_OPEN, CALL_OPEN, MARK + tools.RESPONSE_OPEN, *ENDINGS)
"""What ends a run of content."""
LONGEST_MARK = max(map(len, (CALL_CLOSE, *LANDMARKS)))

CHANNEL_NAME = re.compile(rf"{THOUGHT}(?=\n|{MARK}|\Z)")
"""What names a channel as a thought: a line of its own, or all that there is."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SPACE = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None}
_LANDMARK = re.compile("|".join(map(re.escape, LANDMARKS)))
_CALL_END = re.compile("|".join(map(re.escape, (CALL_CLOSE, *LANDMARKS))))
_ENDING = re.compile("|".join(map(re.escape, ENDINGS)))
_ANY_MARK = re.compile(MARK + f"(?:{'|'.join(map(re.escape, STRINGS))})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """A model turn taken apart, unmarked. `content` and `reasoning` are trimmed, as chat templates trim them."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()


def parse_reply(text: str, *, reasoning_open: bool = False) -> Reply:
    """`read_reply` for text whose tokens are unknown: every string that may be a special token's is treated as one."""
    return read_reply(mark_all(text), reasoning_open=reasoning_open)


def read_reply(text: str, *, reasoning_open: bool = False, exact: bool = False) -> Reply:
    """Split a generated turn, as marked text, into reasoning, content and calls.

    Everything from the first end marker on (`<turn|>`, `<eos>`, `<pad>`, or the `<|tool_response>` after calls) is
    dropped, unless the marker is inside a closed thought or a call. An empty thought channel is dropped too. A channel
    that is never closed, as in a truncated reply, is reasoning up to its end. `reasoning_open` says that the prompt
    itself ended inside a thought, after the channel's name; `exact` that white space around the content was requested,
    and stays.
    """
    parts = _Parts()
    position = _read_channel(text, 0, parts, named=False) if reasoning_open else 0
    while landmark := _LANDMARK.search(text, position):
        parts.content.append(text[position : landmark.start()])
        if landmark[0] == CHANNEL_OPEN:
            position = _read_channel(text, landmark.end(), parts)
        elif landmark[0] == CALL_OPEN:
            position = _read_call(text, landmark.start(), parts)
        else:
            break
    else:
        parts.content.append(text[position:])
    return parts.reply(exact=exact)


@dataclasses.dataclass
class _Parts:
    content: list[str] = dataclasses.field(default_factory=list)
    reasoning: list[str] = dataclasses.field(default_factory=list)
    calls: list[ToolCall] = dataclasses.field(default_factory=list)
    malformed: list[str] = dataclasses.field(default_factory=list)

    def reply(self, *, exact: bool) -> Reply:
        content = unmarked("".join(self.content))
        return Reply(
            content=content if exact else content.strip(),
            reasoning=unmarked("\n".join(filter(None, self.reasoning))),
            tool_calls=tuple(self.calls),
            malformed=tuple(map(unmarked, self.malformed)),
        )


def _read_channel(text: str, start: int, parts: _Parts, *, named: bool = True) -> int:
    """Read a thought from `start`, where its name may come first if it is `named`; returns where the text goes on."""
    found = text.find(CHANNEL_CLOSE, start)
    end = len(text) if found < 0 else found
    thought = text[start:end]
    if found < 0 and (cut := _ENDING.search(thought)):
        thought = thought[: cut.start()]
    name = CHANNEL_NAME.match(thought) if named else None
    parts.reasoning.append(thought[name.end() if name else 0 :].strip())
    return end if found < 0 else found + len(CHANNEL_CLOSE)


def _read_call(text: str, start: int, parts: _Parts) -> int:
    """Read the call that opens at `start`, or keep it as content; returns where the text goes on."""
    reader = _CallReader(text, start + len(CALL_OPEN))
    try:
        parts.calls.append(reader.call())
        return reader.position
    except _FormatError:
        end = _malformed_end(text, start + len(CALL_OPEN))
        parts.content.append(text[start:end])
        parts.malformed.append(text[start:end])
        return end


def _malformed_end(text: str, start: int) -> int:
    """A broken call reaches to its closing marker, or to the next landmark if that comes first."""
    landmark = _LANDMARK.search(text, start)
    limit = landmark.start() if landmark else len(text)
    close = text.find(CALL_CLOSE, start, limit)
    return limit if close < 0 else close + len(CALL_CLOSE)


def may_end_call(text: str, start: int) -> bool:
    """Whether anything from `start` on may end a call; `scan_call` on a growing text needs that."""
    return _CALL_END.search(text, start) is not None


def scan_call(text: str, start: int, *, final: bool) -> tuple[ToolCall | None, int] | None:
    """Read the call that opens at `start` of a text that is still growing, unless it is `final`.

    Returns the call and where the text goes on; None in place of the call if the text up to there is not a call; and
    only None while more text is needed to tell. A result never changes as the text grows.
    """
    reader = _CallReader(text, start + len(CALL_OPEN))
    try:
        return reader.call(), reader.position
    except _FormatError as error:
        unclosed = isinstance(error, _UnclosedError) or len(text) - reader.position < len(CALL_CLOSE)
        if unclosed and not final:
            return None
    end = _malformed_end(text, start + len(CALL_OPEN))
    return None if end == len(text) and not text.endswith(CALL_CLOSE) and not final else (None, end)


def content_alone(text: str, *, reasoning_open: bool = False) -> str:
    """A marked text that may still grow, unmarked, with `MARK` for every character that is not part of the content.

    Those are thoughts, calls, malformed ones too, what follows an end marker, and the markers themselves. More text
    changes nothing here, so what is undecided, such as a call that is not closed, is no content either.
    """
    shown, end = "", 0
    for first, last in _content_spans(text, reasoning_open):
        shown += _blank(text[end:first]) + _ANY_MARK.sub(lambda found: _blank(found[0]), text[first:last])
        end = last
    return shown + _blank(text[end:])


def _blank(text: str) -> str:
    return MARK * len(unmarked(text))


def _content_spans(text: str, reasoning_open: bool) -> Iterator[tuple[int, int]]:
    position = _thought_end(text, 0) if reasoning_open else 0
    while landmark := _LANDMARK.search(text, position):
        yield position, landmark.start()
        if landmark[0] == CHANNEL_OPEN:
            position = _thought_end(text, landmark.end())
        elif landmark[0] == CALL_OPEN:
            scan = scan_call(text, landmark.start(), final=False)
            position = len(text) if scan is None else scan[1]
        else:
            return
    yield position, len(text)


def _thought_end(text: str, start: int) -> int:
    found = text.find(CHANNEL_CLOSE, start)
    return len(text) if found < 0 else found + len(CHANNEL_CLOSE)


class _FormatError(Exception):
    """The text at hand is not a call; never leaves this module."""


class _UnclosedError(_FormatError):
    """A string is not closed yet."""


class _CallReader:
    """A recursive-descent reader for one call. White space between parts is allowed, though templates write none."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def call(self) -> ToolCall:
        self._expect("call:")
        name = self._match(TOOL_NAME)
        arguments = self._object(0)
        self._expect(CALL_CLOSE)
        return ToolCall(name=name, arguments=arguments)

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _FormatError
        if self._peek(QUOTE):
            return self._string()
        if self._peek("{"):
            return self._object(depth)
        if self._peek("["):
            return self._array(depth)
        for word, value in _WORDS.items():
            if self._take(word):
                return value
        return self._number()

    def _object(self, depth: int) -> dict[str, Any]:
        self._expect("{")
        fields: dict[str, Any] = {}
        while not self._take("}"):
            if fields:
                self._expect(",")
            key = self._string() if self._peek(QUOTE) else self._match(BARE_KEY)
            self._expect(":")
            fields[key] = self._value(depth + 1)
        return fields

    def _array(self, depth: int) -> list[Any]:
        self._expect("[")
        items: list[Any] = []
        while not self._take("]"):
            if items:
                self._expect(",")
            items.append(self._value(depth + 1))
        return items

    def _string(self) -> str:
        self._expect(QUOTE)
        end = self.text.find(QUOTE, self.position)
        if end < 0:
            raise _UnclosedError
        value = unmarked(self.text[self.position : end])
        self.position = end + len(QUOTE)
        return value

    def _number(self) -> int | float:
        self._skip_space()
        match = _NUMBER.match(self.text, self.position)
        if not match:
            raise _FormatError
        self.position = match.end()
        try:
            value = float(match[0]) if match[1] or match[2] else int(match[0])
        except ValueError as error:  # Python refuses integers with thousands of digits
            raise _FormatError from error
        if isinstance(value, float) and not math.isfinite(value):
            raise _FormatError
        return value

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._skip_space()
        match = pattern.match(self.text, self.position)
        if not match:
            raise _FormatError
        self.position = match.end()
        return match[0]

    def _peek(self, text: str) -> bool:
        self._skip_space()
        return self.text.startswith(text, self.position)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self.position += len(text) if found else 0
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise _FormatError

    def _skip_space(self) -> None:
        space = _SPACE.match(self.text, self.position)
        assert space is not None
        self.position = space.end()
