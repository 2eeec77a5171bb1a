"""Checks of settings, and the sentence for a wrong one: its name, its value, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from redraft.errors import SettingError, one_of


def check(ok: bool, where: str, value: object, allowed: str) -> None:
    """Raises `SettingError` unless `ok`."""
    if not ok:
        raise SettingError(f"{where} is {value!r}; it must be {allowed}.")


class Checks:
    """Checks a table's settings by name; `prefix` precedes each name. Each check raises `SettingError`."""

    def __init__(self, table: object, prefix: str) -> None:
        """Infinite settings, which TOML can express, are refused at once."""
        self._table, self._prefix = table, prefix
        for name, value in vars(table).items():
            numbers = [n for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, float)]
            check(all(map(math.isfinite, numbers)), prefix + name, value, "finite")

    def that(self, ok: bool, name: str, allowed: str) -> None:
        """The caller says whether the setting `name` is `ok`."""
        check(ok, self._prefix + name, getattr(self._table, name), allowed)

    def has_effect(self, ok: bool, name: str, otherwise: str) -> None:
        """The setting `name` has its default unless it is `ok` to give it; `otherwise` says where it has no effect."""
        if not ok and getattr(self._table, name) != getattr(type(self._table), name):
            raise SettingError(f"{self._prefix}{name} has no effect {otherwise}; remove it.")

    def one_of(self, allowed: Iterable[str], name: str) -> None:
        """The setting is one of some words."""
        words = tuple(allowed)
        self.that(getattr(self._table, name) in words, name, one_of(words))

    def at_least(self, least: int, *names: str) -> None:
        """Each setting is `least` or more."""
        for name in names:
            self.that(getattr(self._table, name) >= least, name, f"at least {least}")

    def above_zero(self, *names: str) -> None:
        """Each setting is more than 0."""
        for name in names:
            self.that(getattr(self._table, name) > 0, name, "above 0")

    def shares(self, *names: str) -> None:
        """Each setting is from 0 to 1."""
        for name in names:
            self.that(0 <= getattr(self._table, name) <= 1, name, "between 0 and 1")

    def positive_shares(self, *names: str) -> None:
        """Each setting is a share that may not be zero."""
        for name in names:
            self.that(0 < getattr(self._table, name) <= 1, name, "above 0 and at most 1")

    def below_one(self, *names: str) -> None:
        """Each setting is a share below 1."""
        for name in names:
            self.that(0 <= getattr(self._table, name) < 1, name, "at least 0 and below 1")
