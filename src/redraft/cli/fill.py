"""`redraft fill`: the hole of a text, filled by a model that sees both sides."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.generate import facts, print_json, step_cap
from redraft.cli.options import JsonFlag, ModelOptions, SamplingOptions, expand_groups, read_text
from redraft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.diffusion.records import DenoiseStep
    from redraft.filling import FillResult
    from redraft.llm import LLM

HOLE = "<|fill|>"
LEAD_LINES = 6
"""Lines before the hole that a terminal shows while the hole is filled."""


@expand_groups
def fill(
    file: Annotated[str, typer.Argument(help=f"A UTF-8 text with one {HOLE}; - is standard input.", metavar="FILE")],
    write: Annotated[bool, typer.Option("--write", metavar="", help="Replace FILE by the filled text.")] = False,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonFlag = False,
) -> None:
    """Fill the <|fill|> hole of a text, seeing both sides. Everything around the hole stays byte for byte.

    --max-tokens is the longest filling that is tried (32 if not given, or half the canvas where that is less).
    """
    from rich.console import Console

    prefix, suffix = _sides(file)
    if write and file == "-":
        raise InputError("--write needs a file; standard input cannot be replaced.")
    given = sampling.given()
    llm = model.load()
    console = Console(highlight=False)
    result = _fill(llm, prefix, suffix, given, console)
    if write:
        _replace(Path(file), result.full_text)
    _show(result, prefix, suffix, console, write=write, json=json)
    if json:
        print_json(_fields(result) | facts(llm, model, given))


def show_filling(llm: LLM, prefix: str, suffix: str, **settings: Any) -> FillResult:
    """Fill a hole as `LLM.fill` does and show it as the command does."""
    from rich.console import Console

    console = Console(highlight=False)
    result = _fill(llm, prefix, suffix, settings, console)
    _show(result, prefix, suffix, console, write=False, json=False)
    return result


def _sides(file: str) -> tuple[str, str]:
    """The text before and behind the only hole."""
    text = read_text(file, "The file")
    parts = text.split(HOLE)
    if len(parts) == 1:
        raise InputError(f"{file} has no hole; mark it with {HOLE}.")
    if len(parts) > 2:
        raise InputError(f"{file} has {len(parts) - 1} holes; this version fills exactly one {HOLE}.")
    return parts[0], parts[1]


def _fill(llm: LLM, prefix: str, suffix: str, given: dict[str, Any], console: Console) -> FillResult:
    """The filling; a terminal shows meanwhile how the most promising length settles between its two sides."""
    from rich.console import Console

    from redraft.cli.answer import Tally
    from redraft.cli.view import LiveScreen

    if not console.is_terminal or console.is_dumb_terminal:
        waiting = Console(stderr=True)
        with waiting.status("filling") if waiting.is_terminal else nullcontext():
            return llm.fill(prefix, suffix, **given)
    tally = Tally()
    screen = LiveScreen(console, llm.tokenizer, llm.eos_ids, steps=step_cap(llm, given), timed=False,
                        lead=_last_lines(prefix), waiting="trying every length")  # fmt: skip

    def show(record: DenoiseStep) -> None:
        if record.request_id == 0:
            screen.show(record, tally)

    with screen:
        return llm.fill(prefix, suffix, on_record=show, **given)


def _last_lines(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[-LEAD_LINES:])


def _replace(path: Path, text: str) -> None:
    """Put `text` in the file's place in one step, with the same permissions; a link stays a link."""
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(text.encode("utf-8"))
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _show(result: FillResult, prefix: str, suffix: str, console: Console, *, write: bool, json: bool) -> None:
    """The filled text: exact in a pipe, with the filling marked in a terminal."""
    if not console.is_terminal:
        if not json and not write:
            sys.stdout.buffer.write(result.full_text.encode("utf-8"))
            sys.stdout.buffer.flush()
        return
    _show_in_terminal(result, prefix, suffix, console)
    tried = f"best of {len(result.lengths)} length{_s(len(result.lengths))}"
    tokens = f"filled {len(result.token_ids)} token{_s(len(result.token_ids))}"
    steps = f"{result.steps} step{_s(result.steps)}"
    parts = [tokens, tried, steps, f"{result.seconds:.1f} s", *(["written"] if write else [])]
    console.print(" \u00b7 ".join(parts), style="dim")


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _show_in_terminal(result: FillResult, prefix: str, suffix: str, console: Console) -> None:
    from rich.text import Text

    from redraft.cli.printable import printable

    text = Text.assemble(
        (printable(prefix), "dim"), (printable(result.text), "bold green"), (printable(suffix), "dim"), end=""
    )
    console.print(text, soft_wrap=True, end="" if text.plain.endswith("\n") else "\n")


def _fields(result: FillResult) -> dict[str, object]:
    return {
        "text": result.text,
        "full_text": result.full_text,
        "token_ids": list(result.token_ids),
        "lengths": list(result.lengths),
        "steps": result.steps,
        "forwards": result.forwards,
        "seconds": round(result.seconds, 4),
    }
