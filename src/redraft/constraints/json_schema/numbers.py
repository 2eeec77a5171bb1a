"""Decimal numbers between two bounds, as expressions: digits are compared from the left, as people do."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation, localcontext
from functools import lru_cache

from redraft.constraints.expression import EMPTY, NOTHING, Expression, alt, chars, optional, repeat, seq, text
from redraft.errors import ConstraintError

INTEGER_DIGITS = 15
"""Digits before the point where no bound asks for more, and within bounds all digits of a number with a fraction: what
a double holds exactly. With more digits, a reader that rounds could arrive at an excluded bound."""
FRACTION_DIGITS = 9
MOST_DIGITS = 80
"""Up to this many digits before and after the point, bounds are told apart; enough for 256 bits."""
EXACT = Context(prec=2000)
"""Arithmetic that rounds none of the numbers a schema may contain."""

DIGIT = chars([(48, 57)])
_EXPONENT = optional(seq(chars([(69, 69), (101, 101)]), optional(chars([(43, 43), (45, 45)])), DIGIT, optional(DIGIT)))


class RoundedFloat(float):
    """What a double makes of a number in a JSON text that it rounds; `text` is the number as written."""

    text: str


def parse_number(text: str) -> float:
    """A JSON number with a point or an exponent, for `json.loads`."""
    value = float(text)
    try:
        if Decimal(str(value)) == Decimal(text):
            return value
    except InvalidOperation:  # an exponent beyond what a decimal can have
        pass
    rounded = RoundedFloat(value)
    rounded.text = text
    return rounded


def exact(value: float) -> Decimal:
    """A number as it was written, or else as Python prints it."""
    return Decimal(value.text if isinstance(value, RoundedFloat) else str(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """low .. high, None for no bound; `*_open` excludes the bound itself."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False

    @property
    def free(self) -> bool:
        return self.low is None and self.high is None

    @property
    def empty(self) -> bool:
        """Whether no number lies between the bounds."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def both(self, other: Bounds) -> Bounds:
        """The numbers in both."""
        low, low_open = _tighter(self.low, self.low_open, other.low, other.low_open, largest=True)
        high, high_open = _tighter(self.high, self.high_open, other.high, other.high_open, largest=False)
        return Bounds(low=low, high=high, low_open=low_open, high_open=high_open)

    def hold(self, value: Decimal) -> bool:
        """Whether a number lies between the bounds."""
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        return above and (self.high is None or value < self.high or (value == self.high and not self.high_open))

    def hold_multiple(self, divisor: Decimal) -> bool:
        """Whether a multiple of `divisor` lies between the bounds."""
        end, rounding = (self.high, ROUND_FLOOR) if self.low is None else (self.low, ROUND_CEILING)
        if end is None:
            return True
        nearest = (end / divisor).to_integral_value(rounding) * divisor
        inwards = -divisor if self.low is None else divisor
        return self.hold(nearest) or self.hold(nearest + inwards)


UNBOUNDED = Bounds()


def _tighter(
    a: Decimal | None, a_open: bool, b: Decimal | None, b_open: bool, *, largest: bool
) -> tuple[Decimal | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a > b) == largest else (b, b_open)


@lru_cache(maxsize=256)
def number(bounds: Bounds, *, integer: bool, exact: bool = False, fraction: int = FRACTION_DIGITS) -> Expression:
    """JSON numbers within bounds: integers have no point, and only unbounded numbers may have an exponent.

    `exact`: even without bounds, a number has no more digits than a double holds. `fraction`: how many digits may
    follow the point, unless a bound has more.

    Raises `ConstraintError` if every number between the bounds has more than `MOST_DIGITS` digits.
    """
    digits = 0 if integer else fraction
    if bounds.free and not exact:
        return _free(digits) if integer else seq(_free(digits), _EXPONENT)
    with localcontext(EXACT):
        return _bounded(_written(bounds), digits)


def _written(bounds: Bounds) -> Bounds:
    """The bounds, tightened to what `MOST_DIGITS` digits before and after the point can express."""
    step, most = Decimal(10) ** -MOST_DIGITS, Decimal(10) ** MOST_DIGITS - 1
    low, high = bounds.low, bounds.high
    if low is not None:
        low = max(low.quantize(step, ROUND_CEILING), -most)
    if high is not None:
        high = min(high.quantize(step, ROUND_FLOOR), most)
    found = Bounds(
        low=low, high=high, low_open=bounds.low_open and low == bounds.low,
        high_open=bounds.high_open and high == bounds.high,
    )  # fmt: skip
    if not bounds.empty and found.both(Bounds(low=-most, high=most)).empty:
        raise ConstraintError(
            f"A number with more than {MOST_DIGITS} digits before or after its point would be needed "
            "to keep the schema's bounds."
        )
    return found


def _free(fraction: int) -> Expression:
    whole = alt(text("0"), seq(chars([(49, 57)]), repeat(DIGIT, 0, INTEGER_DIGITS - 1)))
    return seq(optional(text("-")), whole, _fraction(fraction))


def _fraction(digits: int) -> Expression:
    return optional(seq(text("."), repeat(DIGIT, 1, digits))) if digits else EMPTY


def _bounded(bounds: Bounds, fraction: int) -> Expression:
    low, high = bounds.low, bounds.high
    parts = []
    if high is None or high >= 0:
        start = low if low is not None and low >= 0 else Decimal(0)
        parts.append(_magnitude(start, bounds.low_open and start == low, high, bounds.high_open, fraction))
    if low is None or low < 0:
        end = None if low is None else -low
        start, start_open = (-high, bounds.high_open) if high is not None and high < 0 else (Decimal(0), True)
        parts.append(seq(text("-"), _magnitude(start, start_open, end, bounds.low_open, fraction)))
    return alt(*parts)


def _magnitude(low: Decimal, low_open: bool, high: Decimal | None, high_open: bool, fraction: int) -> Expression:
    """Non-negative decimals from `low` to `high`."""
    if not fraction:
        low, high = _whole(low, low_open, high, high_open)
        low_open = high_open = False
    if high is not None and high < low:
        return NOTHING
    longest = max(INTEGER_DIGITS, _length(low) + 1) if high is None else _length(high)
    parts = []
    for length in range(_length(low), longest + 1):
        ends = [end for end in (low, high) if end is not None and _length(end) == length]
        places = max(0, min(fraction, INTEGER_DIGITS - length), *(-_exponent(end) for end in ends))
        first = _digits(low, length, places) if _length(low) == length else None
        last = _digits(high, length, places) if high is not None and _length(high) == length else None
        parts.append(_Comparison(first, low_open, last, high_open, length, places).expression())
    return alt(*parts)


def _whole(low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> tuple[Decimal, Decimal | None]:
    """The first and the last integer within bounds; the last is smaller if there is none."""
    floor = low.to_integral_value(rounding="ROUND_CEILING")
    first = floor + 1 if low_open and floor == low else floor
    if high is None:
        return first, None
    ceiling = high.to_integral_value(rounding="ROUND_FLOOR")
    return first, ceiling - 1 if high_open and ceiling == high else ceiling


def _exponent(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return min(exponent, 0)


def _length(value: Decimal) -> int:
    return len(str(abs(int(value))))


def _digits(value: Decimal, length: int, fraction: int) -> str:
    """The digits of a number, `length` before the point and `fraction` after it."""
    return str(abs(int(value.scaleb(fraction)))).rjust(length + fraction, "0")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Decimals with `length` digits before the point, from `low` to `high` (digits with their fraction, or None)."""

    low: str | None
    low_open: bool
    high: str | None
    high_open: bool
    length: int
    fraction: int

    def expression(self) -> Expression:
        if self.low is not None and self.high is not None and self.low > self.high:
            return NOTHING
        return self._from(0, self.low is not None, self.high is not None)

    def _from(self, place: int, on_low: bool, on_high: bool) -> Expression:
        """What may follow `place` digits that so far equal those of the low bound, the high bound, both or neither."""
        if place >= self.length:
            return self._behind(place, on_low, on_high)
        return self._next(place, on_low, on_high)

    def _next(self, place: int, on_low: bool, on_high: bool) -> Expression:
        low = int(self.low[place]) if self.low is not None and on_low else 1 if place == 0 else 0
        high = int(self.high[place]) if self.high is not None and on_high else 9
        ends = {low} if on_low else set()
        ends |= {high} if on_high else set()
        parts = [
            seq(text(str(digit)), self._from(place + 1, on_low and digit == low, on_high and digit == high))
            for digit in sorted(ends)
            if low <= digit <= high
        ]
        between = chars([(48 + d, 48 + d) for d in range(low, high + 1) if d not in ends])
        if between is not NOTHING:
            parts.append(seq(between, self._from(place + 1, False, False)))
        return alt(*parts)

    def _behind(self, place: int, on_low: bool, on_high: bool) -> Expression:
        """At or after the point: the number may end, or continue with a fraction."""
        ended = EMPTY if self._may_end(place, on_low, on_high) else NOTHING
        left = self.length + self.fraction - place
        if left == 0:
            return ended
        more = self._next(place, on_low, on_high) if on_low or on_high else repeat(DIGIT, 1, left)
        return alt(ended, seq(text("."), more) if place == self.length else more)

    def _may_end(self, place: int, on_low: bool, on_high: bool) -> bool:
        low_rest = self.low[place:].strip("0") if self.low is not None else ""
        high_rest = self.high[place:].strip("0") if self.high is not None else ""
        if on_low and (low_rest or self.low_open):
            return False
        return not (on_high and not high_rest and self.high_open)
