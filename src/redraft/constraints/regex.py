r"""Regular expressions as people write them, read into `expression` trees.

The common core of Python's `re` and JSON Schema's ECMA-262: literals, `.`, classes, groups, alternation, greedy and
lazy repetition, anchors, `\d \w \s \D \W \S`, `\n \t \r \f \v \0 \xHH \uHHHH \u{H…} \cX`, Unicode categories like
`\p{L}`. `\d`, `\w` and `\s` mean ASCII; their complements leave out what either dialect includes, so the text written
obeys both (see `readings`). A pattern that must not match is read the other way round, as everything that any dialect
matches. Look-ahead at the start of the text is a condition on its beginning, multiplied with the rest. Elsewhere
look-ahead is refused by name, as are look-behind, back references, word boundaries and possessive repetition.
Where the dialects read the same syntax differently, a regex is read as Python does and a JSON Schema pattern is
refused.
"""

from __future__ import annotations

import re
from typing import NoReturn

from redraft.constraints.automaton import Budget, product
from redraft.constraints.expression import (
    ANY,
    EMPTY,
    LINE,
    MAX_CODE,
    Expression,
    Machine,
    Mark,
    alt,
    chars,
    complement,
    optional,
    repeat,
    seq,
    text,
)
from redraft.constraints.readings import (
    CATEGORIES,
    PROPERTIES,
    SHORTHANDS,
    Readings,
    agreed,
    alike,
    any_of,
    code_of,
    joined,
    rounded,
    shorthand,
    unicode_set,
)
from redraft.constraints.spelling import compile_anchored
from redraft.errors import ConstraintError

MAX_LENGTH = 20_000
MAX_DEPTH = 100

_BOUNDS = re.compile(r"\{(?!\})([0-9]*)(,?)([0-9]*)\}")
_HEXADECIMAL = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_MOST_DIGITS = 9
"""Maximum digits of a repetition's bounds; anything that needs more is far too large."""

_ONE_LINE = complement([(10, 10), (13, 13), (0x2028, 0x2029)])
"""What `.` matches in ECMA-262; Python excludes only the line feed."""
_CONTROL = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_PYTHONS = {"A": "^", "Z": "$", "z": "$", "a": r"\x07"}
"""Letters whose escapes are the letters themselves in ECMA-262, or invalid, and an equivalent in both dialects."""
_NAMES = {"Letter": "L", "Number": "N", "Punctuation": "P"}


def parse_regex(
    pattern: str,
    *,
    anchored: bool = True,
    wide: bool = False,
    coarse: bool = False,
    what: str = "regex",
    budget: Budget | None = None,
) -> Expression:
    """The expression of `pattern`.

    `anchored` (Python's `fullmatch`): the whole text must match. Otherwise, as in JSON Schema's `pattern`, the text
    must contain a match, and `^` and `$` tie it to the ends. `wide`: what any dialect matches, not only what all do;
    with `coarse` also some more, where that saves many states (`readings.rounded`). Where `anchored` or `wide` is set,
    `$` also matches before a line feed at the end, as in Python. Raises `ConstraintError` for malformed or non-regular
    patterns.
    """
    if len(pattern) > MAX_LENGTH:
        raise ConstraintError(f"The {what} has {len(pattern)} characters; at most {MAX_LENGTH} are allowed.")
    inner, start, end = (pattern, True, True) if anchored else _without_anchors(pattern)
    parser = _Parser(inner, pattern, what, start=start, ecma=not anchored, wide=wide, coarse=coarse)
    body, free = parser.run(), repeat(chars(ANY))
    if not anchored:
        body = seq(EMPTY if parser.start else free, body, (optional(text("\n")) if wide else EMPTY) if end else free)
    if not parser.has_anchors and not parser.look_aheads:
        return body
    budget = budget or Budget()
    found = compile_anchored(body, budget, line_feed=anchored or wide)
    for ahead, negative in parser.look_aheads:
        begins = compile_anchored(seq(ahead, free), budget, line_feed=anchored or wide != negative)
        found = product(found, begins, budget, subtract=negative)
    return Machine(found, None, body)


def _without_anchors(pattern: str) -> tuple[str, bool, bool]:
    """The pattern without a `^` and `$` that plainly apply to all of it, and whether they were there."""
    if "|" in pattern or not pattern.startswith("^"):
        return pattern, False, False
    escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    end = len(pattern) > 1 and pattern.endswith("$") and escapes % 2 == 0
    return pattern[1 : len(pattern) - end], True, end


