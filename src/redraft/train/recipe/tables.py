"""From a parsed TOML table to its dataclass: names and types are checked here, values by the dataclass itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from redraft.errors import SettingError
from redraft.train.recipe.checks import check

_LARGEST = 2**63
"""TOML guarantees 64-bit integers; Python would read longer ones."""

_EPOCHS = {"epochs", "num_epochs", "num_train_epochs"}
"""What other trainers have in place of steps."""


def from_table(cls: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    """An instance of the dataclass `cls`, whose fields may again be dataclasses; `where` is its name in messages.

    Raises `SettingError` for an unknown or missing setting and for a value of the wrong type.
    """
    known = {f.name: f for f in dataclasses.fields(cls)}
    if epochs := sorted(_EPOCHS & (set(raw) - set(known))):
        raise SettingError(
            f"{where}: there is no setting {epochs[0]!r}, because documents are drawn at random; give optimizer.steps. "
            "`redraft train --check` says how many steps an epoch takes."
        )
    if unknown := sorted(set(raw) - set(known)):
        raise SettingError(f"{where}: unknown setting {unknown[0]!r}; known settings are {', '.join(known)}.")
    required = {n for n, f in known.items() if f.default is f.default_factory is dataclasses.MISSING}
    if missing := sorted(required - set(raw)):
        raise SettingError(f"{where}: {missing[0]} is missing.")
    hints = get_type_hints(cls)
    return cls(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in raw.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) is UnionType:  # an optional table
        hint = get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        check(isinstance(value, Mapping), where, value, "a table")
        return from_table(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        check(isinstance(value, list | tuple), where, value, "a list")
        return tuple(_convert(get_args(hint)[0], item, where) for item in value)
    if isinstance(value, int):
        check(abs(value) < _LARGEST, where, value, "a number of at most 64 bits")
    if get_origin(hint) is Mapping:
        check(isinstance(value, Mapping), where, value, "a table")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type):
        ok = isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)
        check(ok, where, value, f"of type {hint.__name__}")
    return value
