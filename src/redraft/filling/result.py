"""What filling returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Self

from redraft.diffusion.records import DenoiseStep, TokenConfidence
from redraft.text.line_ends import with_line_ends


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenText:
    """What was written between given texts, and how sure the model was.

    text      what was written
    tokens    the tokens that hold this text and how sure the model was of each; the outermost ones may also hold given
              text at a seam
    offsets   for each token the characters of `text` that it covers, (start, end)
    steps     denoising steps of what was chosen
    forwards  passes over one canvas or one text: to read what stands before, of all drafts, and to score them
    """

    text: str
    tokens: tuple[TokenConfidence, ...] = ()
    offsets: tuple[tuple[int, int], ...] = ()
    steps: int = 0
    forwards: int = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)

    @classmethod
    def joined(cls, parts: Sequence[WrittenText]) -> WrittenText:
        """Neighbouring parts as one."""
        starts = list(accumulate((len(part.text) for part in parts), initial=0))[:-1]
        return WrittenText(
            text="".join(part.text for part in parts),
            tokens=tuple(token for part in parts for token in part.tokens),
            offsets=tuple((at + a, at + b) for at, part in zip(starts, parts, strict=True) for a, b in part.offsets),
            steps=sum(part.steps for part in parts),
            forwards=sum(part.forwards for part in parts),
        )

    def placed(self, before: str, old: str, behind: str) -> Self:
        """The same with the line ends of its place, where it replaces `old`."""
        text, offsets = with_line_ends(self.text, self.offsets, before, old, behind)
        return replace(self, text=text, offsets=offsets)

    def tokens_to_dicts(self) -> list[dict[str, Any]]:
        """JSON-ready: each token's place in the text, its entropy in nats, and the step at which it settled."""
        return [
            {
                "token_id": token.token_id,
                "start": start,
                "end": end,
                "entropy": round(token.entropy, 4),
                "settled_step": token.settled_step,
            }
            for token, (start, end) in zip(self.tokens, self.offsets, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filling(WrittenText):
    """What was written into one hole.

    lengths        hole lengths in tokens that were denoised to the end, including tokens that only repeat given text
    before, behind tokens of given text that the model saw on each side
    """

    lengths: tuple[int, ...]
    before: int
    behind: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "text": self.text,
            "tokens": self.tokens_to_dicts(),
            "lengths": list(self.lengths),
            "steps": self.steps,
            "forwards": self.forwards,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class FillResult(WrittenText):
    """A filled text. `full_text` is the given pieces and the fillings in turn, byte for byte.

    The other fields describe a text with one hole. With several holes, they describe the fillings as one text.
    """

    full_text: str
    fillings: tuple[Filling, ...]
    seconds: float = field(compare=False)

    @classmethod
    def of(cls, full_text: str, fillings: Sequence[Filling], seconds: float) -> FillResult:
        """The result of filling all holes of a text, in order."""
        whole = WrittenText.joined(fillings)
        return cls(
            text=whole.text,
            tokens=whole.tokens,
            offsets=whole.offsets,
            steps=whole.steps,
            forwards=whole.forwards,
            full_text=full_text,
            fillings=tuple(fillings),
            seconds=seconds,
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Hole lengths that were denoised to the end, of any hole."""
        return tuple(sorted({length for filling in self.fillings for length in filling.lengths}))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "text": self.text,
            "full_text": self.full_text,
            "token_ids": list(self.token_ids),
            "fillings": [filling.to_dict() for filling in self.fillings],
            "lengths": list(self.lengths),
            "steps": self.steps,
            "forwards": self.forwards,
            "seconds": round(self.seconds, 4),
        }


def confidence(records: Sequence[DenoiseStep], positions: Sequence[int]) -> tuple[TokenConfidence, ...]:
    """How sure the model was about some positions of a canvas, from all its steps."""
    last = records[-1]
    return tuple(
        TokenConfidence(
            token_id=last.argmax_canvas[at], entropy=last.entropy[at], settled_step=_settled_step(records, at)
        )
        for at in positions
    )


def _settled_step(records: Sequence[DenoiseStep], at: int) -> int:
    """The first step from which the argmax never changed again."""
    token = records[-1].argmax_canvas[at]
    changed = (record.step + 1 for record in reversed(records) if record.argmax_canvas[at] != token)
    return next(changed, records[0].step)
