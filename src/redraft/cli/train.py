"""`redraft train`: a training recipe, from the command line."""

from __future__ import annotations

import dataclasses
import re
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.options import JsonFlag
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.errors import SettingError

if TYPE_CHECKING:
    from redraft.train.check import Sample
    from redraft.train.recipe import Recipe


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/chat_lora.toml.", metavar="RECIPE")],
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Resume from the checkpoint in the output folder.")
    ] = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FOLDER", help="Output folder, instead of the recipe's.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="S", help="Stop cleanly after this time; 0 sets no limit.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Show the data and what LoRA changes, instead of training.")
    ] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")] = "auto",
    json: JsonFlag = False,
) -> None:
    """Train a model from a TOML recipe, or resume training it."""
    if not check:
        run(recipe, resume=resume, out=out, max_seconds=max_seconds, device=device, as_json=json)
    elif resume or max_seconds is not None or device != "auto":
        raise SettingError("--check trains nothing; the only other options it takes are --out and --json.")
    else:
        show_data(recipe, out=out, as_json=json)


def run(
    recipe: str | Path, *, resume: bool = False, out: str | None = None, max_seconds: float | None = None,
    device: str = "auto", as_json: bool = False,
) -> None:  # fmt: skip
    """Train `recipe`; `out` and `max_seconds` override the recipe's own. With `as_json`, prints a JSON object last."""
    from redraft.train import train
    from redraft.train.distributed import World

    settings = _read(recipe, out=out, max_seconds=max_seconds)
    result = train(settings, resume=resume, device=device)
    if not World.from_environment().is_main:
        return
    summary = {"step": result.step, "finished": result.finished, "loss": result.losses[-1] if result.losses else None,
               "tokens_per_second": round(result.tokens_per_second), "model": str(result.model_folder)}  # fmt: skip
    if as_json:
        print(dumps(summary))
    else:
        print(f"Step {result.step}; the {'model' if settings.lora is None else 'adapter'} is in {result.model_folder}.")
    if result.interrupted and not result.finished:
        raise typer.Exit(EXIT_INTERRUPTED)


def _read(recipe: str | Path, **given: Any) -> Recipe:
    """The recipe with the `given` settings of its table [run]."""
    from redraft.train import read_recipe

    settings = read_recipe(recipe)
    changes = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(settings, run=dataclasses.replace(settings.run, **changes))


SAMPLES = 2
"""Canvases of each source that `--check` shows."""


def show_data(recipe: str | Path, *, out: str | None = None, as_json: bool = False) -> None:
    """Show what a recipe's data look like to the model, and what its adapter changes, without training.

    Raises `SettingError` for LoRA targets or a rank that the model does not have, if `out` already contains a run, and
    if the run would write over what it begins with.
    """
    from redraft.text.tokenizer import Tokenizer
    from redraft.train import check as checking
    from redraft.train.export import check_apart
    from redraft.train.lora import adapted_modules
    from redraft.train.packing import Packer
    from redraft.train.resuming import check_begins_in

    settings = _read(recipe, out=out)
    if out is not None:
        check_begins_in(Path(out))
    check_apart(settings)
    modules = [] if settings.lora is None else adapted_modules(settings.model, settings.lora)
    packer = Packer(settings)
    tokenizer = Tokenizer.from_folder(settings.data.tokenizer) if settings.data.tokenizer else None
    figures = checking.figures(settings, packer)
    shown = list(checking.samples(settings, packer, tokenizer, SAMPLES))
    if as_json:
        told = {"sources": [vars(part) for part in figures], "samples": [vars(part) for part in shown]}
        print(dumps(told | {"adapted": modules}))
        return
    if settings.lora is not None:
        print(f"LoRA of rank {settings.lora.rank} in {len(modules)} modules, from {modules[0]} to {modules[-1]}")
    for part in figures:
        print(
            f"{part.source}: {part.rows:.0%} of the rows; a row holds {part.clean_tokens:.0f} of "
            f"{settings.data.tokens} clean tokens and {part.canvases:.1f} of {settings.data.canvases} canvases, "
            f"with {part.learned_tokens:.0f} tokens to learn"
        )
        if part.epoch_steps:
            canvases = f", {part.answer_canvases:,} canvases of answers" if part.answer_canvases else ""
            print(
                f"  in all {part.documents:,} documents to train on, {part.tokens:,} tokens{canvases}: an epoch takes "
                f"{part.epoch_steps:,.1f} steps, optimizer.steps = {settings.optimizer.steps} are "
                f"{settings.optimizer.steps / part.epoch_steps:,.1f} epochs"
            )
    for sample in shown:
        _print_sample(sample)


def _print_sample(sample: Sample) -> None:
    """Print a sample with the learned text in double brackets."""
    from redraft.cli.printable import printable

    spans = [(_shortened(text), learned) for text, learned in sample.spans]
    target = "".join(f"[[{text}]]" if learned else text for text, learned in spans)
    print(f"\n--- {sample.source}, canvas at token {sample.start}, noise level {sample.level:.2f}")
    print(f"context  ...{printable(sample.context[-300:])}")
    print(f"target   {printable(target)}")
    print(f"shown    {printable(_shortened(sample.noisy))}")


def _shortened(text: str) -> str:
    """The text with every run of one special token, such as the ends that fill up a canvas, as its length."""

    def told(run: re.Match[str]) -> str:
        after = " " if run.end() < len(text) else ""
        return f"{run[1]} x {len(run[0]) // len(run[1])}{after}"

    return re.sub(r"(<\|?\w+\|?>)\1{3,}", told, text)
