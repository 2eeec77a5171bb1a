"""A text with holes as the pieces between them."""

from __future__ import annotations

from collections.abc import Sequence

from redraft.errors import PromptError

HOLE = "<|fill|>"
"""Marks a hole in a text."""


def split_pieces(text: str | Sequence[str], suffix: str | None = None) -> tuple[str, ...]:
    """The texts around the holes, one more than there are holes.

    With `suffix`, `text` is the prefix of one hole. A `str` alone is cut at its marks; a list holds the pieces
    themselves, in which a mark is plain text. Raises `PromptError` if there is nothing to fill, or for two adjacent
    holes, whose border would be arbitrary.
    """
    if suffix is not None:
        pieces: tuple[object, ...] = (text, suffix)
    elif isinstance(text, str):
        pieces = tuple(text.split(HOLE))
        if len(pieces) < 2:
            raise PromptError(f"The text has no hole; mark it with {HOLE}, or give a suffix.")
    else:
        pieces = tuple(text) if isinstance(text, Sequence) else (text,)
    return _checked(pieces)


def _checked(pieces: tuple[object, ...]) -> tuple[str, ...]:
    strings = tuple(piece for piece in pieces if isinstance(piece, str))
    if len(strings) != len(pieces) or len(pieces) < 2:
        raise PromptError("Give a prefix and a suffix, a text with holes, or a list of two or more texts around holes.")
    if not any(strings):
        raise PromptError("There is no text around the hole; at least one side must not be empty.")
    for number, piece in enumerate(strings[1:-1], 1):
        if not piece:
            raise PromptError(f"Hole {number + 1} comes directly after hole {number}; make them one hole.")
    return strings


def join_pieces(pieces: Sequence[str], fillings: Sequence[str]) -> str:
    """The whole text: pieces and fillings in turn."""
    return pieces[0] + "".join(filling + piece for filling, piece in zip(fillings, pieces[1:], strict=True))
