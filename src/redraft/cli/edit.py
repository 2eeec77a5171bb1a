"""`redraft edit`: some lines of a file, changed as an instruction says, as a diff or in place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.constraints import ConstraintOptions
from redraft.cli.options import EditOptions, JsonFlag, ModelOptions, expand_groups, number, option, read_text
from redraft.cli.output import facts, print_json
from redraft.cli.printable import counted, printable
from redraft.cli.replace import replace_file
from redraft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.editing import EditResult
    from redraft.llm import LLM

Write = Annotated[bool, option("--write", "Replace FILE with the edited text.")]


@expand_groups
def edit(
    file: Annotated[str, typer.Argument(help="A UTF-8 text; - is standard input.", metavar="FILE")],
    instruction: Annotated[
        str | None, typer.Argument(help="What to change.", metavar="INSTRUCTION", show_default="repair slips")
    ] = None,
    *,
    lines: Annotated[str, option("--lines", "The lines to change, from 1: A to B, or A.", "A:B")],
    write: Write = False,
    strength: Annotated[
        float, option("--strength", "Share that begins as noise: 0 for only what is doubted, 1 for all.", "X")
    ] = 0,
    model: ModelOptions,
    sampling: EditOptions,
    constraints: ConstraintOptions,
    json: JsonFlag = False,
) -> None:
    """Change some lines of a file and show the difference.

    Everything else stays the same, byte for byte. Without INSTRUCTION only what does not fit the surrounding text is
    changed.
    """
    from rich.console import Console

    from redraft.cli.watching import Watch
    from redraft.editing import line_span
    from redraft.editing.api import DEFAULT_STEPS, check_strength
    from redraft.filling import fill_settings

    check_strength(strength)
    first, last = _numbers(lines)
    text = read_text(file, "The file")
    check_writable(file, write)
    span = line_span(text, first, last)
    given, limits = sampling.given(), constraints.given(file)
    if instruction is not None and not instruction.strip():
        raise InputError("The instruction is empty.")
    llm = model.load()
    steps = fill_settings(llm.defaults, given, DEFAULT_STEPS).steps
    with Watch(llm, Console(stderr=True, highlight=False), "editing", "part", "edited", steps=steps) as watch:
        shown = {"on_record": watch.on_record, "on_progress": watch.progress}
        result = llm.edit(text, span, instruction, strength=strength, **shown, **given, **limits)
    finish(result, file, write=write, json=json)
    if json:
        print_json(
            result.to_dict() | {"diff": result.diff(diff_name(file))} | facts_of_span(llm, model, given, DEFAULT_STEPS)
        )


def facts_of_span(llm: LLM, model: ModelOptions, given: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """`facts` of a filling or an edit, with its different step cap and a length that is found unless it is given."""
    from redraft.filling import fill_settings

    found = facts(llm, model, {"steps": fill_settings(llm.defaults, given, steps).steps, **given})
    found["settings"]["max_tokens"] = given.get("max_tokens")
    return found


def diff_name(file: str) -> str:
    """The name of the file in a diff: as short as it can be, because `git apply` refuses `./FILE` and `A/../FILE`."""
    if file == "-":
        return "stdin"
    path = Path(os.path.normpath(file))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def check_writable(file: str, write: bool) -> None:
    """Raise `InputError` for replacing standard input, and for a file that cannot be replaced."""
    from redraft.outputs import check_file

    if write and file == "-":
        raise InputError("--write needs a file; standard input cannot be replaced.")
    check_file(Path(file).resolve() if write else None)


def _numbers(lines: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", lines)
    if match is None:
        raise InputError(f"--lines is {lines!r}; it must be A:B or A, such as 12:20.")
    return number(match[1], "--lines"), number(match[2] or match[1], "--lines")


def waiting(llm: LLM, doing: str) -> AbstractContextManager[object]:
    """A spinner in a terminal."""
    from rich.console import Console

    from redraft.cli.view import waiting_for

    console = Console(stderr=True)
    return console.status(waiting_for(llm, doing)) if console.is_terminal else nullcontext()


def finish(result: EditResult, file: str, *, write: bool, json: bool, note: str = "") -> None:
    """Write the file if asked, and show the difference: as `patch` reads it in a pipe, in colour in a terminal."""
    from rich.console import Console

    if write:
        replace_file(Path(file), result.old_text, result.full_text)
    console, name = Console(highlight=False), diff_name(file)
    if console.is_terminal:
        _show_in_terminal(result, name, console, note)
    elif not json:
        diff = result.diff(name)
        sys.stdout.buffer.write(diff.encode("utf-8"))
        sys.stdout.buffer.flush()
        if not diff:
            sys.stderr.write("nothing changed\n")


def _show_in_terminal(result: EditResult, name: str, console: Console, note: str) -> None:
    from rich.text import Text

    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in result.diff(name).split("\n")[:-1]:
        console.print(Text(printable(line.removesuffix("\r")), colours.get(line[:1], "dim")), soft_wrap=True)
    parts = [f"{result.changed:.0%} changed", counted(result.steps, "step"), f"{result.seconds:.1f} s"]
    console.print(" \u00b7 ".join([*parts, note] if note else parts), style="dim", markup=False)
