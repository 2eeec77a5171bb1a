"""Line ends: a model reads lines that end in a newline, and what it writes gets the line ends of the given text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

Span = tuple[int, int]
"""(start, end) in characters; the end is exclusive."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_END = re.compile(r"\r\n|\r|\n")


def split_lines(text: str) -> list[str]:
    """Lines with their ends. `str.splitlines` would also cut at form feeds and other rare characters."""
    return _LINE.findall(text)


def with_newlines(text: str) -> str:
    """The text with a newline for every line end of another kind."""
    return _END.sub("\n", text) if "\r" in text else text


def spans_in(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans of `with_newlines(text)` as spans of the text itself."""
    pairs = [found.start() - number for number, found in enumerate(re.finditer("\r\n", text))]
    return [(start + bisect_left(pairs, start), end + bisect_left(pairs, end)) for start, end in spans]


def with_line_ends(
    new: str, offsets: Sequence[Span], before: str, old: str, behind: str
) -> tuple[str, tuple[Span, ...]]:
    """`new`, where it replaces `old`, with the line ends of its place, and (start, end) places in it moved accordingly.

    Lines keep the ends of those that they replace; a further line has the end of the line before it. Where a carriage
    return and a newline would meet and be one line end, the new one of them becomes both. Only newlines change, and
    none does if the given text has no other line ends.
    """
    if not any("\r" in text for text in (before, old, behind)):
        return new, tuple(offsets)
    lines, chars, at = split_lines(new), list(new), 0
    last = "" if old.startswith("\n") else before[-1:]  # a span may begin inside a line end
    for line, kind in zip(lines, _kinds(lines, split_lines(old), _nearest(before, old + behind)), strict=True):
        at += len(line)
        if line.endswith("\n") and not line.endswith("\r\n"):
            chars[at - 1] = "\r\n" if line + last == "\n\r" and kind == "\n" else kind
        last = chars[at - 1][-1]
    if lines and last == "\r" and behind.startswith("\n") and not old.endswith("\r"):
        chars[-1] = "\r\n"
    edges = list(accumulate(map(len, chars), initial=0))
    return "".join(chars), tuple((edges[start], edges[end]) for start, end in offsets)


def _kinds(new: list[str], old: list[str], kind: str) -> list[str]:
    """The kind of line end for each new line; `kind` is that of the line before them."""
    same = 0  # lines at the end that stay
    while same < min(len(new), len(old)) and new[-1 - same] == with_newlines(old[-1 - same]):
        same += 1
    added = len(new) - len(old)
    middle = (*old[: len(old) - same], *[""] * added)[: len(new) - same]
    kinds = []
    for line in (*middle, *old[len(old) - same :]):
        kind = found[0] if (found := _END.search(line)) else kind
        kinds.append(kind)
    return kinds


def _nearest(before: str, behind: str) -> str:
    """The last line end of the text before a place, or else the first one of the text behind it."""
    at = max(before.rfind("\n"), before.rfind("\r"))
    if at >= 0:
        return "\r\n" if before[at - 1 : at + 1] == "\r\n" else before[at]
    found = _END.search(behind)
    return found[0] if found else "\n"
