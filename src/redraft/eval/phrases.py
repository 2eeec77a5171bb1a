"""Phrases that a right answer contains: how an item lists them, and how they are found."""

from __future__ import annotations

import re
from typing import Any

from redraft.errors import InputError


def read_phrases(phrases: Any, field: str) -> tuple[str, ...]:
    """A list of phrases, as an item's `field` gives it. Raises `InputError` for an empty one and for blank phrases."""
    listed = isinstance(phrases, list) and len(phrases) > 0
    if not listed or not all(isinstance(phrase, str) and phrase.strip() for phrase in phrases):
        raise InputError(f"the field {field!r} must hold at least one string, none of them blank")
    return tuple(phrases)


def holds(text: str, phrase: str) -> bool:
    """Whether `text` contains `phrase` as whole words, ignoring case."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE) is not None
