"""`redraft convert`: a copy of a model in full precision, whatever it is stored in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.options import JsonFlag, option
from redraft.cli.output import print_json
from redraft.cli.progress import progress_of
from redraft.cli.stopping import stopped_by_sigterm


def convert(
    model: Annotated[str, typer.Argument(help="tiny, a folder, a GGUF file, or a hub id.", metavar="MODEL")],
    out: Annotated[Path, typer.Argument(help="The new folder.", metavar="OUT")],
    dtype: Annotated[str, option("--dtype", "bfloat16, float16 or float32.", "DTYPE")] = "bfloat16",
    json: JsonFlag = False,
) -> None:
    """Write a plain copy of a model, such as one in a GGUF file or quantized: a folder that Transformers reads, too.

    `redraft quantize` makes it small again, with a further rounding.
    """
    from redraft.kernels.cpu import return_freed_memory
    from redraft.model.convert import convert_folder

    return_freed_memory()
    with stopped_by_sigterm(), progress_of("converting") as progress:
        summary = convert_folder(model, out, dtype, progress=progress)
    if json:
        print_json({"model": model, "out": str(out)} | summary)
        return
    print(f"{out}: {summary['bytes'] / 1e9:.3f} GB in {summary['dtype']}")
