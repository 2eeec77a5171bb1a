"""A canvas in a terminal, drawn from one `DenoiseStep` at a time. Pure: records in, Rich text out.

Every position shows its draft token in a colour that depends on its certainty; positions after a certain end-of-text
are dots.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.style import Style
from rich.text import Text

from redraft.cli.printable import printable
from redraft.diffusion.records import DenoiseStep

SETTLED, LIKELY, UNSURE = 0.05, 0.7, 2.5
"""Upper bounds in nats: below the first a token is shown as written, above the last as noise."""

_FOCUS = Style(meta={"focus": True})
"""Marks the first position that is not settled, which a cropped view keeps in view."""


class Vocabulary(Protocol):
    """What the view needs of a tokenizer."""

    def token_bytes(self, id: int, /) -> bytes: ...

    def is_special(self, id: int, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Palette:
    """Styles by certainty."""

    settled: str
    likely: str
    unsure: str
    noise: str

    def style(self, entropy: float, accepted: bool) -> str:
        """The style of a position with `entropy` nats."""
        if accepted or entropy < SETTLED:
            return self.settled
        return self.likely if entropy < LIKELY else self.unsure if entropy < UNSURE else self.noise


COLOUR = Palette("bold", "yellow", "red", "dim")
MONOCHROME = Palette("bold", "", "italic", "dim")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters with a special meaning."""

    end: str
    newline: str
    more: str
    full: str
    empty: str
    dot: str


UNICODE = Glyphs("\u00b7", "\u21b5", "\u22ee", "\u2501", "\u2500", " \u00b7 ")
ASCII = Glyphs(".", "\\n", ":", "#", "-", " | ")


def look_of(console: Console) -> tuple[Palette, Glyphs]:
    """Palette and characters that suit a console: no colour if it has none, ASCII if it can show no more."""
    palette = MONOCHROME if console.no_color or console.color_system is None else COLOUR
    return palette, ASCII if console.options.ascii_only else UNICODE


def draft_text(
    record: DenoiseStep, vocabulary: Vocabulary, eos_ids: tuple[int, ...], palette: Palette, glyphs: Glyphs
) -> Text:
    """The draft of a canvas: one run of text per position, in the style of its certainty."""
    text = Text()
    focus = next((i for i in range(len(record.entropy)) if not _is_settled(record, i)), len(record.entropy))
    end = _certain_end(record, eos_ids)
    for position, piece in enumerate(_pieces(record, end, vocabulary)):
        start = len(text)
        style = palette.style(record.entropy[position], record.accepted[position])
        if piece is None:
            text.append(glyphs.end, palette.noise)
        else:
            # A newline that the model is not sure of would only make everything after it jump.
            vague = style in (palette.noise, palette.unsure)
            text.append(printable(piece).replace("\n", glyphs.newline) if vague else printable(piece), style)
        if position == focus:
            text.stylize(_FOCUS, max(start - 1, 0))
    return text


def _is_settled(record: DenoiseStep, position: int) -> bool:
    return record.accepted[position] or record.entropy[position] < SETTLED


def _certain_end(record: DenoiseStep, eos_ids: tuple[int, ...]) -> int:
    """The first end-of-text that the model is fairly sure of; the canvas' length if there is none."""
    ends = (i for i, token in enumerate(record.argmax_canvas) if token in eos_ids and record.entropy[i] < LIKELY)
    return next(ends, len(record.argmax_canvas))


def _pieces(record: DenoiseStep, end: int, vocabulary: Vocabulary) -> Iterator[str | None]:
    """Each position's text; None for a dot. A character belongs to the token that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for position, token in enumerate(record.argmax_canvas):
        if position >= end or vocabulary.is_special(token):
            decoder.reset()
            yield None
        else:
            yield decoder.decode(vocabulary.token_bytes(token))


def crop(lines: list[Text], height: int, glyphs: Glyphs, *, top: int = 0) -> tuple[list[Text], int]:
    """At most `height` of the lines with the focus in view, and the first line's number.

    Omitted lines are replaced by a line with their number. The window never moves above `top`, so it only scrolls down
    while a canvas settles.
    """
    if len(lines) <= height:
        return lines, 0
    focus = next((i for i, line in enumerate(lines) if _has_focus(line)), len(lines) - 1)
    last_top = len(lines) - height
    top = min(max(top, focus - height // 2, 0), last_top)
    shown = lines[top : top + height]
    if top > 0:
        shown[0] = Text(f"{glyphs.more} {top + 1} lines above", "dim")
    if top < last_top:
        shown[-1] = Text(f"{glyphs.more} {last_top - top + 1} lines below", "dim")
    return shown, top


def _has_focus(line: Text) -> bool:
    return any(isinstance(span.style, Style) and span.style.meta.get("focus") for span in line.spans)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The numbers of the status line.

    `accepted` of `length` positions are those before a certain end: what comes after it costs nothing and is not shown.
    `speed` is in tokens per second, None if it is not measured.
    """

    canvas_index: int
    step: int
    steps: int
    accepted: int
    length: int
    entropy: float
    speed: float | None

    @classmethod
    def of(
        cls,
        record: DenoiseStep,
        eos_ids: tuple[int, ...],
        *,
        steps: int,
        committed: int = 0,
        seconds: float | None = None,
    ) -> Progress:
        """The progress after a record; `steps` is the cap; `committed` tokens came before it, all within `seconds`."""
        end = _certain_end(record, eos_ids)
        accepted = sum(record.accepted[:end])
        return cls(
            canvas_index=record.canvas_index,
            step=record.step,
            steps=max(steps, record.step + 1),
            accepted=accepted,
            length=end,
            entropy=sum(record.entropy) / len(record.entropy),
            speed=(committed + accepted) / seconds if seconds else None,
        )


BAR = 12


def status_line(progress: Progress, width: int, glyphs: Glyphs, part: str = "") -> Text:
    """One line with as much as fits into `width`; the least important parts are dropped first.

    `part` says what the canvas is of, instead of its number.
    """
    step = f"step {progress.step + 1}/{progress.steps}"
    accepted = f"{progress.accepted}/{progress.length}"
    full = round(BAR * progress.accepted / max(progress.length, 1))
    parts = {
        "canvas": part or f"canvas {progress.canvas_index + 1}",
        "step": step,
        "bar": glyphs.full * full + glyphs.empty * (BAR - full),
        "accepted": f"{accepted} accepted",
        "entropy": f"{progress.entropy:.2f} nats",
    }
    if progress.speed is not None:
        parts["speed"] = f"{rate(progress.speed)} tok/s"
    for dropped in ("", "bar", "entropy", "canvas", "accepted", "speed"):
        parts.pop(dropped, None)
        line = glyphs.dot.join(parts.values())
        if len(line) <= width:
            break
    return Text(line[:width], "dim", no_wrap=True, end="")


def rate(speed: float) -> str:
    """A speed with two significant digits."""
    return f"{speed:.1f}" if speed < 10 else f"{speed:.0f}"