class _Parser:
    def __init__(
        self, pattern: str, given: str, what: str, *, start: bool, ecma: bool, wide: bool, coarse: bool
    ) -> None:
        """Messages show `given`, the pattern with its anchors; `start` tells whether it is tied to the text's start.

        With `ecma`, syntax that the two dialects read differently is refused; otherwise it is read as Python does.
        """
        self._pattern, self._given, self._what, self._ecma = pattern, given, what, ecma
        self._wide, self._coarse = wide, coarse
        self._at = 0
        self._depth = 0
        self._names = set[str]()
        self.start = start
        self.has_anchors = False
        self.look_aheads: list[tuple[Expression, bool]] = []
        """What the text must begin with or, where the flag is True, must not."""

    def run(self) -> Expression:
        """What follows the look-aheads."""
        self._read_look_aheads()
        found = self._items() if self.look_aheads else self._alternatives()
        if self.look_aheads and self._take("|"):
            self._fail("uses look-ahead before a | outside of groups; put what follows the look-ahead in a group")
        if self._at < len(self._pattern):
            self._fail("has an unbalanced parenthesis")
        return found

    def _read_look_aheads(self) -> None:
        """Read those at the start of the text; what must not match is read the other way round."""
        if self._pattern.startswith(("^(?=", "^(?!")):
            self._at, self.start = 1, True
        while self.start and (self._take("(?=") or self._take("(?!")):
            negative = self._pattern[self._at - 1] == "!"
            self._wide ^= negative
            self.look_aheads.append((self._rest_of_group(), negative))
            self._wide ^= negative

    def _alternatives(self) -> Expression:
        found = [self._items()]
        while self._take("|"):
            found.append(self._items())
        return alt(*found)

    def _items(self) -> Expression:
        """Items up to `|`, `)` or the end."""
        items = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            start = self._at
            item = self._atom()
            items.append(self._quantified(item, is_anchor=isinstance(item, Mark) and self._pattern[start] != "("))
        return seq(*items)

    def _atom(self) -> Expression:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._matched(self._class())
        if char == ".":
            return chars(_ONE_LINE if self._ecma and not self._wide else LINE)
        if char == "\\":
            return self._anchor() or self._matched(self._escape(inside=False))
        if char in "^$":
            self.has_anchors = True
            return Mark(char)
        if char in "*+?" or (char == "{" and _BOUNDS.match(self._pattern, self._at - 1)):
            self._fail(f"has a {char!r} with nothing to repeat")
        return chars([(ord(char), ord(char))])

    def _anchor(self) -> Expression | None:
        """What comes after a backslash, if it is an anchor."""
        for letter, sign in (("A", "^"), ("Z", r"\Z"), ("z", r"\Z")):
            if self._take(letter):
                self._refuse_pythons(letter)
                self.has_anchors = True
                return Mark(sign)
        return None

    def _refuse_pythons(self, letter: str) -> None:
        """Refuse an escape that only Python knows, unless the pattern is Python's alone."""
        if self._ecma and letter in _PYTHONS:
            self._fail(f"has the escape \\{letter}, which dialects read differently; write {_PYTHONS[letter]}")

    def _group(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nests groups deeper than {MAX_DEPTH}")
        self._group_head()
        found = self._rest_of_group()
        self._depth -= 1
        return found

    def _rest_of_group(self) -> Expression:
        found = self._alternatives()
        if not self._take(")"):
            self._fail("has an unbalanced parenthesis")
        return found

    def _group_head(self) -> None:
        if not self._take("?"):
            return
        if self._take(":"):
            return
        if self._take("=") or self._take("!"):
            self._fail("uses look-ahead elsewhere than at its start, behind ^, which is not supported")
        if self._take("<=") or self._take("<!"):
            self._fail("uses look-behind, which is not supported")
        if self._take("P<") or self._take("<"):
            end = self._pattern.find(">", self._at)
            if end < 0:
                self._fail("has an unfinished group name")
            self._name(self._pattern[self._at : end])
            self._at = end + 1
            return
        if self._take("P="):
            self._fail("uses a back reference (?P=...), which is not supported")
        self._fail(f"uses the group (?{self._pattern[self._at : self._at + 1]}, which is not supported")

    def _name(self, name: str) -> None:
        if not name.isidentifier():
            self._fail(f"has the group name {name!r}, which is not an identifier")
        if name in self._names:
            self._fail(f"has two groups named {name!r}")
        self._names.add(name)

    def _quantified(self, item: Expression, *, is_anchor: bool) -> Expression:
        bounds = self._bounds()
        if bounds is None:
            return item
        if is_anchor:
            self._fail("repeats an anchor")
        if self._take("+"):
            self._fail("uses possessive repetition, which is not supported")
        lazy = self._take("?")
        if self._bounds() is not None:
            self._fail("repeats a repetition; put the inner one in a group")
        return repeat(item, *bounds, lazy=lazy)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        found = _BOUNDS.match(self._pattern, self._at)
        if found is None:
            return None  # a brace that is not a quantifier stands for itself
        self._at = found.end()
        low, comma, high = found.groups()
        if not low and self._ecma:
            self._fail(f"has the repetition {found[0]}, which dialects read differently; write {{0,{high}}}")
        if max(len(low), len(high)) > _MOST_DIGITS:
            self._fail(f"has a repetition count of more than {_MOST_DIGITS} digits")
        least = int(low or 0)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            self._fail(f"has the empty repetition {{{least},{most}}}")
        return least, most

    def _class(self) -> Readings:
        negated = self._take("^")
        found: list[Readings] = []
        if self._take("]"):
            if self._ecma:
                self._fail("has a class that begins with ], which dialects read differently; write \\]")
            self._at -= 1
            found.append(self._class_item())
        while not self._take("]"):
            if self._at >= len(self._pattern):
                self._fail("has an unfinished class [")
            found.append(self._class_item())
        return joined(found or [alike(())], negated=negated)

    def _class_item(self) -> Readings:
        low = self._class_char()
        first = code_of(low)
        if first is None or not self._range_follows():
            return low
        self._at += 1
        high = self._class_char()
        last = code_of(high)
        if last is None:
            return joined([low, alike(((45, 45),)), high], negated=False)
        if last < first:
            self._fail(f"has the empty range {chr(first)}-{chr(last)}")
        return alike(((first, last),))

    def _range_follows(self) -> bool:
        return self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)

    def _class_char(self) -> Readings:
        char = self._next()
        return self._escape(inside=True) if char == "\\" else _only(ord(char))

    def _matched(self, readings: Readings) -> Expression:
        if not self._wide:
            return chars(agreed(readings))
        return chars(rounded(any_of(readings)) if self._coarse else any_of(readings))

    def _escape(self, *, inside: bool) -> Readings:
        char = self._next()
        if char in SHORTHANDS:
            return shorthand(char)
        if char in _CONTROL:
            self._refuse_pythons(char)
            return _only(_CONTROL[char])
        if char in "xu":
            code = self._hexadecimal(char)
            if self._ecma and (low := _LOW_SURROGATE.match(self._pattern, self._at)) and 0xD800 <= code <= 0xDBFF:
                self._at = low.end()  # ECMA-262 spells a character beyond four digits as two
                code = 0x10000 + (code - 0xD800) * 0x400 + int(low[1], 16) - 0xDC00
            return _only(code)
        if char == "c":
            letter = self._next()
            if not (letter.isascii() and letter.isalpha()):
                self._fail("has a \\c without a letter from A to Z")
            return _only(ord(letter) % 32)
        if char in "pP":
            return self._unicode_set(negated=char == "P")
        if char == "b" and inside:
            return _only(8)
        if char.isascii() and char.isdecimal() and (inside or char == "0"):
            if char != "0" or self._pattern[self._at : self._at + 1].isdecimal():
                self._fail("uses an octal escape, which is not supported; write \\xHH")
            return _only(0)
        if char.isascii() and char.isalnum():
            kinds = {} if inside else {"b": "a word boundary", "B": "a word boundary", "k": "a back reference"}
            self._fail(f"uses {kinds.get(char, 'a back reference' if char.isdecimal() else 'the escape')} "
                       f"\\{char}, which is not supported")  # fmt: skip
        return _only(ord(char))

    def _hexadecimal(self, kind: str) -> int:
        """The code point of an escape whose letter has been read."""
        found = _HEXADECIMAL.match(self._pattern, self._at - 1)
        if found is None:
            self._fail(f"has an unfinished \\{kind}")
        self._at = found.end()
        digits = found[1] or found[2] or found[3]
        if int(digits, 16) > MAX_CODE:
            self._fail(f"names the character {digits}, which does not exist")
        return int(digits, 16)

    def _unicode_set(self, *, negated: bool) -> Readings:
        end = self._pattern.find("}", self._at)
        if not self._take("{") or end < 0:
            self._fail("has an unfinished \\p")
        name = self._pattern[self._at : end]
        name = _NAMES.get(name, name)
        if name not in CATEGORIES | PROPERTIES:
            self._fail(f"uses the Unicode property {name!r}, which is not supported")
        self._at = end + 1
        return unicode_set(name, negated=negated)

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
        shown = self._given if len(self._given) <= 80 else self._given[:77] + "..."
        raise ConstraintError(f"The {self._what} {shown!r} {sentence}.")


def _only(code: int) -> Readings:
    return alike(((code, code),))
