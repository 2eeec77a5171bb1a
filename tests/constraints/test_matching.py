"""A text is taken apart as a backtracking matcher does it, without its time."""

import random
import re
import time

import pytest

from redraft.constraints import read_template
from redraft.constraints.matching import split
from redraft.constraints.regex import parse_regex
from redraft.errors import ConstraintError


def _pattern(dice: random.Random, depth: int) -> str:
    kind = dice.randrange(6) if depth else 0
    if kind < 2:
        return dice.choice(["a", "b", "ab", "[ab]", ".", ""])
    if kind == 2:
        return _pattern(dice, depth - 1) + _pattern(dice, depth - 1)
    if kind == 3:
        return f"(?:{_pattern(dice, depth - 1)}|{_pattern(dice, depth - 1)})"
    sign = dice.choice(["*", "+", "?", "{2}", "{1,2}", "{2,}"]) + dice.choice(["", "?"])
    return f"(?:{_pattern(dice, depth - 1)}){sign}"


def test_parts_have_what_python_gives_them() -> None:
    dice, fitting = random.Random(0), 0
    for _ in range(400):
        patterns = [_pattern(dice, 3) for _ in range(3)]
        parts = [parse_regex(pattern) for pattern in patterns]
        compiled = re.compile("".join(f"({pattern})" for pattern in patterns))
        for _ in range(6):
            text = "".join(dice.choice("ab") for _ in range(dice.randrange(7)))
            found = compiled.fullmatch(text)
            assert split(parts, text) == (list(found.groups()) if found else None), (patterns, text)
            fitting += found is not None
    assert fitting > 400


@pytest.mark.parametrize(("template", "text"), [
    ("{a:text} {b:text} {c:text} {d:text} {e:text} {f:text}!", "a " * 400), ("{a:/(a+)+b/}", "a" * 400),
    ("{a:/((a*)*)*/}{b:/(a|aa)+/}b", "a" * 60), ("{a:/(a?){999999999}/}b", "aa"),
    ("{a:/([a-z]+ ?)+/}: {b:int}", "word " * 60), ("{a:email}{b:email}{c:email}!", "a.a@a.a" * 20),
])  # fmt: skip
def test_a_text_that_does_not_fit_is_told_soon(template: str, text: str) -> None:
    started = time.thread_time()
    with pytest.raises(ConstraintError, match="does not fit the template"):
        read_template(template, text)
    assert time.thread_time() - started < 5


def test_a_hole_with_anchors_holds_what_they_allow() -> None:
    with pytest.raises(ConstraintError, match="does not fit"):
        read_template("{x:/^[^b]+$/}", "abc")
