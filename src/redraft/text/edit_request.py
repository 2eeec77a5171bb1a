"""How an edit is asked for in a chat: the instruction, and the text with the span between marks.

The model's answer is the whole text again. Training writes its examples with the same function.
"""

from __future__ import annotations

OPEN, CLOSE = "<<<", ">>>"
"""Stand around the span."""


def edit_request(instruction: str, before: str, span: str, behind: str) -> str:
    """The user's message that asks for `span`, which stands between `before` and `behind`, to be changed."""
    task = f"Write the text again; change only the part between {OPEN} and {CLOSE}."
    return f"{instruction}\n\n{task}\n\n{before}{OPEN}{span}{CLOSE}{behind}"
