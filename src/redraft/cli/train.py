"""`redraft train RECIPE`: run a training recipe from its TOML file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from redraft.errors import InputError, RedraftError


def run(
    recipe: str | Path, *, resume: bool = False, out: str | None = None, max_seconds: float | None = None,
    device: str = "auto", as_json: bool = False,
) -> None:  # fmt: skip
    """Train `recipe`; `out` and `max_seconds` replace the recipe's own. Prints a JSON object last with `as_json`."""
    from redraft.train import read_recipe, train

    settings = read_recipe(recipe)
    given = {"out": out, "max_seconds": max_seconds}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, **changes))
    result = train(settings, resume=resume, device=device)
    summary = {"step": result.step, "finished": result.finished, "loss": result.losses[-1] if result.losses else None,
               "tokens_per_second": round(result.tokens_per_second), "model": str(result.model_folder)}  # fmt: skip
    if as_json:
        print(json.dumps(summary))
    else:
        print(f"Step {result.step}; the model is in {result.model_folder}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """The same as a program of its own, for `python -m redraft.train`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m redraft.train", description="Train a model from a TOML recipe.")
    parser.add_argument("recipe")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    parser.add_argument("--out", help="output folder, instead of the recipe's")
    parser.add_argument("--max-seconds", type=float, help="stop cleanly after this time")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object last")
    options = vars(parser.parse_args(arguments))
    try:
        run(options.pop("recipe"), **options)
    except RedraftError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0
