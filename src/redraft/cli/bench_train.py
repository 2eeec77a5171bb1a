"""`redraft bench train`: how fast a model of a shape trains on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from redraft.cli.bench_results import command_line
from redraft.cli.options import JsonAlone
from redraft.cli.output import print_json
from redraft.errors import SettingError


def train(
    shape: Annotated[
        str, typer.Option("--shape", metavar="NAME", help="26b-a4b, tiny, nano, a folder, or a hub id.")
    ] = "26b-a4b",
    rank: Annotated[int, typer.Option("--rank", metavar="R", help="Rank of LoRA; 0 trains all weights.")] = 16,
    quantization: Annotated[
        str | None, typer.Option("--quantization", metavar="FORMAT", help="fp8 or int4: format of the frozen weights.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="Rows of a batch on each device.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="Clean tokens of a row.")] = 2048,
    canvases: Annotated[int, typer.Option("--canvases", metavar="N", help="Canvases of a row.")] = 8,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Timed steps, after the warm-up.")] = 5,
    keep: Annotated[
        bool,
        typer.Option("--keep-activations", metavar="", help="Keep all activations: faster, but takes more memory."),
    ] = False,
    eager: Annotated[bool, typer.Option("--eager", metavar="", help="Do not compile.")] = False,
    no_capture: Annotated[bool, typer.Option("--no-capture", metavar="", help="Launch kernel by kernel.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")] = "auto",
    json: JsonAlone = False,
) -> None:
    """Train random weights of a shape on random tokens: memory, tokens/s, and percent of the bf16 peak.

    The two streams of a step are the clean rows and their canvases. Under torchrun the figures are of all devices.
    """
    from redraft.bench.machine import versions
    from redraft.bench.random_weights import check_memory
    from redraft.model.folders import shape_of
    from redraft.train.bench import BenchSettings, measure
    from redraft.train.distributed import World

    if eager and no_capture:
        raise SettingError("--no-capture has no effect with --eager, which launches kernel by kernel; remove it.")
    settings = BenchSettings(
        rank=rank, quantization=quantization or "", rows=rows, tokens=tokens, canvases=canvases, steps=steps,
        recompute=not keep, compile=not eager, capture=not no_capture,
    )  # fmt: skip
    config, world = shape_of(shape), World.from_environment()
    if world.device(device).type == "cpu":
        check_memory(shape, config, "fp32")
    record = measure(config, settings, device=device)
    if not world.is_main:
        return
    if not json:
        share = "unknown" if record["share_of_peak"] is None else f"{record['share_of_peak']:.1%}"
        memory = "" if record["memory_gb"] is None else f", {record['memory_gb']:.1f} GB"
        print(
            f"{shape} on {record['devices']} x {record['device']}: {record['seconds_per_step']:.3f} s a step, "
            f"{record['all_tokens_per_second']:,} tokens/s ({record['clean_tokens_per_second']:,} clean), "
            f"{record['tflops_per_device']} TFLOP/s a device, {share} of the bf16 peak{memory}"
        )
    print_json({"shape": shape, **record, "versions": versions(), "command": command_line()})
