"""What a filling must be: the constraints of an answer, applied to the text of a hole or of an edited span.

The automaton covers the hole's bytes: the given text that the hole repeats at its first seam, the filling, and the
given text of its last seam. So a constrained filling joins the given text like any other filling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redraft.constraints import build
from redraft.constraints.answer import CPU, AutomatonConstraint
from redraft.constraints.build import NARROWING, WHOLE, check_flag, is_given
from redraft.constraints.resident import resident_ids
from redraft.diffusion.sampler import Distribution, joined
from redraft.errors import ConstraintError, about
from redraft.kernels.vocabulary import NEVER
from redraft.text.tokenizer import Tokenizer

CONSTRAINTS = (*WHOLE, *NARROWING, "strict")
"""The keywords of `redraft.constraints.build` that apply to a hole's text."""


def constraints_of(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The constraints among the keywords; none if they ask for nothing, as `strict` alone does."""
    constraints = {name: keywords[name] for name in CONSTRAINTS if keywords.get(name) is not None}
    with about("strict"):
        check_flag("strict", constraints.get("strict", True))
    return constraints if any(is_given(name, value) for name, value in constraints.items() if name != "strict") else {}


@dataclass(frozen=True, slots=True)
class Language:
    """The texts that a hole may contain, and the lengths in tokens that these can have."""

    constraint: AutomatonConstraint
    lengths: frozenset[int]


def language_of(
    tokenizer: Tokenizer, constraints: dict[str, Any], longest: int, before: bytes = b"", behind: bytes = b""
) -> Language | None:
    """`before`, non-empty text that obeys the constraints, and `behind`, in at most `longest` tokens; None without any.

    Raises `ConstraintError`.
    """
    found = build(tokenizer, around=(before, behind), **constraints, allow_empty=False) if constraints else None
    return None if found is None else Language(found, frozenset(found.lengths(longest)))


def check_language(tokenizer: Tokenizer, constraints: dict[str, Any], shortest: int, longest: int) -> None:
    """Raise `ConstraintError` if no text that obeys has `shortest` to `longest` tokens; needs no model."""
    language = language_of(tokenizer, constraints, longest)
    if language is None or any(length >= shortest for length in language.lengths):
        return
    names, least = " with ".join(constraints), int(language.constraint.automaton.distance[0])
    sentence = f"The shortest text that {names} allows has {least} tokens; at most {longest} are allowed here."
    if least <= longest:
        sentence = f"{names} allows no text of exactly {longest} tokens."
    raise ConstraintError(sentence, next(iter(constraints)))


class Obeying:
    """A `CanvasConstraint`: the first free positions are a text of a language; no special tokens at the others."""

    def __init__(self, language: Language, length: int, never: tuple[int, ...]) -> None:
        self._hole = language.constraint.exactly(length)
        self._length, self._never = length, resident_ids(never)
        free = self._hole.free(length, CPU)
        self._rows = length if free is None else len(free)

    def tokens(self, device: torch.device) -> None:
        """Any token may appear somewhere."""
        return None

    def hold(self, canvas: Tensor) -> Tensor:
        """The canvas with tokens set in place where only one is possible."""
        return torch.cat((self._hole.hold(canvas[: self._length]), canvas[self._length :]))

    def restrict(self, logits: Tensor) -> Distribution:
        """The constrained distribution of tempered logits [F,V] of the positions where there is a choice."""
        others = logits[self._rows :]
        others[:, self._never.on(logits.device)] = NEVER
        parts = [self._hole.restrict(logits[: self._rows])] if self._rows else []
        return joined(*parts, *([Distribution.of(others)] if len(others) else []))

    def free(self, length: int, device: torch.device) -> Tensor | None:
        """int64: positions where more than one token is possible."""
        own = self._hole.free(self._length, device)
        return None if own is None else torch.cat((own, torch.arange(self._length, length, device=device)))
