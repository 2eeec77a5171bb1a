"""Spans of a text: which characters are edited, which tokens they are, and how much of them has changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from redraft.checks import plain
from redraft.errors import PromptError, about, check_utf8
from redraft.filling.hole import Hole
from redraft.filling.seams import Seam, Seams
from redraft.text.line_ends import split_lines
from redraft.text.tokenizer import Tokenizer

MOST_CHARACTERS = 2000
"""The size up to which texts are compared character by character."""

MOST_LINES = 1000
"""Up to this many lines, any line may show which others belong together; beyond, only one that is not frequent."""

Span = tuple[int, int]
"""(start, end) in characters; the end is exclusive."""

_NEWLINES = re.compile(r"[^\n]*\n|[^\n]+")


def check_text(text: object, name: str) -> None:
    """Raise `PromptError` for what is no `str`, or one that UTF-8 cannot express."""
    if not isinstance(text, str):
        raise PromptError(f"{name} is {text!r:.80}; it must be a string.", name)
    check_utf8(text, name)


@about("span")
def check_span(text: str, span: Span) -> Span:
    """The span itself. Raises `PromptError` unless it is two whole numbers inside the text, in order."""
    check_text(text, "text")
    if not text:
        raise PromptError("There is no text to edit.", "text")
    numbers = tuple(map(plain, span)) if isinstance(span, tuple | list) else ()
    if len(numbers) != 2 or not all(type(number) is int for number in numbers):
        raise PromptError(f"The span is {span!r}; it must be (start, end) in characters.")
    if not 0 <= numbers[0] <= numbers[1] <= len(text):
        raise PromptError(f"The span {numbers} is not inside the text, which has {len(text)} characters.")
    return numbers[0], numbers[1]


def line_span(text: str, first: int, last: int) -> Span:
    """Characters of the lines `first` to `last`, counted from 1, without the last one's line end.

    Lines end as in every editor: at a newline, a carriage return, or both. A byte order mark is before the first line.
    Raises `PromptError` unless they are lines of the text, in order.
    """
    check_text(text, "text")
    first, last = plain(first), plain(last)
    starts, ends, at = list[int](), list[int](), 0
    for line in split_lines(text):
        starts.append(at if at else int(text.startswith("\ufeff")))
        ends.append(at + len(line.rstrip("\r\n")))
        at += len(line)
    if not (type(first) is type(last) is int and 1 <= first <= last <= len(starts)):
        which = f"Line {first} is" if first == last else f"The lines {first} to {last} are"
        raise PromptError(f"{which} not in the text, which has {len(starts)}.")
    return starts[first - 1], ends[last - 1]


def line_of(text: str, cursor: int) -> int:
    """The number, from 1, of the line that contains a character offset; the last one for an offset after all."""
    ends = accumulate(map(len, split_lines(text)))
    return next((number for number, end in enumerate(ends, 1) if cursor < end), max(1, count_lines(text)))


def count_lines(text: str) -> int:
    """How many lines a text has; an empty one after a final line end does not count."""
    return len(split_lines(text))


def changed_share(old: str, new: str) -> float:
    """The share of both texts' characters that are not common to both in order: 0 is equal, 1 nothing in common."""
    return 1 - 2 * _common(old, new) / (len(old) + len(new)) if old != new else 0.0


def _common(old: str, new: str) -> int:
    """The number of characters that two texts have in common, in order.

    Comparison takes quadratic time, so in long texts only equal lines and lines in each other's places are compared.
    """
    start, end = common_ends(old, new)
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(a), len(b)) <= MOST_CHARACTERS:
        blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        return start + end + sum(size for _, _, size in blocks)
    before, after = split_lines(a), split_lines(b)
    if max(len(before), len(after)) == 1:
        return start + end
    found = start + end
    for kind, i, j, k, m in line_changes(before, after):
        if kind == "equal":
            found += sum(map(len, before[i:j]))
        elif kind == "replace":
            found += sum(map(_common, before[i:j], after[k:m]))
    return found


def line_changes(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """What turns some lines into others: (kind, start and end in `old`, start and end in `new`), as `difflib` says it.

    With frequent lines in many places, comparing all of them would take cubic time.
    """
    frequent_ignored = max(len(old), len(new)) > MOST_LINES
    return difflib.SequenceMatcher(None, old, new, autojunk=frequent_ignored).get_opcodes()


def unified_diff(old: str, new: str, name: str) -> str:
    """A unified diff as `git` and `patch` write it, with three lines of context; empty if nothing changed.

    For them only a newline ends a line, a name with a space needs a tab after it, and it does not begin with a slash.
    """
    name = name.lstrip("/") + "\t" * (" " in name)
    a, b = (_NEWLINES.findall(text) for text in (old, new))
    start, end = common_ends(a, b)  # on many repeated lines, `difflib` alone takes minutes or rewrites them all
    first = max(0, start - 3)
    lines = difflib.unified_diff(_numbered(a, start, end), _numbered(b, start, end), f"a/{name}", f"b/{name}")
    head = "".join(islice(lines, 2))
    return head + "".join(
        re.sub(r"(?<=[-+])\d+", lambda found: str(int(found[0]) + first), line) if line.startswith("@@")
        else line[0] + line[3:] + ("" if line.endswith("\n") else "\n\\ No newline at end of file\n")
        for line in lines
    )  # fmt: skip


def _numbered(lines: Sequence[str], start: int, end: int) -> list[str]:
    """The lines that differ, with +0 in front, and up to three common ones on each side, with their distance in front.

    So `difflib` matches these with nothing else. A hunk that lacks some of them would not be applied.
    """
    places = enumerate(lines, -start)
    last = len(lines) - end - start
    return [f"{min(at, 0) or max(at - last + 1, 0):+d}{line}" for at, line in places if -3 <= at < last + 3]


def common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How much two texts or lists of lines have in common at the beginning, and at the end of what remains."""
    least = min(len(old), len(new))
    start = next((at for at in range(least) if old[at] != new[at]), least)
    end = next((at for at in range(least - start) if old[-1 - at] != new[-1 - at]), least - start)
    return start, end


@dataclass(frozen=True, slots=True)
class Cut:
    """A text's tokens cut around a span: those before it, those it touches (the draft), and a hole for them."""

    before: tuple[int, ...]
    draft: tuple[int, ...]
    hole: Hole


def cut(tokenizer: Tokenizer, text: str, span: Span) -> Cut:
    """Tokenise the text and cut it at the tokens that the span touches; their text outside the span makes seams."""
    ids = tokenizer.encode_exact(text)
    start, end = (len(text[:at].encode("utf-8")) for at in span)
    edges = [0]
    for id in ids:
        edges.append(edges[-1] + len(tokenizer.token_bytes(id)))
    low = max(i for i, edge in enumerate(edges) if edge <= start)
    high = min(i for i, edge in enumerate(edges) if edge >= end)
    draft = tuple(ids[low : max(low, high)])
    whole, seams = tokenizer.decode_bytes(draft), Seams.of(tokenizer)
    first, last = whole[: start - edges[low]], whole[len(whole) - (edges[max(low, high)] - end) :]
    hole = Hole(
        tokenizer=tokenizer,
        behind=tuple(ids[max(low, high) :]),
        first=Seam(first, seams.beginning(first)) if first else None,
        last=Seam(last, seams.ending(last)) if last else None,
    )
    return Cut(tuple(ids[:low]), draft, hole)
