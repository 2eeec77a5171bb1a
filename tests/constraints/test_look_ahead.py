r"""Look-ahead at the start of a pattern: compared with Python's `re` on all short texts; elsewhere it is refused."""

import itertools
import random
import re

import pytest

from compiled_schemas import check_exact
from redraft.constraints import read_template
from redraft.constraints.automaton import Budget, Dfa
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_codes
from redraft.errors import ConstraintError


def _part(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(7) if depth else 0
    if kind < 2:
        return rng.choice(["a", "b", "ab", "[ab]", ".", "[^a]", "\n", ""])
    if kind < 4:
        return _part(rng, depth - 1) + _part(rng, depth - 1)
    if kind == 4:
        return f"(?:{_part(rng, depth - 1)}|{_part(rng, depth - 1)})"
    if kind == 5:
        return f"({_part(rng, depth - 1)}{rng.choice('^$$')})"
    return f"(?:{_part(rng, depth - 1)}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '{2,}'])}"


def _look_ahead(rng: random.Random) -> str:
    return f"(?{rng.choice('=!')}{_part(rng, 3)}{rng.choice(['', '', '$', '|' + _part(rng, 2)])})"


def _texts(alphabet: str, longest: int) -> list[str]:
    return ["".join(chars) for count in range(longest + 1) for chars in itertools.product(alphabet, repeat=count)]


def _compiled(pattern: str, *, anchored: bool = True, wide: bool = False) -> Dfa:
    return compile_codes(parse_regex(pattern, anchored=anchored, wide=wide), Budget())


@pytest.mark.parametrize(("alphabet", "longest"), [("ab", 6), ("ab\n", 4)])
def test_it_means_what_python_means(alphabet: str, longest: int) -> None:
    rng, texts, matched = random.Random(0), _texts(alphabet, longest), 0
    for _ in range(200):
        pattern = "".join(_look_ahead(rng) for _ in range(rng.randint(1, 3))) + _part(rng, 3) + rng.choice(["", "$"])
        python, ecma = re.compile("^" + pattern), re.compile("^" + pattern.replace("$", r"\Z"))
        whole, tied = _compiled(pattern), _compiled("^" + pattern)
        narrow, wide = (_compiled("^" + pattern, anchored=False, wide=wide) for wide in (False, True))
        for text in texts:
            found = python.fullmatch(text) is not None
            assert whole.matches(map(ord, text)) == tied.matches(map(ord, text)) == found, (pattern, text)
            readings = [python.search(text) is not None, ecma.search(text) is not None]
            assert narrow.matches(map(ord, text)) <= all(readings), (pattern, text)
            assert wide.matches(map(ord, text)) >= any(readings), (pattern, text)
            if "\n" not in text:
                assert narrow.matches(map(ord, text)) == wide.matches(map(ord, text)), (pattern, text)
            matched += any(readings)
    assert matched > 10 * len(texts)


def test_what_any_dialect_takes_for_a_forbidden_beginning_is_not_written() -> None:
    texts = ["a", "é", "é1", "٣", "a\n", "a\nb", "-", ""]
    narrow, wide = (_compiled(r"^(?!\w$)(?!\d)", anchored=False, wide=wide) for wide in (False, True))
    assert [text for text in texts if narrow.matches(map(ord, text))] == ["é1", "a\nb", "-", ""]
    assert [text for text in texts if wide.matches(map(ord, text))] == ["é", "é1", "٣", "a\n", "a\nb", "-", ""]


def test_schemas_and_holes_take_it() -> None:
    check_exact({"type": "string", "pattern": "^(?!x-)(?=[^=]+$)(.|\\n)+$"}, ["x-a", "a=", "", "x", "ax-", "a\nb"])
    check_exact({"not": {"pattern": "^(?!x-)"}}, ["x-a", "a", "", 3])
    check_exact({"patternProperties": {"^(?!x-)": False}, "additionalProperties": {"type": "null"}},
                [{}, {"x-a": None}, {"a": None}])  # fmt: skip
    assert read_template("{a:/(?!x)[a-z]+/}{b:int}", "abc1") == {"a": "abc", "b": 1}
    with pytest.raises(ConstraintError, match="does not fit"):
        read_template("{a:/(?!x)[a-z]+/}!", "xa!")


@pytest.mark.parametrize("pattern", ["a(?=b)", "a(?!b)", "(^(?!a)b)", "b|^(?!a)c", "^(?!(?=a)b)c", "^a|(?!b)"])
def test_elsewhere_it_is_refused(pattern: str) -> None:
    for anchored in (True, False):
        with pytest.raises(ConstraintError, match="uses look-ahead elsewhere than at its start, behind \\^"):
            parse_regex(pattern, anchored=anchored)


@pytest.mark.parametrize(("pattern", "message"), [
    ("^(?<=a)b", "uses look-behind"), ("a(?<!a)", "uses look-behind"), ("^(?!a)b|c", "put what follows the look-ahead"),
    ("^(?!a)*b", "nothing to repeat"), ("^(?!a", "unbalanced"), ("^(?!a))b", "unbalanced"),
])  # fmt: skip
def test_what_is_refused_is_said(pattern: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        parse_regex(pattern)
    with pytest.raises(ConstraintError, match=message):
        parse_regex(pattern, anchored=False)


def test_without_a_start_to_stand_at_it_is_refused_in_a_schemas_pattern() -> None:
    with pytest.raises(ConstraintError, match="elsewhere than at its start"):
        parse_regex("(?!a)b", anchored=False)
