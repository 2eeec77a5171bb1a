"""`redraft eval`: how many items of a set a model solves, and at what cost."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.options import (
    EditOptions,
    FillOptions,
    JsonAlone,
    ModelOptions,
    TaskOptions,
    at_least,
    check_picture,
    expand_groups,
    option,
    whole_numbers,
)
from redraft.cli.output import print_json
from redraft.cli.printable import counted
from redraft.cli.replace import write_file
from redraft.errors import InputError, one_of

if TYPE_CHECKING:
    from redraft.eval import EvalResult
    from redraft.eval.curve import CurvePoint
    from redraft.eval.formats import FormatResult
    from redraft.eval.result import ItemRecord
    from redraft.eval.task import Progress

app = typer.Typer(no_args_is_help=True)

BatchSize = Annotated[int, option("--batch-size", "Items answered together.", "N")]


@dataclass(frozen=True, kw_only=True)
class ItemOptions:
    """Which items are asked, and what is kept of their answers."""

    file: Annotated[
        Path | None, typer.Argument(help="Your own items.", metavar="FILE", show_default="the package's")
    ] = None
    every: Annotated[int, option("--every", "Only every Nth item.", "N")] = 1
    limit: Annotated[int | None, option("--limit", "Only the first N of those.", "N", default="all")] = None
    records: Annotated[Path | None, option("--records", "Write every item's answer to FILE (JSONL).", "FILE")] = None
    json: JsonAlone = False

    def __post_init__(self) -> None:
        at_least(1, every=self.every, limit=self.limit)

    def of(self, items: Sequence[Any]) -> Sequence[Any]:
        """The selected items."""
        return items[:: self.every][: self.limit]


_ABOUT = {
    "sudoku": "Solve Sudoku puzzles: from FILE.csv with columns puzzle and solution (81 digits, 0 empty), or held-out "
    "ones.",
    "tools": "Call the right tool with the right arguments, exactly. FILE: JSONL with id, tools, messages and calls.",
    "results": "Tell what a tool returned. FILE: JSONL with id, tools, messages up to the results, and expected "
    "phrases.",
    "extraction": "Extract JSON under a schema from a text. FILE: JSONL with id, messages, schema and expected values.",
    "smalltalk": "Answer simple questions with an expected word or phrase. FILE: JSONL with id, messages and expected.",
}
"""What the commands of the tasks in `redraft.eval.curve.TASKS` say of themselves."""


def _task_command(name: str) -> Callable[..., None]:
    def command(*, items: ItemOptions, batch_size: BatchSize = 16, model: ModelOptions, sampling: TaskOptions) -> None:
        from redraft.eval.curve import TASKS

        at_least(1, batch_size=batch_size)
        task, given = TASKS[name], sampling.given()
        _run(name, task.evaluate, items.of(task.items(items.file)), items, model, given, batch_size=batch_size)

    return expand_groups(command)


for name, said in _ABOUT.items():
    app.command(name, help=said)(_task_command(name))


@app.command()
@expand_groups
def infill(
    *,
    items: ItemOptions,
    method: Annotated[
        str, option("--method", "found or given (the length), left (to right), or all (a table).", "NAME")
    ] = "found",
    middle: Annotated[bool, option("--middle", "Remove only the middle of each answer.")] = False,
    except_every: Annotated[
        int | None, option("--except-every", "Leave out every Nth item.", "N", default="none")
    ] = None,
    model: ModelOptions,
    sampling: FillOptions,
) -> None:
    """Write back what was removed from Python code, exactly. FILE: JSONL with id, prefix, answer, suffix, source."""
    from redraft.eval import DATA
    from redraft.eval import infill as task

    if method not in (*task.METHODS, "all"):
        raise InputError(f"--method is {method!r}; it must be {one_of((*task.METHODS, 'all'))}.")
    at_least(2, except_every=except_every)
    every = task.read_infill_jsonl(items.file or DATA / "infill.jsonl")[:: items.every]
    kept = [item for number, item in enumerate(every) if not except_every or number % except_every]
    parts = [part for item in kept if (part := task.middle_of(item))] if middle else kept
    if method == "all":
        _run_methods(parts[: items.limit], items, model, sampling.given())
    else:
        _run("infill", task.evaluate, parts[: items.limit], items, model, sampling.given(), method=method)


def _run_methods(chosen: Sequence[Any], items: ItemOptions, model: ModelOptions, given: dict[str, Any]) -> None:
    """Every method of infilling on the same items, and an item-by-item comparison of each pair."""
    from redraft.eval.infill import METHODS, compare
    from redraft.outputs import check_file

    check_file(items.records)
    if not chosen:
        raise InputError("No item is left to ask.")
    llm = model.load()
    with _bar("infill", total=len(chosen) * len(METHODS)) as progress:
        compared = compare(llm, chosen, progress=progress, **given)
    if not items.json:
        for name, result in compared.results.items():
            print(f"{name:6} {result.solved:4} of {result.total} ({result.solved / result.total:.1%})")
        for one, other, ahead, behind, p in compared.pairs:
            print(f"{one} alone right {ahead} times, {other} alone {behind} times: p = {p:.2g} (two-sided sign test)")
    print_json({"eval": "infill", **model.names, **compared.summary(), "settings": given})
    _write_records(items.records, compared.records)


@app.command()
@expand_groups
def edit(*, items: ItemOptions, model: ModelOptions, sampling: EditOptions) -> None:
    """Change a span as an instruction says, exactly. FILE: JSONL with id, instruction, before, old, new, behind."""
    from redraft.eval import DATA
    from redraft.eval import edit as task

    chosen = items.of(task.read_edits_jsonl(items.file or DATA / "edits.jsonl"))
    _run("edit", task.evaluate, chosen, items, model, sampling.given())


@app.command()
@expand_groups
def decide(
    *,
    items: ItemOptions,
    reads: Annotated[int, option("--reads", "Most reads of one item.", "N")] = 4,
    calibrate: Annotated[
        bool, option("--calibrate", "Discount the model's answer to a question without content.")
    ] = False,
    model: ModelOptions,
) -> None:
    """Choose the tool for a request without writing the call, and check how well confidences fit. FILE as for tools."""
    from redraft.eval import decide as task
    from redraft.eval.tools import TASK

    at_least(1, reads=reads)
    chosen = items.of(task.suitable(TASK.items(items.file)))
    _run("decide", task.evaluate, chosen, items, model, {}, reads=reads, calibrate=calibrate)


@app.command()
@expand_groups
def formats(
    limit: Annotated[int, option("--limit", "Items of each task.", "N")] = 20,
    prompts: Annotated[int, option("--prompts", "Answers compared step by step.", "N")] = 6,
    group: Annotated[int, option("--group", "Inputs that share a scale in int4.", "N")] = 64,
    *,
    model: ModelOptions,
    sampling: TaskOptions,
    json: JsonAlone = False,
) -> None:
    """What fp8 and int4 weights and an fp8 vocabulary cost: divergence from the full model, and the weights' scores."""
    from redraft.eval.curve import TASKS
    from redraft.eval.formats import compare
    from redraft.eval.task import spread

    given = sampling.given()
    at_least(1, limit=limit, prompts=prompts, group=group)
    items = {name: spread(TASKS[name].items(), limit) for name in ("sudoku", "tools")}
    llm = model.load()
    half = {"sudoku": prompts // 2, "tools": prompts - prompts // 2}
    asked = [TASKS[name].prompt(llm, item) for name in items for item in items[name][: half[name]]]
    with _bar("formats", total=None) as progress:
        results = compare(
            llm,
            asked,
            {
                name: lambda llm, name=name: TASKS[name].evaluate(llm, items[name], progress=progress, **given)
                for name in items
            },
            group=group,
        )
    if not json:
        _print_formats(results)
    print_json({"eval": "formats", **model.names, "results": [result.to_dict() for result in results]})


@app.command()
@expand_groups
def curve(
    task: Annotated[str, typer.Argument(help=f"{one_of(_ABOUT).capitalize()}.", metavar="TASK")] = "sudoku",
    file: Annotated[Path | None, typer.Argument(help="Your own items.", metavar="FILE")] = None,
    against: Annotated[
        list[str] | None, option("--against", "Another model to compare; may be repeated.", "MODEL")
    ] = None,
    budgets: Annotated[str, option("--budgets", "Step budgets.", "N,N,...")] = "1,2,4,8,12,16,32,48",
    limit: Annotated[int, option("--limit", "Items, spread over the whole set.", "N")] = 64,
    batch_size: BatchSize = 16,
    picture: Annotated[Path | None, option("--picture", "Draw the curves.", "FILE.png")] = None,
    *,
    model: ModelOptions,
    sampling: TaskOptions,
    json: JsonAlone = False,
) -> None:
    """Score against speed: a task at several step budgets, for one model or several."""
    from redraft.eval import curve as curves
    from redraft.eval.task import spread
    from redraft.model.folders import read_config, resolve_folder

    chosen, given, counts = curves.task_of(task), sampling.given(), whole_numbers("budgets", budgets)
    at_least(1, limit=limit, batch_size=batch_size)
    if "steps" in given:
        raise InputError("--budgets varies the steps; leave out --steps.")
    curves.check_budgets(counts)
    check_picture(picture)
    items = spread(chosen.items(file), limit)
    others = [dataclasses.replace(model, model=name, adapter=None) for name in against or []]
    models = {" and ".join(one.names.values()): one for one in (model, *others)}
    if len(models) <= len(others):
        raise InputError("A model is named twice by --model and --against; name each once.")
    for one in models.values():  # find a wrong one before measuring the first
        read_config(resolve_folder(one.model, weights=False))
    points, entropy = {}, {}
    for name, one in models.items():
        llm = one.load()
        with _bar(name, total=len(items)) as progress:
            more = {"batch_size": batch_size, "progress": progress, **given}
            points[name] = curves.measure(
                lambda budget, llm=llm, more=more: chosen.evaluate(llm, items, steps=budget, **more), counts
            )
            entropy[name] = curves.entropies(
                llm.stream(chosen.prompt(llm, item), **{**given, **chosen.own(item)}) for item in items[:_ENTROPY_ITEMS]
            )
    if not json:
        _print_curves(points)
    results = {name: [point.to_dict() for point in row] for name, row in points.items()}
    rounded = {name: [round(value, 6) for value in values] for name, values in entropy.items()}
    print_json({"eval": "curve", "task": task, "items": len(items), "models": results, "entropy": rounded})
    if picture is not None:
        curves.draw(points, picture, title=task, entropy=entropy)


_ENTROPY_ITEMS = 8


def _run(
    name: str,
    evaluate: Callable[..., EvalResult],
    chosen: Sequence[Any],
    items: ItemOptions,
    model: ModelOptions,
    given: dict[str, Any],
    **more: Any,
) -> None:
    """Load, evaluate under a progress bar, print the result, and keep every item's answer if asked."""
    from redraft.outputs import check_file

    check_file(items.records)
    if not chosen:
        raise InputError("No item is left to ask.")
    llm = model.load()
    with _bar(name, total=len(chosen)) as progress:
        result = evaluate(llm, chosen, progress=progress, **given, **more)
    if not items.json:
        _print_result(name, " and ".join(model.names.values()), result)
    print_json({"eval": name, **model.names, **result.summary(), "settings": given})
    _write_records(items.records, result.records)


@contextmanager
def _bar(name: str, *, total: int | None) -> Iterator[Progress]:
    """A progress bar of items done and solved in a terminal; elsewhere a line at the beginning."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[solved]} solved"))
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"{name} ..." if total is None else f"{name}: {counted(total, 'item')} ...", file=sys.stderr, flush=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total, solved=0)
        yield lambda done, total, solved: bar.update(task, completed=done, total=total, solved=solved)


def _print_result(name: str, model: str, result: EvalResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_row("solved", f"{result.solved} of {result.total} ({result.solved / result.total:.1%})")
    table.add_row("steps per canvas", f"{result.mean_steps:.2f}")
    table.add_row("tokens per forward", f"{result.tokens_per_forward:.2f}")
    if (error := result.calibration_error) is not None:
        table.add_row("calibration error", f"{error:.3f}")
    table.add_row("seconds", f"{result.seconds:.1f} ({result.seconds / result.total:.2f} per item)")
    console = Console(highlight=False)
    console.print(f"{name} with {model}", style="bold", markup=False)
    console.print(table)


def _print_curves(curves: dict[str, list[CurvePoint]]) -> None:
    for name, points in curves.items():
        for point in points:
            print(f"{name}: at most {point.budget:2} steps: {point.share:6.1%} at {point.mean_steps:.2f} steps")


def _print_formats(results: list[FormatResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = list(results[0].tasks)
    table = Table("weights", "KL, nats", "same argmax", *(f"{n}, steps" for n in names), box=None, padding=(0, 2))
    for result in results:
        scores = (f"{r.solved}/{r.total}, {r.mean_steps:.1f}" for r in result.tasks.values())
        table.add_row(result.format, f"{result.divergence:.5f}", f"{result.agreement:.2%}", *scores)
    Console(highlight=False).print(table)


def _write_records(path: Path | None, records: Sequence[ItemRecord]) -> None:
    """Write every item's answer if asked; after the figures are printed, which a full disk must not take along."""
    import json

    if path is None:
        return
    lines = (json.dumps(dataclasses.asdict(record), ensure_ascii=False) for record in records)
    write_file(path, "".join(f"{line}\n" for line in lines))
