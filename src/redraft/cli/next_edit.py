"""`redraft next-edit`: what is due next in a file that was just edited, as a diff or in place."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from redraft.cli.edit import Write, check_writable, diff_name, facts_of_span, finish, waiting
from redraft.cli.options import EditOptions, JsonFlag, ModelOptions, expand_groups, number, option, read_text
from redraft.cli.output import print_json
from redraft.errors import InputError


@expand_groups
def next_edit(
    file: Annotated[str, typer.Argument(help="A UTF-8 text; - is standard input.", metavar="FILE")],
    *,
    since: Annotated[str | None, option("--since", "The text before the edits; - is standard input.", "OLD")] = None,
    at: Annotated[
        str | None,
        option(
            "--at",
            "Where the cursor is, from 1; a column past the end of the line means its end.",
            "LINE[:COLUMN]",
            default="after the last edit",
        ),
    ] = None,
    write: Write = False,
    model: ModelOptions,
    sampling: EditOptions,
    json: JsonFlag = False,
) -> None:
    """Propose the edit that follows from those just made.

    If none is due, standard output stays empty. For example: git show HEAD:FILE | redraft next-edit FILE --since -
    """
    from redraft.editing import edits_between
    from redraft.editing.api import DEFAULT_STEPS

    if since is None and at is None:
        raise InputError("Give the text before the edits with --since, or the cursor with --at.")
    if since == file == "-":
        raise InputError("FILE and --since cannot both be standard input.")
    check_writable(file, write)
    text = read_text(file, "The file")
    recent, cursor = ([], 0) if since is None else edits_between(read_text(since, "The older text"), text)
    cursor = cursor if at is None else _offset(text, at)
    given = sampling.given()
    llm = model.load()
    with waiting(llm, "looking for the next edit"):
        found = llm.next_edit(text, cursor, recent, **given)
    if found is not None:
        finish(found.edit, file, write=write, json=json, note=f"{found.reason}, {found.confidence:.0%} sure")
    elif not json:
        typer.echo("Nothing is due.", err=True)
    if json:
        proposal = None if found is None else found.to_dict() | {"diff": found.edit.diff(diff_name(file))}
        print_json({"edit": proposal} | facts_of_span(llm, model, given, DEFAULT_STEPS))


def _offset(text: str, at: str) -> int:
    """The character offset of LINE[:COLUMN]; a column past the line is its end, as in the Language Server Protocol.

    After a line end at the end of the text there is one more, empty line.
    """
    from redraft.editing import line_span
    from redraft.editing.spans import count_lines

    match = re.fullmatch(r"(\d+)(?::(\d+))?", at)
    if match is None or match[2] == "0":
        raise InputError(f"--at is {at!r}; it must be LINE or LINE:COLUMN, both from 1, such as 12:5.")
    line, column = number(match[1], "--at"), number(match[2] or "1", "--at")
    if text.endswith(("\n", "\r")) and line == count_lines(text) + 1:
        return len(text)
    start, end = line_span(text, line, line)
    return min(start + column - 1, end)
