"""`redraft bench schedule`: the scheduler's policies compared."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from redraft.cli.bench_results import command_line, number_table
from redraft.cli.options import JsonAlone, ModelOptions, at_least, check_picture, option
from redraft.cli.output import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.bench.schedule import Measured, Row
    from redraft.llm import LLM


def schedule(
    model: Annotated[str, option("--model", "tiny, a folder, or a hub id.", "MODEL")] = "tiny",
    simulated: Annotated[int, option("--simulated", "Requests per simulation.", "N")] = 150,
    measured: Annotated[int, option("--measured", "Requests for the model; 0 for none.", "N")] = 12,
    slots: Annotated[
        int, option("--slots", "Requests worked on at a time; at most a third of those for the model.", "N")
    ] = 8,
    max_tokens: Annotated[int, option("--max-tokens", "Tokens of each answer measured.", "N")] = 64,
    device: Annotated[str, option("--device", "auto, cpu, cuda or cuda:N.", "DEVICE")] = "auto",
    plot: Annotated[Path | None, option("--plot", "Draw the simulations to FILE.", "FILE")] = None,
    json: JsonAlone = False,
) -> None:
    """Mixed steps, one step at a time, and run-to-completion: simulated on recorded step counts, and measured.

    Simulations run the real scheduler against a cost model of a forward. Prints tables; the last line is JSON.
    """
    from rich.console import Console

    from redraft.bench.machine import device_facts, processor, versions
    from redraft.bench.schedule import COSTS, simulate_all
    from redraft.bench.schedule_plot import draw

    at_least(1, simulated=simulated, slots=slots, max_tokens=max_tokens)
    at_least(0, measured=measured)
    check_picture(plot)
    console = Console(highlight=False)
    rows = simulate_all(requests=simulated, slots=slots)
    if not json:
        _print(console, rows)
    llm = ModelOptions(model=model, device=device).load() if measured else None
    measured_slots = max(1, min(slots, measured // 3))  # some requests wait, so that there is something to decide
    answers = [] if llm is None else _measure(llm, measured, measured_slots, max_tokens)
    if answers and not json:
        _print_measured(console, model, answers)
    record = {
        "bench": "schedule",
        "simulated": [row.to_dict() for row in rows],
        "measured": [one.to_dict() for one in answers],
        "costs": {cost.name: {"ms_at_tokens": dict(cost.points), "source": cost.source} for cost in COSTS},
        "model": model,
        "slots": slots,
        "measured_slots": measured_slots if answers else None,
        **({"device": processor()} if llm is None else device_facts(llm.model.device)),
        "versions": versions(),
        "command": command_line(),
    }
    print_json(record)
    if plot is not None:
        draw(rows, plot)


def _measure(llm: LLM, requests: int, slots: int, max_tokens: int) -> list[Measured]:
    """Every policy in turn, after a round that is discarded."""
    from redraft.bench.schedule import measure
    from redraft.engine.policy import POLICIES

    measure(llm, "mixed", requests=1, slots=1, max_tokens=16)
    return [measure(llm, policy, requests=requests, slots=slots, max_tokens=max_tokens) for policy in POLICIES]


def _print(console: Console, rows: list[Row]) -> None:
    """A table for each cost model and distribution of steps."""
    columns = ("canv./s", "first", "p95", "answer", "p95", "per forward")
    for (cost, steps), group in groupby(rows, lambda row: (row.cost, row.steps)):
        table = number_table("policy", *columns, gap=2)
        for row in group:
            load = "at once" if row.load is None else f"{row.load:.0%}"
            times = (f"{seconds:.2f}" for seconds in (*row.first_canvas, *row.answer))
            name = f"{load}, {row.policy}"
            table.add_row(name, f"{row.canvases_per_second:.2f}", *times, f"{row.occupancy:.2f}")
        console.print(f"{cost}, {steps}; seconds until the first canvas and the answer: median, p95", soft_wrap=True)
        console.print(table)
        console.print()


def _print_measured(console: Console, model: str, answers: list[Measured]) -> None:
    columns = ("tok/s", "canvases/s", "first canvas p50", "p95", "canvases/forward", "scheduler")
    table = number_table(f"{model}, measured", *columns)
    for one in answers:
        row = one.row
        table.add_row(
            row.policy, f"{one.tokens / one.seconds:.1f}", f"{row.canvases_per_second:.2f}",
            f"{row.first_canvas[0]:.2f} s", f"{row.first_canvas[1]:.2f} s", f"{row.occupancy:.2f}",
            f"{one.scheduler_share:.2%} of a forward",
        )  # fmt: skip
    console.print(table)
