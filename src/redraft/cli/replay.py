"""`redraft replay`: a recorded trace, shown again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.answer import INTERRUPTED, follow
from redraft.cli.options import JsonFlag
from redraft.cli.output import print_json
from redraft.cli.printable import printable
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.diffusion.records import DenoiseStep, Record
from redraft.errors import InputError

if TYPE_CHECKING:
    from redraft.cli.trace import Turn
    from redraft.text.tokenizer import Tokenizer

SLOWEST = 0.001
"""Steps per second."""


def replay(
    file: Annotated[Path, typer.Argument(help="A trace that --trace wrote.", metavar="FILE")],
    speed: Annotated[float, typer.Option("--speed", metavar="X", help="Steps per second.")] = 8.0,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Whose tokenizer to use; the trace's own by default.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show a recorded trace again.

    In a pipe the answer is printed at once.
    """
    from redraft.cli.trace import read_trace
    from redraft.cli.view import open_screen

    if not speed >= SLOWEST:
        raise InputError(f"--speed is {speed:g}; it must be at least {SLOWEST}.")
    trace = read_trace(file)
    tokenizer = _tokenizer(model or trace.header.get("model"), file)
    for turn in trace.turns:
        _check_ids(turn, tokenizer, file)
    eos_ids = tuple(trace.header.get("eos_token_ids") or [tokenizer.eos_id])
    steps = trace.header.get("settings", {}).get("steps", 0)
    live = sys.stdout.isatty()
    answers: list[dict[str, Any]] = []
    for turn in trace.turns:
        if turn.prompt is not None and live:
            sys.stdout.write(f"> {printable(str(turn.prompt))}\n")
        screen = open_screen(tokenizer, eos_ids, steps=steps, json=json, timed=False)
        tally = follow(_paced(turn.records, speed if live else None), screen)
        # Seconds would be those of the replay, so the numbers that depend on them are left out.
        answers.append(
            {name: value for name, value in tally.to_dict().items() if name != "stats"} | {"steps": tally.steps}
        )
        if tally.finish_reason == INTERRUPTED:
            raise typer.Exit(EXIT_INTERRUPTED)
        if tally.finish_reason is None:
            typer.echo("The trace ends before this answer does.", err=True)
    if json:
        print_json({"header": trace.header, "answers": answers})


def _tokenizer(model: object, file: Path) -> Tokenizer:
    from redraft.model.folders import read_config, resolve_folder
    from redraft.text.tokenizer import Tokenizer

    if not isinstance(model, str):
        raise InputError(f"The header of {file} names no model; name one with --model.")
    folder = resolve_folder(model)
    return Tokenizer.from_folder(folder, vocab_size=read_config(folder).vocab_size)


def _check_ids(turn: Turn, tokenizer: Tokenizer, file: Path) -> None:
    ids = {token for record in turn.records if isinstance(record, DenoiseStep) for token in record.argmax_canvas}
    wrong = next((token for token in ids if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise InputError(
            f"{file} holds token id {wrong}, but the model has {tokenizer.vocab_size}; name its own with --model."
        )


def _paced(records: list[Record], speed: float | None) -> Iterator[Record]:
    """The records, steps at `speed` per second, or all at once."""
    for record in records:
        if speed is not None and isinstance(record, DenoiseStep):
            time.sleep(1 / speed)
        yield record
