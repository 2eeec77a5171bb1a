"""What editing returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redraft.editing.spans import Span, changed_share, unified_diff
from redraft.filling.result import WrittenText


@dataclass(frozen=True, kw_only=True, slots=True)
class EditResult(WrittenText):
    """An edited text. Nothing outside the span differs.

    span       (start, end) of what was edited, in characters of the old text
    old, text  the span's old and new text
    full_text  the whole new text

    A part that stays has no tokens, nor has a line end that ends a part, nor a replacement that `next_edit` repeats.
    `steps` and `forwards` are sums over all parts of the span; for `next_edit`, `forwards` includes the passes that
    found the place.
    """

    span: Span
    old: str
    full_text: str
    seconds: float = field(compare=False)

    @classmethod
    def of(cls, text: str, span: Span, written: WrittenText, seconds: float) -> EditResult:
        """What was written in place of a text's span, with the line ends of its place."""
        before, old, behind = text[: span[0]], text[slice(*span)], text[span[1] :]
        placed = written.placed(before, old, behind)
        return cls(
            span=span,
            old=old,
            text=placed.text,
            full_text=before + placed.text + behind,
            tokens=placed.tokens,
            offsets=placed.offsets,
            steps=placed.steps,
            forwards=placed.forwards,
            seconds=seconds,
        )

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
            "tokens": self.tokens_to_dicts(),
            "steps": self.steps,
            "forwards": self.forwards,
            "seconds": round(self.seconds, 4),
        }
