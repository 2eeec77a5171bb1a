"""JSON values as text that can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


def canonical(value: Any, text: Callable[[str], str] = str) -> str:
    """A JSON value as text: keys sorted, ``2`` equal to ``2.0``, ``true`` never equal to ``1``.

    `text` is applied to every string that is not a key.
    """
    return json.dumps(_plain(value, text), sort_keys=True, ensure_ascii=False)


def _plain(value: Any, text: Callable[[str], str]) -> Any:
    """JSON has one kind of number, so a float without a fraction is an integer."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, text) for key, item in value.items()}
    return [_plain(item, text) for item in value] if isinstance(value, list | tuple) else value
