"""JSON as the standard has it: a call with NaN among its arguments is one that no reader of replies would accept."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


class _NumberError(json.JSONDecodeError):
    """NaN, or a number that is infinite or too large to hold. Where it stands is not known."""


def loads(text: str | bytes) -> Any:
    """Read JSON. Unlike `json.loads`, refuses NaN and infinities, written as such or as a number too large to hold.

    Raises `ValueError`, or `RecursionError` for what is nested too deep.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def no_json(error: ValueError | RecursionError) -> str:
    """Why a text is not JSON, from the error that `loads` raised."""
    if isinstance(error, _NumberError):
        return error.msg
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"{error.msg.removesuffix(' at')} at {line}column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not {error.encoding.upper()}"
    return "nested too deep" if isinstance(error, RecursionError) else "a number with thousands of digits"


def _refuse_constant(name: str) -> NoReturn:
    raise _NumberError(f"{name} is not a JSON value", name, 0)


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise _NumberError(f"the number {digits:.80} is too large", digits, 0)
    return number
