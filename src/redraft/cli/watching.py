"""A filling or an edit while it is made: how far it is, how its canvas settles, and what Ctrl-C left undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from rich.console import Console

from redraft.cli.answer import Tally
from redraft.cli.printable import counted
from redraft.cli.view import LiveScreen, waiting_for
from redraft.diffusion.records import Commit
from redraft.filling.reporting import Foremost, HoleStep

if TYPE_CHECKING:
    from redraft.llm import LLM


class Watch:
    """Shows the likeliest draft that is not done yet, after the text before it; a context manager.

    Without a terminal nothing is shown. Ctrl-C says in any case how much was done of what is thrown away.
    """

    def __init__(
        self, llm: LLM, console: Console, doing: str, noun: str, finished: str, *, steps: int, lead: str = ""
    ) -> None:
        """`doing` is shown before the first step of each `noun`, of which Ctrl-C says how many were `finished`."""
        self._tokenizer, self._doing, self._noun, self._finished = llm.tokenizer, doing, noun, finished
        self._lead, self._tally = lead, Tally()
        self._foremost = Foremost(steps)
        self._done = self._all = 0
        self._stack = ExitStack()
        waiting = waiting_for(llm, doing)
        self._screen: LiveScreen | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._screen = LiveScreen(
                console, llm.tokenizer, llm.eos_ids, steps=steps, timed=False, lead=lead, waiting=waiting
            )

    def __enter__(self) -> Self:
        if self._screen is not None:
            self._stack.enter_context(self._screen)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stack.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            done = f"{self._done} of {counted(self._all, self._noun)} {self._finished}, " if self._all else ""
            sys.stderr.write(f"interrupted: {done}nothing written\n")

    def progress(self, done: int, all: int) -> None:
        """Show which part is next."""
        self._done, self._all = done, all
        if self._screen is not None and done < all:
            part = f"{self._noun} {done + 1} of {all}" if all > 1 else ""
            self._screen.begin(part, f"{part}: {self._doing}" if part else self._doing)

    @property
    def on_record(self) -> Callable[[HoleStep | Commit], None] | None:
        """What a filling or an edit calls with its records; None without a terminal, so that none are made."""
        return None if self._screen is None else self._record

    def _record(self, record: HoleStep | Commit) -> None:
        """Show a step of the likeliest draft that is not done yet."""
        assert self._screen is not None
        if not isinstance(record, Commit) and self._foremost.takes(record):
            self._screen.lead = self._lead[: len(self._lead) - self._retaken(record)]
            self._screen.show(record, self._tally)

    def _retaken(self, record: HoleStep) -> int:
        """How many characters at the end of the lead the draft repeats, because its first token begins with them."""
        draft = self._tokenizer.decode(record.argmax_canvas[:1])
        return next((n for n in range(len(draft), 0, -1) if self._lead.endswith(draft[:n])), 0)
