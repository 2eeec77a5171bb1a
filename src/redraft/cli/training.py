"""`redraft train`: a training recipe, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.options import JsonFlag


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/tiny.toml.", metavar="RECIPE")],
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on from the checkpoint in the output folder.")
    ] = False,
    out: Annotated[str | None, typer.Option("--out", metavar="FOLDER", help="Output folder, not the recipe's.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="S", help="Stop cleanly after this time; 0 sets no limit.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Show decoded samples of the data instead of training.")
    ] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")] = "auto",
    json: JsonFlag = False,
) -> None:
    """Train a model from a TOML recipe, or go on training it."""
    from redraft.cli.train import check_alone, run

    action = check_alone if check else run
    action(recipe, resume=resume, out=out, max_seconds=max_seconds, device=device, as_json=json)
