"""What is told while holes are filled or a span is edited: steps, finished texts, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Self

from redraft.diffusion.records import Commit, DenoiseStep
from redraft.errors import SettingError
from redraft.filling.hole import Hole
from redraft.filling.result import WrittenText


@dataclass(frozen=True, kw_only=True, slots=True)
class HoleStep(DenoiseStep):
    """A step of one draft of a hole. The hole comes first in its canvas, and the given text after it follows.

    `canvas_index` is the number of the hole, or of the part of an edit, and `request_id` the draft's rank (`fill`).

    pieces  what each of the hole's positions adds between the given texts, a split character at the token that
            completes it; joined, they are the draft's text, with newlines as line ends
    """

    pieces: tuple[str, ...]

    @classmethod
    def of(cls, record: DenoiseStep, hole: Hole, length: int, *, rank: int, index: int) -> Self:
        """A step of a draft of `length` positions."""
        same = {field.name: getattr(record, field.name) for field in fields(DenoiseStep)}
        pieces = hole.pieces(record.argmax_canvas[:length])
        return cls(**same | {"request_id": rank, "canvas_index": index, "pieces": pieces})


OnRecord = Callable[[HoleStep | Commit], None]
OnProgress = Callable[[int, int], None]
"""Called with how many holes, or parts of an edit, are done, and how many there are: before each and after the last."""


def check_on_record(on_record: object) -> None:
    """Raise `SettingError` if it is not callable."""
    if on_record is not None and not callable(on_record):
        raise SettingError(f"on_record is {on_record!r}; it must be a function that takes a record.", "on_record")


def reporting(on_progress: OnProgress | None) -> OnProgress:
    """The function as it is, or one that does nothing. Raises `SettingError` if it is not callable."""
    if on_progress is None:
        return lambda done, count: None
    if not callable(on_progress):
        sentence = f"on_progress is {on_progress!r}; it must be a function that takes two numbers."
        raise SettingError(sentence, "on_progress")
    return on_progress


@dataclass(frozen=True, slots=True)
class Reports:
    """Tells `on_record` about the hole, or the part of an edit, with the number `index`; or nobody, if it is None."""

    on_record: OnRecord | None = None
    index: int = 0

    def steps(self, records: Iterable[DenoiseStep], hole: Hole, length: int, rank: int) -> None:
        """Tell of further steps of a draft of `length` positions."""
        if self.on_record is not None:
            for record in records:
                self.on_record(HoleStep.of(record, hole, length, rank=rank, index=self.index))

    def commit(self, written: WrittenText) -> None:
        """Tell of the text that was chosen."""
        if self.on_record is not None:
            self.on_record(
                Commit(
                    request_id=0,
                    canvas_index=self.index,
                    token_ids=written.token_ids,
                    text=written.text,
                    finish_reason="stop",
                )
            )


class Foremost:
    """Picks the steps to show of all that `on_record` is told of: those of the likeliest draft that is not done yet."""

    def __init__(self, steps: int) -> None:
        """`steps` is the cap on the steps of a draft."""
        self._steps, self._hole = steps, -1
        self._open = set[int]()

    def takes(self, record: DenoiseStep) -> bool:
        """Whether to show this step; every step must be asked about, in order."""
        if record.canvas_index != self._hole:
            self._hole, self._open = record.canvas_index, set()
        self._open.add(record.request_id)
        taken = record.request_id == min(self._open)
        if record.converged or record.step + 1 == self._steps:  # its last
            self._open.discard(record.request_id)
        return taken
