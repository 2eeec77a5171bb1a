"""Where an answer appears: live in a terminal, as plain text in a pipe, or nowhere (if only JSON is wanted)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from redraft.cli.answer import INTERRUPTED, Screen, Tally, follow
from redraft.cli.canvas import Progress, Vocabulary, crop, draft_text, look_of, rate, status_line
from redraft.cli.keyboard import silent_keyboard
from redraft.cli.printable import counted, printable
from redraft.diffusion.records import Commit, DenoiseStep, Record
from redraft.settings import resolve_settings

if TYPE_CHECKING:
    from redraft.llm import LLM, Prompt

FRAME_SECONDS = 0.06
"""Redrawing more often would slow down the model without looking smoother."""
READING = "reading the prompt"
COMPILING = "kernels that are new to this machine are compiled first"
_SPARE_LINES = 3
"""A blank line, the status line, and one that stays free so that the terminal never scrolls."""


def show(llm: LLM, prompt: Prompt, *, raw: bool = False, **settings: Any) -> Tally:
    """Answer a prompt like `LLM.generate` while showing it: live in a terminal, as plain text elsewhere."""
    records = llm.stream(prompt, raw=raw, **settings)
    return follow(records, screen_for(llm, settings))


def screen_for(llm: LLM, settings: Mapping[str, Any], *, live: bool = True, json: bool = False) -> Screen:
    """The screen for an answer of `llm` with these settings."""
    steps = resolve_settings(llm.defaults, **settings).steps
    waiting = waiting_for(llm)
    return open_screen(llm.tokenizer, llm.eos_ids, steps=steps, live=live, json=json, waiting=waiting)


def waiting_for(llm: LLM, doing: str = READING) -> str:
    """What is being done, and what a first step may have to wait for."""
    return f"{doing}; {COMPILING}" if llm.model.device.type == "cuda" else doing


def open_screen(
    vocabulary: Vocabulary,
    eos_ids: tuple[int, ...],
    *,
    steps: int,
    live: bool = True,
    json: bool = False,
    timed: bool = True,
    waiting: str = READING,
) -> Screen:
    """The screen that fits standard output and the options; speeds are shown only if `timed`.

    `waiting` says what happens until the first step.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        return SilentScreen() if json else PlainScreen(sys.stdout)
    if live and not console.is_dumb_terminal:
        return LiveScreen(console, vocabulary, eos_ids, steps=steps, timed=timed, waiting=waiting)
    return PlainScreen(sys.stdout, summary_on=console, timed=timed)


class SilentScreen:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, record: Record, tally: Tally) -> None:
        """Nothing to show."""

    def finish(self, tally: Tally) -> None:
        """Nothing to show."""


class PlainScreen(SilentScreen):
    """Committed text, canvas by canvas, and nothing else; exact in a pipe, made printable in a terminal."""

    def __init__(self, out: TextIO, summary_on: Console | None = None, *, timed: bool = True) -> None:
        self._out, self._summary_on, self._timed = out, summary_on, timed

    def show(self, record: Record, tally: Tally) -> None:
        """Write a commit's text at once."""
        if isinstance(record, Commit):
            self._out.write(record.text if self._summary_on is None else printable(record.text))
            self._out.flush()

    def finish(self, tally: Tally) -> None:
        """End the last line."""
        if not tally.text.endswith("\n"):
            self._out.write("\n")
        self._out.flush()
        if self._summary_on is not None:
            self._summary_on.print(summary(tally, timed=self._timed))


