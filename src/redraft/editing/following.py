"""The next edit: what a person who has just made some edits will do next, near the cursor.

There are two places to look for it. A recent replacement may be due elsewhere: every other occurrence of the replaced
text is a candidate, and the causal pass says whether the current text or its replacement is now likelier there. And a
line may no longer fit: one pass over the lines around the cursor tells how much the model doubts each, and the most
doubtful line is edited.
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any

from redraft.checks import plain
from redraft.diffusion.causal import causal_scores
from redraft.diffusion.prefill import prefill
from redraft.editing.api import EDIT_SETTINGS, Editor, edit
from redraft.editing.drafts import draft_probabilities
from redraft.editing.reading import EditingLLM, as_read
from redraft.editing.result import EditResult
from redraft.editing.spans import (
    Span,
    check_span,
    check_text,
    common_ends,
    count_lines,
    cut,
    line_changes,
    line_of,
    line_span,
)
from redraft.errors import PromptError, SettingError, check_utf8
from redraft.filling.api import HOLE_SETTINGS, check_keywords
from redraft.filling.context import Context
from redraft.filling.obeying import constraints_of
from redraft.filling.result import WrittenText
from redraft.text.line_ends import spans_in, split_lines, with_newlines

RecentEdit = tuple[str, str] | Mapping[str, str]
"""(old, new) text of an edit, or {"old": ..., "new": ...}; the latest last."""

NEXT_EDIT_SETTINGS = (*HOLE_SETTINGS, "strength")
"""The names of a next edit's settings."""
PLACES = 8
"""The most occurrences of a replaced text that are examined, the nearest to the cursor first."""
NEAR = 2000
"""Characters before a place that are read to judge it."""
TAIL = 24
"""How many tokens from a place on are compared."""
LINES = 4
"""How many lines before and after the cursor are checked for doubt."""
EDITS_DIVISOR = 4
"""Recent edits take at most 1/EDITS_DIVISOR of the context, a quarter; the text around the line takes the rest."""
DOUBTFUL = 0.05
"""A line is worth editing if any of its tokens is less probable than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextEdit:
    """A proposed edit. `reason` is "repeat" (a recent replacement, once more) or "doubt" (a line that does not fit).

    For a repeat, `confidence` is the probability of the new text rather than the old one, by the causal pass; for a
    doubt, it is how much the model doubted the line.
    """

    edit: EditResult
    reason: str
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**self.edit.to_dict(), "reason": self.reason, "confidence": round(self.confidence, 4)}


def next_edit(
    llm: EditingLLM, text: str, cursor: int, recent_edits: Sequence[RecentEdit], **keywords: Any
) -> NextEdit | None:
    """The edit that most likely comes next, or None.

    `cursor` is a character offset; settings are those of `edit` without constraints. Raises `PromptError` for a cursor
    outside the text and for edits that are not pairs of texts, and `SettingError`.
    """
    started = time.perf_counter()
    check_span(text, (0, 0))
    cursor = plain(cursor)
    if type(cursor) is not int or not 0 <= cursor <= len(text):
        raise PromptError(
            f"cursor is {cursor!r:.80}; it must be a position in the text, which has {len(text)} characters.", "cursor"
        )
    if isinstance(recent_edits, str) or not isinstance(recent_edits, Sequence):
        raise PromptError("The recent edits must be a list of pairs (old, new).", "recent_edits")
    pairs = [_pair(one, f"recent_edits[{index}]") for index, one in enumerate(recent_edits)]
    if constraints := constraints_of(keywords):
        raise SettingError(
            f"next_edit cannot take {min(constraints)}; it chooses the new text itself.", min(constraints)
        )
    keywords = {name: value for name, value in keywords.items() if value is not None or name not in EDIT_SETTINGS}
    check_keywords(keywords, NEXT_EDIT_SETTINGS)
    Editor.of(llm, None, **keywords)  # refuses what an edit would, even if none results
    found, passes = _repeat(llm, text, cursor, pairs)
    found = found or _doubt(llm, text, cursor, pairs, keywords)
    if found is None:
        return None
    seconds = time.perf_counter() - started
    return replace(found, edit=replace(found.edit, forwards=found.edit.forwards + passes, seconds=seconds))


def edits_between(old: str, new: str) -> tuple[list[tuple[str, str]], int]:
    """The edits that turned `old` into `new`, line by line, top to bottom; and where the last one ends in `new`.

    Kinds of line ends do not count: lines are compared, and returned, with newlines. Raises `PromptError` for what is
    no text.
    """
    check_text(old, "old")
    check_text(new, "new")
    lines = split_lines(new)
    a, b = ([with_newlines(line) for line in text] for text in (split_lines(old), lines))
    same, rest = common_ends(a, b)
    ends, found, cursor = list(accumulate(map(len, lines), initial=0))[same:], list[tuple[str, str]](), 0
    a, b = a[same : len(a) - rest], b[same : len(b) - rest]
    for kind, low, high, start, end in line_changes(a, b):
        if kind == "equal":
            continue
        cursor = ends[end]
        if high - low == end - start:
            found += [pair for pair in zip(a[low:high], b[start:end], strict=True) if pair[0] != pair[1]]
        else:
            found.append(("".join(a[low:high]), "".join(b[start:end])))
    return found, cursor


def _pair(raw: RecentEdit, place: str) -> tuple[str, str]:
    """The old and new text of the recent edit at a place, with newlines."""
    if isinstance(raw, Mapping):
        pair: tuple[object, ...] = raw.get("old"), raw.get("new")
    else:
        pair = tuple(raw) if isinstance(raw, tuple | list) else ()
    texts = [part for part in pair if isinstance(part, str)]
    if len(pair) != 2 or len(texts) != 2:
        raise PromptError(
            f"A recent edit is {raw!r:.80}; it must be a pair (old, new) or a mapping with the texts old and new.",
            place,
        )
    for name, part in zip(("old", "new"), texts, strict=True):
        check_utf8(part, f"{place}.{name}")
    return with_newlines(texts[0]), with_newlines(texts[1])


def core(old: str, new: str) -> tuple[str, str]:
    """What was really replaced: the pair without the common text at its ends, extended to whole words."""
    if old == new:
        return "", ""
    start, end = common_ends(old, new)
    while start and _in_word(old[start - 1]):
        start -= 1
    while end and _in_word(old[len(old) - end]):
        end -= 1
    return old[start : len(old) - end], new[start : len(new) - end]


def _in_word(char: str) -> bool:
    """Whether a character continues a word; a combining mark belongs to the letter before it."""
    return char == "_" or unicodedata.category(char)[0] in "LMN"


def _repeat(llm: EditingLLM, text: str, cursor: int, pairs: Sequence[tuple[str, str]]) -> tuple[NextEdit | None, int]:
    """The latest replacement that is due once more, at the likeliest of its places; and how many passes that took."""
    passes = 0
    for before, after in dict.fromkeys(core(old, new) for old, new in reversed(pairs)):
        if not before.strip():
            continue
        places = occurrences(text, before, after, cursor)
        scored = [(_gain(llm, text, span, after), span) for span in places]
        passes += sum(3 for gain, _ in scored if gain > -math.inf)
        gain, span = max(scored, default=(0.0, (0, 0)))
        if gain > 0:
            confidence = 1 / (1 + math.exp(-gain))
            replaced = EditResult.of(text, span, WrittenText(text=after), 0.0)
            return NextEdit(edit=replaced, reason="repeat", confidence=confidence), passes
    return None, passes


def occurrences(text: str, before: str, after: str, cursor: int) -> list[Span]:
    """Places where `before` occurs as a whole word and not as part of an `after`; nearest to the cursor first.

    Both have newlines, which are also found where the text has other line ends.
    """
    read = with_newlines(text)
    done = [match.span() for match in re.finditer(re.escape(after), read)] if after else []
    due = spans_in(text, [span for span in _words(read, before) if not _inside(span, done)])
    return sorted(due, key=lambda span: abs(span[0] - cursor))[:PLACES]


def _words(text: str, word: str) -> Iterator[Span]:
    """Places where `word` occurs and its first and last letters do not continue a longer word, from left to right."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        cut_off = start > 0 and _in_word(word[0]) and _in_word(text[start - 1])
        goes_on = end < len(text) and _in_word(word[-1]) and _in_word(text[end])
        if not (cut_off or goes_on):
            yield start, end
        start = text.find(word, start + 1 if cut_off or goes_on else end)


