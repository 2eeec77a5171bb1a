"""`redraft train RECIPE`: run a training recipe from its TOML file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.errors import InputError, RedraftError, SettingError

if TYPE_CHECKING:
    from redraft.train.check import Sample


def run(
    recipe: str | Path, *, resume: bool = False, out: str | None = None, max_seconds: float | None = None,
    device: str = "auto", as_json: bool = False,
) -> None:  # fmt: skip
    """Train `recipe`; `out` and `max_seconds` replace the recipe's own. Prints a JSON object last with `as_json`."""
    from redraft.train import read_recipe, train
    from redraft.train.distributed import World

    settings = read_recipe(recipe)
    given = {"out": out, "max_seconds": max_seconds}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, **changes))
    result = train(settings, resume=resume, device=device)
    if not World.from_environment().is_main:
        return
    summary = {"step": result.step, "finished": result.finished, "loss": result.losses[-1] if result.losses else None,
               "tokens_per_second": round(result.tokens_per_second), "model": str(result.model_folder)}  # fmt: skip
    if as_json:
        print(json.dumps(summary))
    else:
        print(f"Step {result.step}; the model is in {result.model_folder}.")


SAMPLES = 2
"""Canvases of each source that `--check` shows."""


def check(recipe: str | Path, *, as_json: bool = False) -> None:
    """Show what a recipe's data look like to the model, without training."""
    from redraft.text.tokenizer import Tokenizer
    from redraft.train import check as checking
    from redraft.train import read_recipe
    from redraft.train.packing import Packer

    settings = read_recipe(recipe)
    packer = Packer(settings)
    tokenizer = Tokenizer.from_folder(settings.data.tokenizer) if settings.data.tokenizer else None
    figures = checking.figures(settings, packer)
    shown = list(checking.samples(settings, packer, tokenizer, SAMPLES))
    if as_json:
        print(json.dumps({"sources": [vars(part) for part in figures], "samples": [vars(part) for part in shown]}))
        return
    for part in figures:
        print(
            f"{part.source}: {part.rows:.0%} of the rows; a row holds {part.clean_tokens:.0f} of "
            f"{settings.data.tokens} clean tokens and {part.canvases:.1f} of {settings.data.canvases} canvases, "
            f"with {part.learned_tokens:.0f} tokens to learn"
        )
    for sample in shown:
        _print_sample(sample)


def check_alone(
    recipe: str | Path, *, resume: bool = False, out: str | None = None, max_seconds: float | None = None,
    device: str = "auto", as_json: bool = False,
) -> None:  # fmt: skip
    """`check` for a command line, whose other options would mean nothing. Raises `SettingError` for them."""
    if resume or out is not None or max_seconds is not None or device != "auto":
        raise SettingError("--check only shows data; it takes no other option than --json.")
    check(recipe, as_json=as_json)


def _print_sample(sample: Sample) -> None:
    """What is learned stands in double brackets."""
    from redraft.cli.printable import printable

    learned = "".join(f"[[{text}]]" if is_learned else text for text, is_learned in sample.spans)
    print(f"\n--- {sample.source}, canvas at token {sample.start}, noise level {sample.level:.2f}")
    print(f"context  ...{printable(sample.context[-300:])}")
    print(f"target   {printable(learned)}")
    print(f"shown    {printable(sample.noisy)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The same as a program of its own, for `python -m redraft.train`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m redraft.train", description="Train a model from a TOML recipe.")
    parser.add_argument("recipe")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    parser.add_argument("--out", help="output folder, instead of the recipe's")
    parser.add_argument("--max-seconds", type=float, help="stop cleanly after this time")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--check", action="store_true", help="show decoded samples of the data instead of training")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object last")
    options = vars(parser.parse_args(arguments))
    try:
        show_data = options.pop("check")
        (check_alone if show_data else run)(options.pop("recipe"), **options)
    except RedraftError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0
