"""A text is taken apart as a backtracking matcher does it, without its time."""

import random
import re
import time
from functools import partial
from typing import Any

import pytest

from redraft.constraints import read_template
from redraft.constraints.automaton import Budget
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
            assert split(parts, text, Budget()) == (list(found.groups()) if found else None), (patterns, text)
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


@pytest.mark.parametrize(
    ("template", "text"), [("{a:/((a*b*)*c*)*/}!", "a" * 5000), ("{a:text}{b:text}{c:text}!", "x" * 20000)]
)
def test_reading_has_a_time_limit(monkeypatch: pytest.MonkeyPatch, template: str, text: str) -> None:
    monkeypatch.setattr("redraft.constraints.template.Budget", partial(Budget, seconds=0.2))
    with pytest.raises(ConstraintError, match=r"Matching the template took more than 0\.2 s; make it simpler\."):
        read_template(template, text)


def test_a_hole_with_anchors_holds_what_they_allow() -> None:
    with pytest.raises(ConstraintError, match="does not fit"):
        read_template("{x:/^[^b]+$/}", "abc")


@pytest.mark.parametrize(("template", "text", "values"), [
    ("{a:/.+/}{b:text}", "ab\ncd", {"a": "ab", "b": "\ncd"}), ("{a:/(x|yz)/}{b:text}", "yzq", {"a": "yz", "b": "q"}),
    ("{d:date}{t:text}", "2026-01-31 on", {"d": "2026-01-31", "t": " on"}),
    ("{d:date} {t}", "2028-02-29 on", {"d": "2028-02-29", "t": "on"}),
    ("{a:str<3}{b:str<3}", "abcd", {"a": "ab", "b": "cd"}), ("{a:int<10}{b:int}", "512", {"a": 5, "b": 12}),
    (r"{a:/\{[a-z]+/}{b:/[}/]{2}x?/}", "{ab}/x", {"a": "{ab", "b": "}/x"}), ("{a:/[]}]a/}", "}a", {"a": "}a"}),
    ("{a:/x|/y} {b:/z/}", "/y z", {"a": "/y", "b": "z"}),
    ("{a:/^[a-z]+$/}{b:text}", "abc", {"a": "ab", "b": "c"}), ("{a:/^[a-z]+?/}{b:str}", "abc", {"a": "a", "b": "bc"}),
    ("{a:/(?!no)(x|[a-z]+)/}{b:text}", "abc", {"a": "ab", "b": "c"}), ("{a:/(b|^.)*/}{b}", "ab", {"a": "a", "b": "b"}),
    ("{t} {d:date}", "on or by 2026-01-31", {"t": "on or by", "d": "2026-01-31"}),
    ("{a:text<=40}{b:text<=40}", "é" * 80, {"a": "é" * 40, "b": "é" * 40}), ("{x:int}", "007", {"x": 7}),
])  # fmt: skip
def test_what_is_read_is_what_a_hole_can_hold(template: str, text: str, values: dict[str, str]) -> None:
    assert read_template(template, text) == values


def test_a_number_too_long_for_a_hole_does_not_fit() -> None:
    with pytest.raises(ConstraintError, match="does not fit"):
        read_template("{x:int}", "9" * 5000)


@pytest.mark.parametrize(("template", "text"), [
    ("{d:date}", "2023-02-29"), ("{a:uuid}", "zzz"), ("{a:ipv4}", "999.1.1.1"), ("{a:int<120}", "120"),
    ("{a:float<=1}", "1.5"), ("{a:email}", "no at"),
])  # fmt: skip
def test_what_a_hole_cannot_hold_is_not_read(template: str, text: str) -> None:
    with pytest.raises(ConstraintError, match="does not fit"):
        read_template(template, text)


@pytest.mark.parametrize(("template", "text", "name"), [(5, "x", "template"), ("{a:int}", 5, "text")])
def test_only_texts_are_read(template: Any, text: Any, name: str) -> None:
    with pytest.raises(ConstraintError, match=f"The {name} must be a string, not int"):
        read_template(template, text)
