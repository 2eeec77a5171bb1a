"""`redraft distill`: collect a model's own settled answers, to train it on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.options import JsonFlag, ModelOptions, SamplingOptions, expand_groups
from redraft.cli.output import print_json
from redraft.errors import InputError
from redraft.settings import resolve_settings


@expand_groups
def distill(
    prompts: Annotated[
        Path, typer.Argument(help="Training data of kind chat; its answers are left out.", metavar="PROMPTS.jsonl")
    ],
    out: Annotated[Path, typer.Argument(help="Where the kept answers go (JSON lines).", metavar="OUT.jsonl")],
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", help="Prompts answered together.")] = 16,
    *,
    model: ModelOptions,
    sampling: SamplingOptions,
    json: JsonFlag = False,
) -> None:
    """Collect a model's own settled answers, to train it on them.

    PROMPTS.jsonl contains conversations, prompts with completions, or token ids, like a recipe's source of kind chat.
    Their answers are ignored: only what is asked counts. The model answers with many steps; a recipe then trains for
    few.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn

    from redraft.outputs import check_new
    from redraft.train.distill import collect, prompts_of, unfinished

    given = sampling.given()
    if batch_size < 1:
        raise InputError(f"--batch-size is {batch_size}; it must be at least 1.")
    check_new(out, folder=False)
    llm = model.load()
    steps = resolve_settings(llm.defaults, **given).steps
    given.pop("steps", None)
    asked = list(prompts_of(prompts, llm))
    for prompt in asked:
        llm.request(prompt, steps=steps, **given)  # refuses what cannot be asked, before the first answer
    out.parent.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with Progress(TextColumn("answers"), MofNCompleteColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("answers", total=len(asked))
        try:
            result = collect(
                llm, asked, out, steps=steps, batch_size=batch_size, seed=given.pop("seed", 0),
                progress=lambda done: bar.update(task, completed=done), **given,
            )  # fmt: skip
        except KeyboardInterrupt:
            console.print(f"stopped; the answers so far are in {unfinished(out)}", markup=False, soft_wrap=True)
            raise
    if json:
        print_json({"out": str(out), **vars(result)})
    else:
        print(f"{result.kept} of {result.asked} answers settled, in {result.mean_steps:.1f} steps a canvas; see {out}.")
