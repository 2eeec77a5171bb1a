r"""Regular expressions as people write them, read into `expression` trees.

The common core of Python's `re` and JSON Schema's ECMA-262: literals, `.`, classes, groups, alternation, greedy and
lazy repetition, anchors, `\d \w \s \D \W \S`, `\n \t \r \f \v \0 \xHH \uHHHH \u{H…} \cX`, Unicode categories like
`\p{L}`. `\d`, `\w` and `\s` mean ASCII; their complements leave out what either dialect counts in, so what is written
obeys both. Look-around, back references and word boundaries are not regular in this form and are refused by name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

from redraft.constraints.automaton import Budget
from redraft.constraints.expression import (
    ANY,
    EMPTY,
    LINE,
    MAX_CODE,
    Expression,
    Machine,
    Mark,
    Ranges,
    alt,
    chars,
    complement,
    repeat,
    seq,
    union,
)
from redraft.constraints.spelling import compile_anchored
from redraft.errors import ConstraintError

MAX_LENGTH = 20_000
MAX_DEPTH = 100

_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_WIDE_SPACE = union([
    (9, 13), (28, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
])  # fmt: skip
_CONTROL = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_LETTER_CASES = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S", "Z", "Zs", "Pd", "Sc"}
_NAMES = {"Letter": "L", "Alphabetic": "L", "Number": "N", "Punctuation": "P", "Uppercase": "Lu", "Lowercase": "Ll"}


def parse_regex(
    pattern: str, *, anchored: bool = True, what: str = "regex", budget: Budget | None = None
) -> Expression:
    """The expression of `pattern`.

    `anchored` (Python's `fullmatch`): the whole text must match. Otherwise, as JSON Schema's `pattern` has it, the text
    must hold a match, and `^` and `$` tie it to the ends. Raises `ConstraintError` for what is malformed or irregular.
    """
    if len(pattern) > MAX_LENGTH:
        raise ConstraintError(f"The {what} has {len(pattern)} characters; at most {MAX_LENGTH} are allowed.")
    inner, start, end = (pattern, True, True) if anchored else _without_anchors(pattern)
    parser = _Parser(inner, what)
    body = parser.run()
    if not start or not end:
        free = repeat(chars(ANY))
        body = seq(EMPTY if start else free, body, EMPTY if end else free)
    return Machine(compile_anchored(body, budget or Budget()), None) if parser.has_anchors else body


def _without_anchors(pattern: str) -> tuple[str, bool, bool]:
    """The pattern without a `^` and `$` that plainly belong to all of it, and whether they were there."""
    if "|" in pattern or not pattern.startswith("^"):
        return pattern, False, False
    escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    end = len(pattern) > 1 and pattern.endswith("$") and escapes % 2 == 0
    return pattern[1 : len(pattern) - end], True, end


class _Parser:
    def __init__(self, pattern: str, what: str) -> None:
        self._pattern, self._what = pattern, what
        self._at = 0
        self._depth = 0
        self._wider: list[tuple[int, int]] = []
        self.has_anchors = False

    def run(self) -> Expression:
        found = self._alternatives()
        if self._at < len(self._pattern):
            self._fail("has an unbalanced parenthesis")
        return found

    def _alternatives(self) -> Expression:
        found = [self._items()]
        while self._take("|"):
            found.append(self._items())
        return alt(*found)

    def _items(self) -> Expression:
        """Items up to `|`, `)` or the end."""
        items = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            items.append(self._quantified(self._atom()))
        return seq(*items)

    def _atom(self) -> Expression:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return chars(self._class())
        if char == ".":
            return chars(LINE)
        if char == "\\":
            return self._anchor() or chars(self._escape(inside=False))
        if char in "^$":
            self.has_anchors = True
            return Mark(char)
        if char in "*+?":
            self._fail(f"has a {char!r} with nothing to repeat")
        return chars([(ord(char), ord(char))])

    def _anchor(self) -> Expression | None:
        """What stands behind a backslash, if it is an anchor."""
        for letter, sign in (("A", "^"), ("Z", "$"), ("z", "$")):
            if self._take(letter):
                self.has_anchors = True
                return Mark(sign)
        return None

    def _group(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nests groups deeper than {MAX_DEPTH}")
        self._group_head()
        found = self._alternatives()
        if not self._take(")"):
            self._fail("has an unbalanced parenthesis")
        self._depth -= 1
        return found

    def _group_head(self) -> None:
        if not self._take("?"):
            return
        if self._take(":"):
            return
        for sign, name in (("=", "look-ahead"), ("!", "look-ahead"), ("<=", "look-behind"), ("<!", "look-behind")):
            if self._pattern.startswith(sign, self._at):
                self._fail(f"uses {name}, which is not supported")
        if self._take("P<") or self._take("<"):
            end = self._pattern.find(">", self._at)
            if end < 0:
                self._fail("has an unfinished group name")
            self._at = end + 1
            return
        self._fail(f"uses the group (?{self._pattern[self._at : self._at + 1]}, which is not supported")

    def _quantified(self, item: Expression) -> Expression:
        while self._at < len(self._pattern):
            bounds = self._bounds()
            if bounds is None:
                return item
            if not self._take("?"):  # lazy and greedy match the same strings
                self._take("+")
            item = repeat(item, *bounds)
        return item

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._pattern[self._at] != "{":
            return None
        end = self._pattern.find("}", self._at)
        parts = self._pattern[self._at + 1 : end].split(",") if end > 0 else []
        if len(parts) not in (1, 2) or not all(p.isdecimal() or (i and not p) for i, p in enumerate(parts)):
            return None  # a brace that is no quantifier stands for itself
        self._at = end + 1
        least = int(parts[0])
        most = least if len(parts) == 1 else int(parts[1]) if parts[1] else None
        if most is not None and most < least:
            self._fail(f"has the empty repetition {{{least},{most}}}")
        return least, most

    def _class(self) -> Ranges:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        self._wider = []
        while not self._take("]"):
            if self._at >= len(self._pattern):
                self._fail("has an unfinished class [")
            found += self._class_item()
        return complement(union([*found, *self._wider])) if negated else union(found)

    def _class_item(self) -> Ranges:
        low = self._class_char()
        if len(low) != 1 or low[0][0] != low[0][1] or not self._range_follows():
            return low
        self._at += 1
        high = self._class_char()
        if len(high) != 1 or high[0][0] != high[0][1]:
            return union([*low, (45, 45), *high])
        if high[0][0] < low[0][0]:
            self._fail(f"has the empty range {chr(low[0][0])}-{chr(high[0][0])}")
        return ((low[0][0], high[0][0]),)

    def _range_follows(self) -> bool:
        return self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)

    def _class_char(self) -> Ranges:
        char = self._next()
        return self._escape(inside=True) if char == "\\" else ((ord(char), ord(char)),)

    def _escape(self, *, inside: bool) -> Ranges:
        char = self._next()
        if (known := _shorthand(char)) is not None:
            if inside and char in "dws":  # a complement leaves out what either dialect counts in
                self._wider += complement(_shorthand(char.upper()) or ())
            return known
        if char in _CONTROL:
            return ((_CONTROL[char], _CONTROL[char]),)
        if char in "xu":
            code = self._hexadecimal(char)
            return ((code, code),)
        if char == "c":
            code = ord(self._next()) % 32
            return ((code, code),)
        if char in "pP":
            return self._category(negated=char == "P")
        if char == "b" and inside:
            return ((8, 8),)
        if char == "0":
            return ((0, 0),)
        if char.isascii() and char.isalnum():
            kinds = {"b": "a word boundary", "B": "a word boundary", "k": "a back reference"}
            self._fail(f"uses {kinds.get(char, 'a back reference' if char.isdecimal() else 'the escape')} "
                       f"\\{char}, which is not supported")  # fmt: skip
        return ((ord(char), ord(char)),)

    def _hexadecimal(self, kind: str) -> int:
        if kind == "u" and self._take("{"):
            end = self._pattern.find("}", self._at)
            digits, after = self._pattern[self._at : end], end + 1
        else:
            width = 2 if kind == "x" else 4
            digits, after = self._pattern[self._at : self._at + width], self._at + width
        try:
            code = int(digits, 16)
        except ValueError:
            self._fail(f"has an unfinished \\{kind}")
        if code > MAX_CODE:
            self._fail(f"names the character {digits}, which does not exist")
        self._at = after
        return code

    def _category(self, *, negated: bool) -> Ranges:
        end = self._pattern.find("}", self._at)
        if not self._take("{") or end < 0:
            self._fail("has an unfinished \\p")
        name = self._pattern[self._at : end]
        name = _NAMES.get(name, name)
        if name not in _LETTER_CASES:
            self._fail(f"uses the Unicode property {name!r}, which is not supported")
        self._at = end + 1
        ranges = _category_ranges(name)
        return complement(ranges) if negated else ranges

    def _take(self, word: str) -> bool:
        found = self._pattern.startswith(word, self._at)
        self._at += len(word) if found else 0
        return found

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            self._fail("ends in the middle of an escape or class")
        self._at += 1
        return self._pattern[self._at - 1]

    def _fail(self, sentence: str) -> NoReturn:
        shown = self._pattern if len(self._pattern) <= 80 else self._pattern[:77] + "..."
        raise ConstraintError(f"The {self._what} {shown!r} {sentence}.")


def _shorthand(char: str) -> Ranges | None:
    match char:
        case "d":
            return _DIGIT
        case "w":
            return _WORD
        case "s":
            return _SPACE
        case "D":
            return complement(_category_ranges("Nd"))
        case "W":
            return complement(_word_characters())
        case "S":
            return complement(_WIDE_SPACE)
    return None


@lru_cache(maxsize=32)
def _category_ranges(name: str) -> Ranges:
    return _found(lambda char: unicodedata.category(char).startswith(name))


@lru_cache(maxsize=1)
def _word_characters() -> Ranges:
    return union([*_found(str.isalnum), (95, 95)])


def _found(holds: Callable[[str], bool]) -> Ranges:
    return union((code, code) for code in range(MAX_CODE + 1) if holds(chr(code)))
