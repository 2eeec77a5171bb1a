"""How an edit is requested in a chat: the instruction, and the text with the span between marks.

The model answers with the whole text again. Training writes its examples with the same function.
"""

from __future__ import annotations

OPEN, CLOSE = "<<<", ">>>"
"""The marks before and after the span."""


def edit_request(instruction: str, before: str, span: str, behind: str) -> str:
    """The user's message that asks to change `span`, which stands between `before` and `behind`."""
    task = f"Write the text again; change only the part between {OPEN} and {CLOSE}."
    return f"{instruction}\n\n{task}\n\n{before}{OPEN}{span}{CLOSE}{behind}"