class LiveScreen:
    """The draft settles at the bottom of the terminal; committed text is printed above it and stays.

    The last, unfinished line of committed text remains part of the live region, so that the next canvas continues it.
    """

    def __init__(
        self,
        console: Console,
        vocabulary: Vocabulary,
        eos_ids: tuple[int, ...],
        *,
        steps: int,
        timed: bool = True,
        lead: str = "",
        waiting: str = READING,
    ) -> None:
        """`lead` is shown before the draft while it settles; `waiting` says what happens until the first step."""
        self._console, self._vocabulary, self._eos_ids = console, vocabulary, eos_ids
        self._steps, self._timed = steps, timed
        self.lead, self._waiting, self._part = lead, waiting, ""
        self._palette, self._glyphs = look_of(console)
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._keyboard = ExitStack()
        self._open_line = ""
        self._top = self._height = 0
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._keyboard.enter_context(silent_keyboard())
        self._live.start()
        self._live.update(Text(self._waiting, "dim"), refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        with self._keyboard:
            self._live.stop()
            if self._open_line:  # a failure came in between; keep the committed text
                self._console.print(Text(self._open_line))

    def begin(self, part: str, waiting: str) -> None:
        """Say which part of the work comes next; `waiting` is shown until its first step."""
        self._part, self._top, self._height = part, 0, 0
        self._live.update(Text(waiting, "dim"), refresh=True)

    def show(self, record: Record, tally: Tally) -> None:
        """Draw a step, or print what was committed."""
        if isinstance(record, Commit):
            self._commit(record.text)
        elif record.converged or record.step == 0 or time.perf_counter() - self._drawn >= FRAME_SECONDS:
            self._live.update(self._frame(record, tally), refresh=True)
            self._drawn = time.perf_counter()

    def finish(self, tally: Tally) -> None:
        """Leave the answer and one line about it in the terminal."""
        self._live.update(Text(""))
        self._live.stop()
        if self._open_line:
            self._console.print(Text(self._open_line))
        elif not tally.text and tally.finish_reason != INTERRUPTED:
            self._console.print(Text("(empty answer)", "dim italic"))
        self._open_line = ""
        self._console.print(summary(tally, timed=self._timed))

    def _frame(self, record: DenoiseStep, tally: Tally) -> Group:
        width = self._console.width
        draft = draft_text(record, self._vocabulary, self._eos_ids, self._palette, self._glyphs)
        text = Text(printable(self.lead), "dim") + Text(self._open_line) + draft
        room = max(self._console.height - _SPARE_LINES, 1)
        lines, self._top = crop(list(text.wrap(self._console, width)), room, self._glyphs, top=self._top)
        # The status line stays in place when a draft gets shorter.
        self._height = min(max(self._height, len(lines)), room)
        lines += [Text("")] * (self._height - len(lines))
        seconds = tally.seconds if self._timed else None
        progress = Progress.of(
            record, self._eos_ids, steps=self._steps, committed=len(tally.token_ids), seconds=seconds
        )
        return Group(*lines, Text(""), status_line(progress, width, self._glyphs, self._part))

    def _commit(self, text: str) -> None:
        """Print every finished line above the live region and keep the last one open."""
        wrapped = Text(self._open_line + printable(text)).wrap(self._console, self._console.width)
        *finished, last = wrapped or [Text("")]
        self._open_line, self._top, self._height = last.plain, 0, 0
        with self._console:  # one write for both, so that nothing is shown twice
            self._live.update(Text(self._open_line), refresh=True)
            for line in finished:
                self._console.print(line)


def summary(tally: Tally, *, timed: bool = True) -> Text:
    """One dim line: canvases, steps, tokens, time, and how the answer ended if that is worth knowing."""
    stats = tally.stats()
    parts = ["interrupted before the first canvas was committed"]
    if stats is not None:
        parts = [
            counted(stats.canvases, "canvas"),
            f"{_steps(tally.steps)} step{'' if tally.steps == [1] else 's'}",
            counted(stats.tokens, "token"),
            f"{stats.tokens_per_forward:.1f} per forward",
        ]
        parts += [f"{stats.seconds:.1f} s", f"{rate(stats.tokens_per_second)} tok/s"] if timed else []
        ending = {"length": "cut at --max-tokens", INTERRUPTED: "interrupted"}.get(tally.finish_reason or "")
        parts += [ending] if ending else []
    return Text(" \u00b7 ".join(parts), "dim")


def _steps(steps: list[int]) -> str:
    if len(steps) <= 4:
        return " + ".join(map(str, steps))
    return f"{len(steps)} x {sum(steps) / len(steps):.1f}"
