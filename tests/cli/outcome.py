"""What a command line run gives, for the tests that look at it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CONTEXT = 1024
"""Tokens that the tests' random model can see."""


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of standard output."""
        return json.loads(self.out.rstrip("\n").split("\n")[-1])


Cli = Callable[..., Outcome]
