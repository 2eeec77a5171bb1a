"""`redraft edit`: some lines of a file, changed as an instruction says, as a diff or in place."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.generate import facts, print_json
from redraft.cli.options import JsonFlag, ModelOptions, SamplingOptions, expand_groups, read_text
from redraft.cli.replace import replace_file
from redraft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.editing import EditResult


@expand_groups
def edit(
    file: Annotated[str, typer.Argument(help="A UTF-8 text; - is standard input.", metavar="FILE")],
    instruction: Annotated[str, typer.Argument(help="What to change.", metavar="INSTRUCTION")],
    lines: Annotated[str, typer.Option("--lines", metavar="A:B", help="The lines to change, from 1: A to B, or A.")],
    write: Annotated[bool, typer.Option("--write", metavar="", help="Replace FILE by the edited text.")] = False,
    strength: Annotated[
        float,
        typer.Option("--strength", metavar="X", help="Share that begins as noise: 0 (default) what is doubted, 1 all."),
    ] = 0.0,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonFlag = False,
) -> None:
    """Change some lines of a file and show the difference. Everything else stays byte for byte.

    --max-tokens is the longest text that may stand there; twice the old one and 16 tokens if not given.
    """
    from redraft.editing import line_span

    first, last = _numbers(lines)
    text = read_text(file, "The file")
    if write and file == "-":
        raise InputError("--write needs a file; standard input cannot be replaced.")
    span = line_span(text, first, last)
    given = sampling.given()
    if not instruction.strip():
        raise InputError("The instruction is empty.")
    llm = model.load()
    with _waiting():
        result = llm.edit(text, span, instruction, strength=strength, **given)
    if write:
        replace_file(Path(file), result.full_text)
    _show(result, "stdin" if file == "-" else file, json=json)
    if json:
        print_json(result.to_dict() | {"diff": result.diff(file)} | facts(llm, model, given))


def _numbers(lines: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", lines)
    if match is None:
        raise InputError(f"--lines is {lines!r}; it must be A:B or A, such as 12:20.")
    return int(match[1]), int(match[2] or match[1])


def _waiting() -> AbstractContextManager[object]:
    from rich.console import Console

    console = Console(stderr=True)
    return console.status("editing") if console.is_terminal else nullcontext()


def _show(result: EditResult, name: str, *, json: bool) -> None:
    """The difference: as `patch` reads it in a pipe, in colours and with its cost in a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        _show_in_terminal(result, name, console)
    elif not json:
        sys.stdout.buffer.write(result.diff(name).encode("utf-8"))
        sys.stdout.buffer.flush()


def _show_in_terminal(result: EditResult, name: str, console: Console) -> None:
    from rich.text import Text

    from redraft.cli.printable import printable

    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in result.diff(name).splitlines():
        console.print(Text(printable(line), colours.get(line[:1], "dim")), soft_wrap=True)
    cost = f"{result.steps} steps \u00b7 {result.seconds:.1f} s"
    console.print(f"{result.changed:.0%} changed \u00b7 {cost}", style="dim", markup=False)
