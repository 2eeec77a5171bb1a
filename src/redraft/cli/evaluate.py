"""`redraft eval`: how many items of a set a model solves, at what cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.generate import print_json
from redraft.cli.options import ModelOptions, SamplingOptions, expand_groups
from redraft.errors import InputError

if TYPE_CHECKING:
    from redraft.eval import EvalResult

app = typer.Typer(no_args_is_help=True)

Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="Only the first N items.")]
BatchSize = Annotated[int, typer.Option("--batch-size", metavar="N", help="Items answered together.")]
Records = Annotated[
    Path | None, typer.Option("--records", metavar="FILE", help="Write every item's answer to FILE (JSONL).")
]
JsonOnly = Annotated[bool, typer.Option("--json", metavar="", help="Print the JSON object, which is last, alone.")]


@app.command()
@expand_groups
def sudoku(
    file: Annotated[
        Path | None,
        typer.Argument(help="CSV with the columns puzzle and solution (81 digits, 0 empty).", metavar="[FILE.csv]"),
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    records: Records = None,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """Solve Sudoku puzzles; without FILE the held-out puzzles with 30 clues that come with Redraft."""
    from redraft.eval import DATA
    from redraft.eval import sudoku as task

    items = task.read_sudoku_csv(file or DATA / "sudoku_30.csv", limit=_checked(limit))
    _run("sudoku", task.evaluate, items, model, sampling, records, json, batch_size=batch_size)


@app.command()
@expand_groups
def infill(
    file: Annotated[Path | None, typer.Argument(help="JSONL with prefix, answer and suffix.", metavar="[FILE]")] = None,
    limit: Limit = None,
    records: Records = None,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """Write back the lines and spans taken out of Python code; solved means exactly the same text."""
    from redraft.eval import DATA
    from redraft.eval import infill as task

    items = task.read_infill_jsonl(file or DATA / "infill.jsonl", limit=_checked(limit))
    _run("infill", task.evaluate, items, model, sampling, records, json)


@app.command()
@expand_groups
def tools(
    file: Annotated[Path | None, typer.Argument(help="JSONL with tools, messages and calls.", metavar="[FILE]")] = None,
    limit: Limit = None,
    batch_size: BatchSize = 8,
    records: Records = None,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """Call the right tool with the right arguments; solved means exactly the expected calls."""
    from redraft.eval import DATA
    from redraft.eval import tools as task

    items = task.read_tools_jsonl(file or DATA / "tools.jsonl", limit=_checked(limit))
    _run("tools", task.evaluate, items, model, sampling, records, json, batch_size=batch_size)


@app.command()
@expand_groups
def smalltalk(
    file: Annotated[Path | None, typer.Argument(help="JSONL with messages and expected.", metavar="[FILE]")] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    records: Records = None,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """Answer small talk and simple questions; solved means that an expected word or phrase is there."""
    from redraft.eval import DATA
    from redraft.eval import smalltalk as task

    items = task.read_smalltalk_jsonl(file or DATA / "smalltalk.jsonl", limit=_checked(limit))
    _run("smalltalk", task.evaluate, items, model, sampling, records, json, batch_size=batch_size)


def _checked(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise InputError(f"--limit is {limit}; it must be at least 1.")
    return limit


def _run(
    name: str,
    evaluate: Callable[..., EvalResult],
    items: list[Any],
    model: ModelOptions,
    sampling: SamplingOptions,
    records: Path | None,
    json: bool,
    **more: Any,
) -> None:
    """Load, evaluate under a progress bar, print the result, and keep every item's answer if asked."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from redraft.cli.trace import check_writable

    given = sampling.given()
    check_writable(records)
    llm = model.load()
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[solved]} solved"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=len(items), solved=0)

        def progress(done: int, total: int, solved: int) -> None:
            bar.update(task, completed=done, solved=solved)

        result = evaluate(llm, items, progress=progress, **given, **more)
    if records is not None:
        _write_records(records, result)
    if not json:
        _print_result(name, model.model, result)
    print_json({"eval": name, "model": model.model, **result.summary(), "settings": given})


def _print_result(name: str, model: str, result: EvalResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    share = f" ({result.solved / result.total:.1%})"
    table.add_row("solved", f"{result.solved} of {result.total}{share}")
    table.add_row("steps per canvas", f"{result.mean_steps:.2f}")
    table.add_row("tokens per forward", f"{result.tokens_per_forward:.2f}")
    table.add_row("seconds", f"{result.seconds:.1f} ({result.seconds / result.total:.2f} per item)")
    console = Console(highlight=False)
    console.print(f"{name} with {model}", style="bold", markup=False)
    console.print(table)


def _write_records(path: Path, result: EvalResult) -> None:
    import dataclasses
    import json

    lines = (json.dumps(dataclasses.asdict(record), ensure_ascii=False) for record in result.records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
