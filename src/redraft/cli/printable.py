"""Text for a terminal: a model's made safe, for it may contain escape sequences and invisible characters; counts."""

from __future__ import annotations

import unicodedata

_KEPT = {"\n", "\u200d", "\u200c"}  # the joiners are part of emoji and of several scripts
TAB = "    "


def printable(text: str) -> str:
    """`text` with control, format and unassigned characters written out; line ends stay, tabs become spaces."""
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text.replace("\r\n", "\n")))


def _printable_character(char: str) -> str:
    if char in _KEPT or char.isprintable():
        return char
    if char == "\t":
        return TAB
    if unicodedata.category(char) == "Zs":  # spaces other than the ordinary one
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def counted(count: int, noun: str) -> str:
    """In words: "1 step", "4 canvases"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
