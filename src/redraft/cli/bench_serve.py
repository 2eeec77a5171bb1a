"""`redraft bench serve`: how a server holds up when many ask at once."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from redraft.cli.bench_results import command_line
from redraft.cli.options import JsonAlone, SamplingOptions, at_least, check_picture, option
from redraft.cli.output import print_json
from redraft.cli.printable import counted
from redraft.errors import InputError, RedraftError

if TYPE_CHECKING:
    from redraft.bench.load import Level


def serve(
    url: Annotated[str | None, option("--url", "URL of a running server.", "URL", default="one is started")] = None,
    model: Annotated[
        str | None, option("--model", "The model of the server that is started.", "MODEL", default="tiny")
    ] = None,
    concurrency: Annotated[str, option("--concurrency", "Closed loop: clients at a time.", "N,N,...")] = "1,4,8",
    rates: Annotated[str, option("--rates", "Open loop: requests per second.", "X,X,...", default="none")] = "",
    requests: Annotated[int, option("--requests", "Requests of each load.", "N")] = 32,
    lengths: Annotated[Path | None, option("--lengths", "JSONL of prompt_tokens and max_tokens.", "FILE")] = None,
    preset: Annotated[str | None, option("--preset", "fast, balanced or careful.", "NAME", default="balanced")] = None,
    steps: Annotated[
        int | None, option("--steps", "Most denoising steps per canvas.", "N", default="the model's")
    ] = None,
    target: Annotated[float, option("--target", "Goodput counts first canvases within S seconds.", "S")] = 2.0,
    key: Annotated[str | None, option("--key", "API key of the server.", "KEY")] = None,
    plot: Annotated[Path | None, option("--plot", "Write a plot (PNG or SVG).", "FILE")] = None,
    json: JsonAlone = False,
) -> None:
    """Time to first canvas, whole answers, goodput and tokens/s, closed loop and open loop; the last line is JSON."""
    from rich.console import Console
    from rich.progress import Progress

    from redraft.bench.load import LoadGenerator, Target, make_questions, read_lengths

    if url is not None and model is not None:
        raise InputError("--url names a server that runs already, and --model one to be started; give one of them.")
    clients, speeds = _numbers("concurrency", concurrency), _numbers("rates", rates)
    at_least(1, requests=requests)
    if not clients + speeds:
        raise InputError("There is no load; give --concurrency or --rates.")
    if not 0 < target < math.inf:
        raise InputError(f"--target is {target}; it must be above 0 and finite.")
    pairs = read_lengths(lengths)
    check_picture(plot)
    settings = SamplingOptions(preset=preset, steps=steps).given()
    console = Console(stderr=True)
    levels: list[Level] = []
    with _server(url, model or "tiny") as address, Progress(console=console, disable=not console.is_terminal) as bar:
        server = Target(address, key=key)
        name = server.model()
        generator = LoadGenerator(server, name, make_questions(server, pairs, _text(), requests), settings)
        task = bar.add_task("asking", total=requests * (len(clients) + len(speeds)))
        warm_up = make_questions(server, pairs[:1], _text(), 2)
        LoadGenerator(server, name, warm_up, settings).closed(1, lambda: None)
        levels += [generator.closed(int(count), lambda: bar.advance(task)) for count in clients]
        levels += [generator.open(rate, lambda: bar.advance(task)) for rate in speeds]
    rows = [level.to_dict(target) for level in levels]
    if not json:
        _print(name, rows, target)
    print_json(_facts(name, rows, settings, pairs, target))
    if plot is not None:
        _plot(rows, name, plot)


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--{name} is {text!r}; it must be numbers separated by commas.") from error
    if any(not 0 < number <= 4096 or (name == "concurrency" and number % 1) for number in numbers):
        raise InputError(f"--{name} is {text!r}; its numbers must be above 0 and at most 4096, and whole for clients.")
    return numbers


@contextmanager
def _server(url: str | None, model: str) -> Iterator[str]:
    """The address of a server: the given one, or one that runs for the duration of the benchmark."""
    if url is not None:
        yield url
        return
    command = [sys.executable, "-m", "redraft", "serve", "--port", "0", "--model", model]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    import threading

    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r" at (http://\S+) ", line):
            # Nobody reads the log from here on, but it must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found[1]
    raise RedraftError("The server did not start: " + "".join(said).strip().removeprefix("error: "))


def _text() -> str:
    """Real text: prompts of random tokens would distort everything that depends on content."""
    lines = (files("redraft.eval") / "data" / "infill.jsonl").read_text(encoding="utf-8").splitlines()
    return "\n".join(str(json.loads(line).get("prefix", "")) for line in lines)


def _print(model: str, rows: Sequence[dict[str, Any]], target: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"{model}: seconds to the first canvas and to the whole answer, p50 and p95\n", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("load", no_wrap=True)
    for name in ("first", "p95", "answer", "p95", "good/s", "tok/s", "steps", "per fwd", "busy", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        load = counted(row["load"], "client") if row["mode"] == "closed" else f"{row['load']:g}/s"
        times = (f"{row[name]:.2f}" for name in ("first_canvas_p50", "first_canvas_p95", "answer_p50", "answer_p95"))
        table.add_row(load, *times, f"{row['goodput']:.2f}", f"{row['tokens_per_second']:.1f}",
                      f"{row['steps_per_canvas']:.1f}", f"{row['tokens_per_forward']:.1f}", f"{row['model_busy']:.0%}",
                      str(row["failed"]))  # fmt: skip
    console.print(table)
    console.print(
        f"\ngood/s: answers per second whose first canvas came within {target:g} s\nsteps: per canvas; per fwd: tokens "
        "per forward\nbusy: share of the time that forwards ran; 100 % is the ceiling, the rest is the server"
    )


def _plot(rows: Sequence[dict[str, Any]], model: str, file: Path) -> None:
    """Tokens per second and the wait for the first canvas, over the load."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    speed, wait = figure.subplots(1, 2)
    for mode, mark in (("closed", "o-"), ("open", "s--")):
        part = [row for row in rows if row["mode"] == mode]
        if not part:
            continue
        loads, label = [row["load"] for row in part], "clients" if mode == "closed" else "requests/s"
        speed.plot(loads, [row["tokens_per_second"] for row in part], mark, label=label)
        wait.plot(loads, [row["first_canvas_p50"] for row in part], mark, label=f"{label}, p50")
        wait.plot(loads, [row["first_canvas_p95"] for row in part], mark, label=f"{label}, p95", alpha=0.5)
    for axes, title in ((speed, f"{model}: tokens per second"), (wait, "seconds to the first canvas")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("load")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    figure.savefig(file, dpi=130)


def _facts(
    model: str, rows: list[dict[str, Any]], settings: dict[str, Any], lengths: Sequence[tuple[int, int]], target: float
) -> dict[str, Any]:
    from redraft.bench.machine import processor, versions

    return {
        "results": rows, "model": model, "settings": settings, "lengths": [list(pair) for pair in lengths],
        "target_seconds": target, "device": processor(), "versions": versions(),
        "command": command_line(),
    }  # fmt: skip
