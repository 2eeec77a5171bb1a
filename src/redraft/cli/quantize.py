"""`redraft quantize`: a smaller copy of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.options import JsonFlag, option
from redraft.cli.output import print_json
from redraft.cli.progress import progress_of
from redraft.cli.stopping import stopped_by_sigterm


def quantize(
    model: Annotated[str, typer.Argument(help="tiny, a folder, a GGUF file, or a hub id.", metavar="MODEL")],
    out: Annotated[Path, typer.Argument(help="The new folder.", metavar="OUT")],
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="fp8, or int4 (experts; the rest in fp8).")
    ] = "fp8",
    group: Annotated[
        int | None,
        option("--group", "Inputs that share a scale in int4; GPUs take 32 and multiples of 64.", "N", default="64"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write a smaller copy of a model, in FP8 or INT4."""
    from redraft.kernels.cpu import return_freed_memory
    from redraft.model.quantize import quantize_folder

    return_freed_memory()
    with stopped_by_sigterm(), progress_of("quantizing") as progress:
        summary = quantize_folder(model, out, format, group=group, progress=progress)
    if json:
        print_json({"model": model, "out": str(out)} | summary)
        return
    parts = ", ".join(f"{size / 1e9:.3f} GB {name}" for name, size in summary["bytes_by_format"].items())
    print(f"{out}: {summary['bytes'] / 1e9:.3f} GB ({parts})")
