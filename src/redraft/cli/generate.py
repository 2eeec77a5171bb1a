"""`redraft generate`: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.answer import INTERRUPTED, follow
from redraft.cli.constraints import ConstraintOptions
from redraft.cli.images import ImageOptions, with_images
from redraft.cli.options import ModelOptions, OutputOptions, SamplingOptions, expand_groups, read_words
from redraft.config import resolve_settings
from redraft.errors import InputError

if TYPE_CHECKING:
    from redraft.cli.trace import TraceWriter
    from redraft.llm import LLM

EXIT_INTERRUPTED = 130
"""The exit code that shells report for a program stopped by Ctrl-C."""


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
    images: ImageOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    constraints: ConstraintOptions,
    output: OutputOptions,
) -> None:
    """Answer one prompt; in a terminal the canvas settles live.

    Ctrl-C stops, keeps what is committed, and exits with 130.
    """
    from redraft.cli.view import open_screen, waiting_for
    from redraft.outputs import check_file

    text = _checked_prompt(prompt, raw=raw, system=system)
    given = sampling.given(stop=output.stop, latency_budget_ms=output.latency_budget_ms)
    limits = constraints.given(prompt)
    shown = images.parts()
    if raw and shown:
        raise InputError("--image needs the chat format, which --raw leaves out; use one of the two.")
    check_file(output.trace)
    llm = model.load()
    messages = [{"role": "system", "content": system}] if system else []
    asked = [*messages, {"role": "user", "content": with_images(text, shown)}]
    records = llm.stream(text if raw else asked, raw=raw, **given, **limits)
    screen = open_screen(
        llm.tokenizer, llm.eos_ids, steps=step_cap(llm, given), live=not output.no_live, json=output.json,
        waiting=waiting_for(llm),
    )  # fmt: skip
    trace = open_trace(output.trace, llm, model, given, prompt=text)
    with trace or nullcontext():
        tally = follow(records, screen, trace)
    if output.json:
        print_json(tally.to_dict() | facts(llm, model, given))
    if tally.finish_reason == INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)


def _checked_prompt(prompt: str, *, raw: bool, system: str | None) -> str:
    text = read_words("-", "The prompt from") if prompt == "-" else prompt
    if not text if raw else not text.strip():
        raise InputError("The prompt is empty.")
    if raw and system:
        raise InputError("--system needs the chat format, which --raw leaves out; use one of the two.")
    return text


def step_cap(llm: LLM, given: Mapping[str, Any]) -> int:
    """The most steps per canvas with these settings."""
    return resolve_settings(llm.defaults, **given).steps


def facts(llm: LLM, model: ModelOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer's JSON says about the model and the settings that produced it."""
    return {
        "model": model.model,
        "device": str(llm.model.device),
        "dtype": str(llm.model.dtype).removeprefix("torch."),
        "settings": dataclasses.asdict(resolve_settings(llm.defaults, **given)) | {"preset": given.get("preset")},
    }


def open_trace(
    path: Path | None, llm: LLM, model: ModelOptions, given: Mapping[str, Any], **more: Any
) -> TraceWriter | None:
    """A writer whose header tells `redraft replay` which tokenizer to use; None without a path."""
    from redraft.cli.trace import TraceWriter
    from redraft.model.folders import EMBEDDED

    if path is None:
        return None
    header = facts(llm, model, given)
    if model.model != EMBEDDED and os.path.isdir(model.model):
        header["model"] = str(Path(model.model).resolve())
    return TraceWriter(path, {**header, "eos_token_ids": list(llm.eos_ids), **more})


def print_json(content: Mapping[str, Any]) -> None:
    """One object on one line, for machines; characters outside the output's encoding are escaped."""
    everything = (sys.stdout.encoding or "").lower().startswith("utf")
    line = json.dumps(content, ensure_ascii=not everything).encode("utf-8", "backslashreplace").decode()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
