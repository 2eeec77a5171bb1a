r"""Sets of characters, as each dialect of regular expressions reads them.

`\s` is one thing to Python's `re`, another to ECMA-262, and to most people the spaces of ASCII. A class is built within
each dialect and only then compared: `[\s\S]` is every character in all of them, though no two of them agree on `\s`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np

from redraft.constraints.expression import MAX_CODE, Ranges, complement, union

Readings: TypeAlias = tuple[Ranges, Ranges, Ranges]
"""What ASCII (`re.ASCII`), Python (`re` as it is) and ECMA-262 match."""

_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_ECMA_SPACE = union([
    *_SPACE, (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
    (0x3000, 0x3000), (0xFEFF, 0xFEFF),
])  # fmt: skip

SHORTHANDS = "dwsDWS"
MANY = 100
"""A set of more intervals than this may be rounded."""
CATEGORIES = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S", "Z", "Zs", "Pd", "Sc"}
PROPERTIES = {"Alphabetic", "Uppercase", "Lowercase"}


def alike(ranges: Ranges) -> Readings:
    """What all dialects read alike."""
    return ranges, ranges, ranges


def code_of(readings: Readings) -> int | None:
    """The single character that this is in every dialect, if there is one."""
    first = readings[0]
    single = readings == alike(first) and len(first) == 1 and first[0][0] == first[0][1]
    return first[0][0] if single else None


def joined(parts: Iterable[Readings], *, negated: bool) -> Readings:
    """A class of these parts, or of everything except them."""
    ascii_parts, python_parts, ecma_parts = zip(*parts, strict=True)
    gather = complement if negated else union
    return gather(chain(*ascii_parts)), gather(chain(*python_parts)), gather(chain(*ecma_parts))


def agreed(readings: Readings) -> Ranges:
    """What every dialect matches."""
    return complement(chain(*map(complement, readings))) if readings != alike(readings[0]) else union(readings[0])


def any_of(readings: Readings) -> Ranges:
    """What at least one dialect matches."""
    return union(chain(*readings))


def rounded(ranges: Ranges) -> Ranges:
    """The same set; if it has very many intervals, as letters of all scripts have, up to whole blocks of 64 characters.

    That takes a fifth of the states in UTF-8, where the characters of a block share all bytes but the last. Characters
    of one or two bytes, those of European and Near Eastern scripts, stay as they are.
    """
    if len(ranges) <= MANY:
        return ranges
    return union((low if low < 0x800 else low & ~63, high if high < 0x800 else high | 63) for low, high in ranges)


@lru_cache(maxsize=6)
def shorthand(char: str) -> Readings:
    r"""What one of `SHORTHANDS` matches after a backslash."""
    if char.isupper():
        return joined([shorthand(char.lower())], negated=True)
    written, ecma = {"d": (_DIGIT, _DIGIT), "w": (_WORD, _WORD), "s": (_SPACE, _ECMA_SPACE)}[char]
    return written, _pythons(char), ecma


def _pythons(char: str) -> Ranges:
    everything = np.arange(MAX_CODE + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    return union((found.start(), found.end() - 1) for found in re.finditer(rf"\{char}+", everything))


@lru_cache(maxsize=64)
def unicode_set(name: str, *, negated: bool) -> Readings:
    r"""What `\p{name}` matches for one of `CATEGORIES` or `PROPERTIES`; if `negated`, `\P{name}`."""
    found = alike(_categories(name)) if name in CATEGORIES else _property(name)
    return joined([found], negated=negated)


def _property(name: str) -> Readings:
    """What has a property, which is more than the category of that name: U+2163 is an uppercase number."""
    if name != "Alphabetic":
        return alike(_found(str.isupper if name == "Uppercase" else str.islower))
    sure, possible = _alphabetic("L", "Nl"), _alphabetic("L", "Nl", "M")
    return sure, sure, possible  # some marks are alphabetic, and Python cannot tell which


def _alphabetic(*categories: str) -> Ranges:
    return _found(lambda char: char.isupper() or char.islower() or unicodedata.category(char).startswith(categories))


def _categories(name: str) -> Ranges:
    return _found(lambda char: unicodedata.category(char).startswith(name))


def _found(holds: Callable[[str], bool]) -> Ranges:
    return union((code, code) for code in range(MAX_CODE + 1) if holds(chr(code)))
