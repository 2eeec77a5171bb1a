"""Reads one tool call, in the format of `text.tools`, from marked text (`text.marks`)."""

import math
import re
from typing import Any

from redraft.text import tools
from redraft.text.marks import MARK, unmarked
from redraft.text.tools import BARE_KEY, MAX_DEPTH, TOOL_NAME, ToolCall

QUOTE, CALL_CLOSE = MARK + tools.QUOTE, MARK + tools.CALL_CLOSE

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SPACE = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None}


class CallError(Exception):
    """The text is not a call; `undecided` says that it may become one when more text follows."""

    def __init__(self, *, undecided: bool) -> None:
        super().__init__()
        self.undecided = undecided


def read_call(text: str, start: int) -> tuple[ToolCall, int]:
    """Read the call whose opening marker ends at `start`; return it and where the text goes on.

    Raises `CallError` if there is none.
    """
    reader = _CallReader(text, start)
    try:
        return reader.call(), reader.position
    except _FormatError as error:
        # What is wrong near the end may be a marker or a word that is still being written.
        undecided = isinstance(error, _UnclosedError) or len(text) - reader.position < len(CALL_CLOSE)
        raise CallError(undecided=undecided) from None


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
