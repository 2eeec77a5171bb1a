"""How a word or a name changes: its plural, its past, its first letter, and the ways to join it with others."""

from __future__ import annotations

from collections.abc import Sequence


def plural(noun: str) -> str:
    """The regular plural of `noun`."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    return noun[:-1] + "ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else noun + "s"


def past(verb: str) -> str:
    """The regular past of `verb`."""
    if verb.endswith("e"):
        return verb + "d"
    return verb[:-1] + "ied" if verb.endswith("y") and verb[-2] not in "aeiou" else verb + "ed"


def capital(text: str) -> str:
    """`text` with a capital first letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def camel(words: Sequence[str]) -> str:
    """`wind` and `speed` as `windSpeed`."""
    return words[0] + "".join(map(capital, words[1:]))


def spoken(key: str) -> str:
    """`wind_speed`, `windSpeed` and `Wind Speed` as people say them."""
    return " ".join("".join(f" {c.lower()}" if c.isupper() else c for c in key.replace("_", " ")).split())
