"""`redraft fill`: the holes of a text, filled by a model that sees both sides."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.constraints import ConstraintOptions
from redraft.cli.edit import check_writable, facts_of_span
from redraft.cli.options import FillOptions, JsonFlag, ModelOptions, at_least, expand_groups, option, read_text
from redraft.cli.output import print_json
from redraft.cli.printable import counted, printable
from redraft.cli.replace import replace_file
from redraft.errors import InputError
from redraft.text.pieces import HOLE, split_pieces

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.filling import FillResult
    from redraft.llm import LLM

UNSURE = 0.7
"""Nats; a terminal underlines tokens with more entropy than this, that of two equal alternatives."""
LEAD_LINES = 6
"""How many lines before the hole a terminal shows while it is filled."""


@expand_groups
def fill(
    file: Annotated[str, typer.Argument(help=f"A UTF-8 text with {HOLE} holes; - is standard input.", metavar="FILE")],
    write: Annotated[bool, typer.Option("--write", metavar="", help="Replace FILE with the filled text.")] = False,
    *,
    length: Annotated[
        int | None, option("--length", "Tokens of every filling.", "N", default="the likeliest of all lengths")
    ] = None,
    model: ModelOptions,
    sampling: FillOptions,
    constraints: ConstraintOptions,
    json: JsonFlag = False,
) -> None:
    """Fill the <|fill|> holes of a text, seeing both sides.

    Everything around the holes stays the same, byte for byte.
    """
    from rich.console import Console

    from redraft.filling.api import DEFAULT_STEPS

    text = read_text(file, "The file")
    pieces = _pieces(file, text)
    check_writable(file, write)
    given, limits = sampling.given(), constraints.given(file)
    at_least(1, length=length)
    llm = model.load()
    console = Console(highlight=False)
    result = _fill(llm, pieces, given | limits | ({} if length is None else {"length": length}), console)
    if write:
        replace_file(Path(file), text, result.full_text)
    _show(result, pieces, console, write=write, json=json)
    if json:
        print_json(result.to_dict() | facts_of_span(llm, model, given, DEFAULT_STEPS))


def show_filling(llm: LLM, prefix: str, suffix: str, **settings: Any) -> FillResult:
    """Fill a hole as `LLM.fill` does and show it as the command does."""
    from rich.console import Console

    console = Console(highlight=False)
    result = _fill(llm, (prefix, suffix), settings, console)
    _show(result, (prefix, suffix), console, write=False, json=False)
    return result


def _pieces(file: str, text: str) -> tuple[str, ...]:
    """The texts around the holes."""
    if HOLE not in text:
        raise InputError(f"{'Standard input' if file == '-' else file} has no hole; mark it with {HOLE}.")
    return split_pieces(text)


def _fill(llm: LLM, pieces: Sequence[str], given: dict[str, Any], console: Console) -> FillResult:
    """The fillings; meanwhile a terminal shows how the most promising length settles between its two sides."""
    from redraft.cli.watching import Watch
    from redraft.filling import fill_settings

    lead = _last_lines(pieces[0]) if len(pieces) == 2 else ""
    steps = fill_settings(llm.defaults, {name: given[name] for name in given if name != "length"}).steps
    with Watch(llm, console, "trying every length", "hole", "filled", steps=steps, lead=lead) as watch:
        return llm.fill(pieces, on_record=watch.on_record, on_progress=watch.progress, **given)


def _last_lines(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[-LEAD_LINES:])


def _show(result: FillResult, pieces: Sequence[str], console: Console, *, write: bool, json: bool) -> None:
    """The filled text: exact in a pipe, with the fillings marked in a terminal."""
    if not console.is_terminal:
        if not json and not write:
            sys.stdout.buffer.write(result.full_text.encode("utf-8"))
            sys.stdout.buffer.flush()
        return
    _show_in_terminal(result, pieces, console)
    holes = "" if len(result.fillings) == 1 else f" in {len(result.fillings)} holes"
    parts = [
        f"filled {counted(len(result.token_ids), 'token')}{holes}",
        f"best of {counted(len(result.lengths), 'length')}",
        counted(result.steps, "step"),
        f"{result.seconds:.1f} s",
        *(["written"] if write else []),
    ]
    console.print(" \u00b7 ".join(parts), style="dim")


def _show_in_terminal(result: FillResult, pieces: Sequence[str], console: Console) -> None:
    from rich.text import Text

    text = Text(printable(pieces[0]), "dim", end="")
    for filling, piece in zip(result.fillings, pieces[1:], strict=True):
        for (start, end), token in zip(filling.offsets, filling.tokens, strict=True):
            style = "bold green underline" if token.entropy > UNSURE else "bold green"
            text.append(printable(filling.text[start:end]), style)
        text.append(printable(piece), "dim")
    console.print(text, soft_wrap=True, end="" if text.plain.endswith("\n") else "\n")
