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
    from redraft.eval.formats import FormatResult

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
    every: Annotated[int, typer.Option("--every", metavar="N", help="Only every Nth item.")] = 1,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="found (default) or given length, or left: to right.")
    ] = "found",
    middle: Annotated[
        bool, typer.Option("--middle", metavar="", help="Take out only the middle of each answer.")
    ] = False,
    records: Records = None,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """Write back the lines and spans taken out of Python code; solved means exactly the same text."""
    from redraft.eval import DATA
    from redraft.eval import infill as task

    if every < 1:
        raise InputError(f"--every is {every}; it must be at least 1.")
    if method not in task.METHODS:
        raise InputError(f"--method is {method!r}; it must be one of {', '.join(task.METHODS)}.")
    items = task.read_infill_jsonl(file or DATA / "infill.jsonl")[::every]
    chosen = [part for item in items if (part := task.middle_of(item))] if middle else items
    _run("infill", task.evaluate, chosen[: _checked(limit)], model, sampling, records, json, method=method)


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
def decide(
    file: Annotated[Path | None, typer.Argument(help="JSONL with tools, messages and calls.", metavar="[FILE]")] = None,
    limit: Limit = None,
    every: Annotated[int, typer.Option("--every", metavar="N", help="Only every Nth item.")] = 1,
    reads: Annotated[int, typer.Option("--reads", metavar="N", help="Most reads of one item.")] = 4,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", metavar="", help="Take off what is said of a question without content.")
    ] = False,
    records: Records = None,
    *,
    model: ModelOptions,
    json: JsonOnly = False,
) -> None:
    """Choose the right tool for a request without writing the call; with the error of the confidences."""
    from redraft.eval import DATA
    from redraft.eval import decide as task
    from redraft.eval.tools import read_tools_jsonl

    if every < 1:
        raise InputError(f"--every is {every}; it must be at least 1.")
    items = task.suitable(read_tools_jsonl(file or DATA / "tools.jsonl"))[::every][: _checked(limit)]
    more = {"reads": reads, "calibrate": calibrate}
    _run("decide", task.evaluate, items, model, SamplingOptions(), records, json, **more)


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


@app.command()
@expand_groups
def formats(
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Items of each task.")] = 20,
    prompts: Annotated[int, typer.Option("--prompts", metavar="N", help="Answers compared step by step.")] = 6,
    group: Annotated[int, typer.Option("--group", metavar="N", help="Inputs that share a scale in int4.")] = 64,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """What fp8 and int4 weights cost: divergence from the full model, steps and task scores."""
    from redraft.eval import DATA, sudoku, tools
    from redraft.eval.formats import compare

    given = sampling.given()
    puzzles = _spread(sudoku.read_sudoku_csv(DATA / "sudoku_30.csv"), _checked(limit))
    calls = _spread(tools.read_tools_jsonl(DATA / "tools.jsonl"), limit)
    llm = model.load()
    asked = [llm.encode_chat(sudoku.messages_for(item)) for item in puzzles[: prompts // 2]]
    asked += [llm.encode_chat(item.messages, tools=item.tools) for item in calls[: prompts - len(asked)]]
    results = compare(
        llm,
        asked,
        {
            "sudoku": lambda llm: sudoku.evaluate(llm, puzzles, **given),
            "tools": lambda llm: tools.evaluate(llm, calls, **given),
        },
        group=group,
    )
    if not json:
        _print_formats(results)
    print_json({"eval": "formats", "model": model.model, "results": [result.to_dict() for result in results]})


@app.command()
@expand_groups
def curve(
    task: Annotated[str, typer.Argument(help="sudoku or tools.", metavar="TASK")] = "sudoku",
    file: Annotated[Path | None, typer.Argument(help="The task's items.", metavar="[FILE]")] = None,
    against: Annotated[
        list[str] | None, typer.Option("--against", metavar="MODEL", help="Another model to compare; may be repeated.")
    ] = None,
    budgets: Annotated[str, typer.Option("--budgets", metavar="N,N,...", help="Step budgets.")] = "1,2,4,8,12,16,32,48",
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Items, taken from all over the file.")] = 64,
    batch_size: BatchSize = 16,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE.png", help="Draw the curves.")] = None,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonOnly = False,
) -> None:
    """Score against speed: a task at several step budgets, for one model or several."""
    import dataclasses

    from redraft.eval import curve as curves

    chosen = curves.task_of(task, file).spread(_checked(limit) or 1)
    given, counts = sampling.given(), _numbers(budgets)
    if "steps" in given:
        raise InputError("--steps is what --budgets varies; leave it out.")
    points, entropy = {}, {}
    for name in (model.model, *(against or [])):
        llm = dataclasses.replace(model, model=name).load()
        points[name] = curves.measure(
            lambda budget, llm=llm: chosen.evaluate(llm, chosen.items, steps=budget, batch_size=batch_size, **given),
            counts,
        )
        asked = [chosen.prompt(llm, item) for item in chosen.items[:_ENTROPY_ITEMS]]
        entropy[name] = curves.entropies(llm, asked, **given)
    if picture is not None:
        curves.draw(points, picture, title=task, entropy=entropy)
    results = {name: [point.to_dict() for point in row] for name, row in points.items()}
    if not json:
        for name, row in points.items():
            for point in row:
                print(f"{name}: at most {point.budget:2} steps: {point.share:6.1%} at {point.mean_steps:.2f} steps")
    rounded = {name: [round(value, 6) for value in values] for name, values in entropy.items()}
    print_json({"eval": "curve", "task": task, "items": len(chosen.items), "models": results, "entropy": rounded})


_ENTROPY_ITEMS = 8


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--budgets is {text!r}; it must be numbers with commas between them.") from None


def _spread(items: list[Any], limit: int | None) -> list[Any]:
    """`limit` items from all over the list, whose beginning may be easier than its end."""
    return items[:: max(1, len(items) // (limit or len(items)))][:limit]


def _print_formats(results: list[FormatResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = list(results[0].tasks)
    table = Table("weights", "KL, nats", "same argmax", *(f"{n}, steps" for n in names), box=None, padding=(0, 2))
    for result in results:
        scores = (f"{r.solved}/{r.total}, {r.mean_steps:.1f}" for r in result.tasks.values())
        table.add_row(result.format, f"{result.divergence:.5f}", f"{result.agreement:.2%}", *scores)
    Console(highlight=False).print(table)


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
