"""Checks of single values that several kinds of settings share."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from redraft.errors import SettingError

MAX_NUMBER = 2**31 - 1
"""The largest value of a setting that has no bound of its own: GPU buffers hold 32 bits."""


TEMPERATURES = "A schedule has two temperatures: t_max at its first step, and t_min, towards which it falls."
"""What to say to those who look for one, as HTTP clients know it."""


def check_names(given: Iterable[str], known: Iterable[str], unlisted: Iterable[str] = ()) -> None:
    """Raise `SettingError` for a setting that is neither `known` nor `unlisted`; the message lists the known ones."""
    known, unlisted = tuple(known), tuple(unlisted)
    unknown = min((name for name in given if name not in known + unlisted), default=None)
    if unknown is not None:
        close = difflib.get_close_matches(unknown, known, 1, cutoff=0.8)
        meant = f"; did you mean {close[0]!r}? Known" if close else "; known"
        instead = f" {TEMPERATURES}" if unknown == "temperature" and "t_max" in known else ""
        raise SettingError(f"Unknown setting {unknown!r}{meant} settings are {', '.join(known)}.{instead}", unknown)


def require_at_most(most: float, **given: float | None) -> None:
    """Raise `SettingError` naming the first of the `given` settings that is above `most`, infinite, or not a number."""
    for name, value in given.items():
        if value is not None and not value <= most:  # NaN fails every comparison
            raise SettingError(f"{name} is too large or not a number; it may be at most {most:,.0f}.", name)


def plain(value: Any) -> Any:
    """A whole number of another library, such as numpy's, as Python's own; anything else as it is."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, int) else value


def require_type(name: str, value: object, *allowed: type) -> None:
    """Raise `SettingError` for a value of another type; a bool does not count as a number."""
    is_bool = isinstance(value, bool)
    if not isinstance(value, allowed) or (is_bool and bool not in allowed):
        wanted = " or ".join(t.__name__ for t in allowed)
        raise SettingError(f"{name} is {value!r}; it must be of type {wanted}.", name)


def is_positive(value: object) -> bool:
    """Whether a value read from a file is a number above 0 and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