def _inside(span: Span, others: list[Span]) -> bool:
    """Whether a span lies within one of others, which are sorted and do not overlap."""
    before = bisect_right(others, span[0], key=itemgetter(0))
    return before > 0 and span[1] <= others[before - 1][1]


def _gain(llm: EditingLLM, text: str, span: Span, after: str) -> float:
    """By how many nats the text is likelier with `after` in place of the span, followed by the same text.

    Takes three passes, or none if there is no room; then it is minus infinity.
    """
    text, (start, end) = as_read(text, span)
    tokenizer, model = llm.tokenizer, llm.model
    behind = text[end : end + 4 * TAIL]
    texts = [tokenizer.encode(word + behind, special=False) for word in (text[start:end], after)]
    surplus = max(0, min(map(len, texts)) - TAIL)
    texts = [ids[: len(ids) - surplus] for ids in texts]
    room = model.config.max_position_embeddings - max(map(len, texts)) - 1
    if room < 1 or not all(texts):
        return -math.inf
    before = tokenizer.encode(text[max(0, start - NEAR) : start], special=False)[-room:]
    cache = model.new_cache(1, model.config.max_position_embeddings - room + len(before))
    last = prefill(model, cache, [[tokenizer.bos_id, *before]])
    scores = causal_scores(model, cache.copy([0, 0]), last.expand(2, -1), texts)
    return sum(scores[1]) - sum(scores[0])


