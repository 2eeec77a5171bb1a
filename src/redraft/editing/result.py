"""What editing returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redraft.editing.spans import Span, changed_share, unified_diff
from redraft.engine.request import TokenConfidence
from redraft.filling.result import token_dicts


@dataclass(frozen=True, kw_only=True, slots=True)
class EditResult:
    """An edited text. Nothing outside the span differs.

    span       (start, end) of what was edited, in characters of the old text
    old, text  the span's old and new text
    full_text  the whole new text
    tokens     the new span's tokens and how sure the model was of each; the outermost ones may also hold given text,
               and a line end that ends a part has none; empty if no slip was found, or if `next_edit` repeats a
               replacement
    offsets    for each token the characters of `text` that it covers, (start, end)
    steps      denoising steps of the chosen drafts, over all parts of the span
    forwards   passes over one canvas or one text: to read what stands before, of all drafts, and to score them; for
               `next_edit` also to find the place
    """

    span: Span
    old: str
    text: str
    full_text: str
    tokens: tuple[TokenConfidence, ...]
    offsets: tuple[tuple[int, int], ...]
    steps: int
    forwards: int
    seconds: float = field(compare=False)

    @property
    def changed(self) -> float:
        """How much of the span changed: 0 is nothing, 1 means that old and new have nothing in common."""
        return changed_share(self.old, self.text)

    @property
    def old_text(self) -> str:
        """The whole old text."""
        start, end = self.span
        assert end - start == len(self.old), "the span is the old text's place"
        return self.full_text[:start] + self.old + self.full_text[start + len(self.text) :]

    def diff(self, name: str = "text") -> str:
        """A unified diff of the whole text; empty if nothing changed."""
        return unified_diff(self.old_text, self.full_text, name)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "span": list(self.span),
            "old": self.old,
            "text": self.text,
            "full_text": self.full_text,
            "changed": round(self.changed, 4),
            "tokens": token_dicts(self.tokens, self.offsets),
            "steps": self.steps,
            "forwards": self.forwards,
            "seconds": round(self.seconds, 4),
        }
