"""`redraft bench`: how fast a model runs, and how fast this machine would allow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli import (
    bench_calls,
    bench_card,
    bench_constraints,
    bench_energy,
    bench_gpu,
    bench_schedule,
    bench_serve,
    bench_train,
)
from redraft.cli.bench_results import command_line, number_table
from redraft.cli.options import JsonAlone, ModelOptions, at_least, option
from redraft.cli.output import print_json
from redraft.errors import SettingError

if TYPE_CHECKING:
    from redraft.bench.cpu import CpuResult

app = typer.Typer(no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure how fast a model runs."""


for command in (
    bench_calls.calls,
    bench_constraints.constraints,
    bench_gpu.step,
    bench_gpu.kernels,
    bench_energy.energy,
    bench_gpu.roofline,
    bench_card.card,
    bench_schedule.schedule,
    bench_train.train,
):
    app.command()(command)
app.command()(bench_serve.serve)


@app.command()
def cpu(
    model: Annotated[str, option("--model", "tiny, a folder, or a hub id.", "MODEL")] = "tiny",
    steps: Annotated[int, option("--steps", "Denoising steps of the canvas.", "N")] = 16,
    repetitions: Annotated[int, option("--repetitions", "Measured turns of each engine.", "N")] = 5,
    threads: Annotated[int | None, option("--threads", "Threads to use.", "N", default="torch's choice")] = None,
    dtype: Annotated[
        str, option("--dtype", "auto (as stored; on a CPU what is faster), bfloat16 or float32.", "DTYPE")
    ] = "auto",
    alone: Annotated[bool, option("--alone", "Measure Redraft only.")] = False,
    json: JsonAlone = False,
) -> None:
    """Redraft and Transformers on this CPU: same weights, same settings, one process, taking turns.

    Prints committed tokens per second of both, their ratio, and the floor; the last line is JSON.
    """
    from rich.console import Console
    from rich.progress import Progress

    at_least(1, threads=threads)
    if (processors := os.cpu_count()) is not None and (threads or 0) > processors:
        raise SettingError(f"--threads is {threads}; this machine has {processors} processors.")
    llm = ModelOptions(model=model, device="cpu", dtype=dtype).load()
    import torch

    from redraft.bench.cpu import measure

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("measuring", total=None)
        result = measure(
            llm,
            steps=steps,
            repetitions=repetitions,
            compare=not alone,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if not json:
        _print(model, result)
    print_json(result.to_dict() | {"model": model, "command": command_line()})


def _print(model: str, result: CpuResult) -> None:
    import torch
    from rich.console import Console

    from redraft.bench.machine import processor, versions
    from redraft.kernels import native

    console = Console(highlight=False)
    console.print(f"{model}, one canvas of {result.canvas_length} tokens in {result.steps} steps after "
                  f"{result.prompt_tokens} prompt tokens, {result.dtype}", markup=False)  # fmt: skip
    set_up = f"{torch.get_num_threads()} threads, {'with' if native.available() else 'without'} kernels in C"
    console.print(f"{processor()}, {set_up}; {', '.join(f'{name} {number}' for name, number in versions().items())}\n")
    table = number_table("committed tokens/s", "min", "median", "max", "ms/step")
    for engine in (result.redraft, result.transformers):
        if engine is not None:
            speeds = engine.speeds(result.canvas_length)
            step = engine.ms_per_forward(result.steps)
            table.add_row(engine.name, *(f"{speeds[name]:.1f}" for name in ("min", "median", "max")), f"{step:.1f}")
    floor = result.canvas_length / result.floor_seconds
    table.add_row("floor", "", f"{floor:.1f}", "", f"{1e3 * result.floor_seconds / result.steps:.1f}")
    if (ratios := result.ratios) is not None:
        table.add_row("redraft : transformers", *(f"{ratios[name]:.2f}" for name in ("min", "median", "max")), "")
    console.print(table)
    rate = result.gemm_flops_per_second / 1e9
    console.print(f"\nThe floor is the arithmetic alone, at the {rate:.0f} GFLOP/s of this machine's matrix products.")