def _doubt(
    llm: EditingLLM, text: str, cursor: int, pairs: Sequence[tuple[str, str]], keywords: Mapping[str, Any]
) -> NextEdit | None:
    """The most doubtful line around the cursor, edited; None if no line is doubtful, or editing changes nothing.

    The edit's `forwards` count the passes that found the line.
    """
    doubts = line_doubts(llm, text, cursor)
    span = max(doubts, key=doubts.__getitem__, default=(0, 0))
    if doubts.get(span, 0.0) <= 1 - DOUBTFUL:
        return None
    result = edit(llm, text, span, _asked_for(llm, pairs), **keywords)
    if result.old == result.text:
        return None
    result = replace(result, forwards=result.forwards + 2 * len(doubts))
    return NextEdit(edit=result, reason="doubt", confidence=doubts[span])


def _asked_for(llm: EditingLLM, pairs: Sequence[tuple[str, str]]) -> str | None:
    """The instruction that names recent edits, as many of the latest as there is room for; None if there are none."""
    room = llm.model.config.max_position_embeddings // EDITS_DIVISOR
    done = ""
    for old, new in reversed(pairs):
        line = f"\n- {old!r} became {new!r}"
        if (tokens := len(llm.tokenizer.encode(line, special=False))) <= room:
            done, room = line + done, room - tokens
    return f"These edits were just made:{done}\nMake the next one." if done else None


def line_doubts(llm: EditingLLM, text: str, cursor: int) -> dict[Span, float]:
    """How much the model doubts each line around the cursor: 1 minus the probability of its least probable token."""
    line = line_of(text, cursor)
    numbers = range(max(1, line - LINES), min(count_lines(text), line + LINES) + 1)
    found: dict[Span, float] = {}
    for number in numbers:
        span = line_span(text, number, number)
        if text[span[0] : span[1]].strip() and (sure := _certainties(llm, text, span)):
            found[span] = 1 - min(sure)
    return found


def _certainties(llm: EditingLLM, text: str, span: Span) -> list[float]:
    """How probable each token of a line is, given both sides; nothing for a line that is too long for a canvas."""
    model, tokenizer = llm.model, llm.tokenizer
    text, span = as_read(text, span)
    near, canvas = max(0, span[0] - NEAR), model.config.canvas_length
    here = cut(tokenizer, text[near : span[1] + NEAR], (span[0] - near, span[1] - near))
    view = canvas - len(here.draft)
    if view < 1:
        return []
    room = model.config.max_position_embeddings - canvas - 1  # besides the canvas and the <bos> token
    before = here.before[max(0, len(here.before) - room) :]
    cache = model.new_cache(1, len(before) + 1)
    last = prefill(model, cache, [[tokenizer.bos_id, *before]])
    context = Context(model=model, cache=cache, last_hidden=last, view=view, canvas=canvas, settings=llm.defaults)
    return draft_probabilities(context, here.hole, here.draft)
