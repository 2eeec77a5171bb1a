"""Phrases that a right answer contains: how an item lists them, and how they are found."""

from __future__ import annotations

import re
from typing import Any

from redraft.errors import InputError

_NO_NUMBER_BEFORE = r"(?<!\d[.,])(?<!(?<!\w)[-\u2212])"
"""Neither the digits before a point or a comma, nor a sign; "5-3" holds no sign."""
_NO_NUMBER_BEHIND = r"(?![.,]\d)"


def read_phrases(phrases: Any, field: str) -> tuple[str, ...]:
    """A list of phrases, as an item's `field` gives it. Raises `InputError` for an empty one and for blank phrases."""
    listed = isinstance(phrases, list) and len(phrases) > 0
    if not listed or not all(isinstance(phrase, str) and phrase.strip() for phrase in phrases):
        raise InputError(f"the field {field!r} must hold at least one string, none of them blank")
    return tuple(phrases)


def holds(text: str, phrase: str) -> bool:
    """Whether `text` contains `phrase` as whole words, ignoring case; a number may not be part of another number."""
    before = _NO_NUMBER_BEFORE if phrase[0].isdigit() else ""
    behind = _NO_NUMBER_BEHIND if phrase[-1].isdigit() else ""
    return re.search(rf"(?<!\w){before}{re.escape(phrase)}{behind}(?!\w)", text, re.IGNORECASE) is not None
