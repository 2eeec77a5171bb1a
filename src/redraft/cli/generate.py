"""`redraft generate`: one prompt, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated

import typer

from redraft.cli.answer import INTERRUPTED, follow
from redraft.cli.constraints import ConstraintOptions
from redraft.cli.images import ImageOptions, with_images
from redraft.cli.options import ModelOptions, OutputOptions, SamplingOptions, Thinking, expand_groups, read_prompt
from redraft.cli.output import facts, print_json
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.cli.trace import open_trace
from redraft.errors import InputError


@expand_groups
def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.", metavar="PROMPT")],
    raw: Annotated[
        bool, typer.Option("--raw", metavar="", help="Continue PROMPT as plain text, without the chat format.")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Instructions before the prompt.")
    ] = None,
    *,
    thinking: Thinking = False,
    images: ImageOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    constraints: ConstraintOptions,
    output: OutputOptions,
) -> None:
    """Answer one prompt; in a terminal the canvas settles live.

    Ctrl-C stops, keeps what is committed, and exits with 130.
    """
    from redraft.cli.view import screen_for
    from redraft.outputs import check_file

    text = read_prompt(prompt, raw=raw)
    _check_chat(raw, {"--system": system, "--thinking": thinking, "--image": images.image})
    given = sampling.given(**output.settings)
    limits = constraints.given(prompt)
    shown = images.parts()
    check_file(output.trace)
    llm = model.load()
    messages = [{"role": "system", "content": system}] if system else []
    asked = [*messages, {"role": "user", "content": with_images(text, shown)}]
    records = llm.stream(text if raw else asked, raw=raw, thinking=thinking, **given, **limits)
    screen = screen_for(llm, given, live=not output.no_live, json=output.json)
    trace = open_trace(output.trace, llm, model, given, prompt=text)
    with trace or nullcontext():
        tally = follow(records, screen, trace)
    if output.json:
        print_json(tally.to_dict() | facts(llm, model, given))
    if tally.finish_reason == INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_chat(raw: bool, options: Mapping[str, object]) -> None:
    """Raise `InputError` for the first of these options that is given although there is no chat."""
    for name, value in options.items():
        if raw and value:
            raise InputError(f"{name} needs the chat format, which --raw leaves out; use one of the two.")
