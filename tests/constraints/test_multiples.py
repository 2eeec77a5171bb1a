"""`multipleOf` is exact on decimals: compared with fractions, digit by digit."""

import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from compiled_schemas import compiled
from redraft.constraints.automaton import Budget
from redraft.constraints.json_schema.multiples import common, multiples

STEPS = ["0.01", "0.05", "0.25", "0.125", "0.5", "1.5", "2.5", "12.5", "0.015", "0.3", "7", "10", "1E+2", "1e-7"]


@pytest.mark.parametrize("step", STEPS)
def test_multiples_are_what_fractions_say(step: str) -> None:
    rng, dfa = random.Random(step), multiples(Decimal(step), Budget())
    places = len(format(Decimal(step), "f").partition(".")[2])
    for _ in range(400):
        value = Decimal(rng.randint(-3000, 3000)) * rng.choice([Decimal(step), Decimal(step) / 2, Decimal("0.01")])
        text = format(value, f".{rng.randint(0, places)}f")
        assert dfa.matches(map(ord, text)) == (Fraction(text) % Fraction(step) == 0), text


def test_a_common_multiple_is_the_smallest() -> None:
    assert common(map(Decimal, ("0.4", "0.5"))) == 2
    assert common(map(Decimal, ("0.25", "0.1"))) == Decimal("0.5")
    assert common(map(Decimal, ("1.5", "1"))) == 3


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ({"multipleOf": 0.05}, ["0.05", "0.1", "0.10", "-19.95", "7", "0"], ["0.01", "0.051", "-19.99", "1e1"]),
    ({"multipleOf": 1.5, "minimum": 0, "maximum": 9}, ["0", "1.5", "9", "9.0", "6.0"], ["1", "10.5", "-1.5", "1.50"]),
    ({"multipleOf": 2.5, "exclusiveMinimum": -5, "exclusiveMaximum": 5}, ["-2.5", "0", "2.5"], ["-5", "5", "-5.0"]),
    ({"multipleOf": 0.25, "minimum": 0.3, "maximum": 0.8}, ["0.5", "0.75", "0.50"], ["0.25", "0.8", "1"]),
    ({"multipleOf": 0.5, "not": {"type": "integer"}}, ["0.5", "-1.5"], ["1", "1.0", "0.25"]),
    ({"multipleOf": 0.5, "not": {"const": 1.5}}, ["0.5", "1", "2.5"], ["1.5", "1.25"]),
    ({"allOf": [{"multipleOf": 0.4}, {"multipleOf": 0.5}]}, ["2", "-4"], ["0.4", "1", "2.0"]),
    ({"multipleOf": 1.5, "type": "integer"}, ["3", "-6"], ["1.5", "1", "4"]),
    ({"multipleOf": 0.01, "type": "integer"}, ["3", "-6"], ["1.5"]),
    ({"multipleOf": 1e-10, "minimum": 0, "maximum": 1}, ["0.0000000003", "1"], ["0.00000000003"]),
    ({"multipleOf": 1e-300}, ["0.00000000000003", "7"], []),
])  # fmt: skip
def test_multiples_within_limits(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    dfa = compiled({"type": "number", **schema})
    assert all(dfa.matches(text.encode()) for text in good)
    assert not any(dfa.matches(text.encode()) for text in bad)


def test_what_a_double_holds_bounds_the_digits() -> None:
    dfa = compiled({"type": "number", "multipleOf": 0.01})
    assert dfa.matches(b"9999999999999.99")
    assert dfa.matches(b"999999999999999")
    assert not dfa.matches(b"99999999999999.99")


@pytest.mark.parametrize("step", [0.01, 0.05, 0.25, 1.5, 2.5])
def test_money_steps_take_few_states(step: float) -> None:
    assert len(compiled({"type": "number", "multipleOf": step}).table) < 250
