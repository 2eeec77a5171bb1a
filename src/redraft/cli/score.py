"""`redraft score`: how likely given texts are after a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.options import JsonFlag, ModelOptions, expand_groups, read_prompt, read_words
from redraft.cli.output import print_json
from redraft.cli.printable import counted, printable
from redraft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.scoring import Score


@expand_groups
def score(
    prompt: Annotated[
        str, typer.Argument(help="What comes before each text; - reads it from standard input.", metavar="PROMPT")
    ],
    texts: Annotated[
        list[str],
        typer.Argument(help="A text; - reads one per line.", metavar="TEXT", show_default=False),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", metavar="", help="The prompt is plain text, which the texts continue.")
    ] = False,
    *,
    model: ModelOptions,
    json: JsonFlag = False,
) -> None:
    """Score texts: the log-probability of each after the prompt, in nats, by one causal pass."""
    if prompt == "-" and "-" in texts:
        raise InputError("Standard input can be the prompt or the texts, not both; give one of them as it is.")
    before, given = read_prompt(prompt, raw=raw), [one for text in texts for one in _texts(text)]
    if not given:
        raise InputError("There is no text; give one, or one per line.")
    llm = model.load()
    scores = llm.score_batch(given, [before] * len(given), raw=raw)
    if not json:
        _show(scores)
    else:
        print_json({**model.names, "scores": [one.to_dict() for one in scores]})


def _texts(text: str) -> list[str]:
    """The text, or those of standard input for `-`. Raises `InputError` for an empty line: each has its own score."""
    if text != "-":
        return [text]
    from redraft.text.line_ends import split_lines

    lines = [line.rstrip("\r\n") for line in split_lines(read_words("-", "The texts"))]
    if "" in lines:
        raise InputError(f"Line {lines.index('') + 1} of standard input is empty; a text has at least one character.")
    return lines


def _show(scores: list[Score]) -> None:
    """Only the sums in a pipe; in a terminal also every token's part."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write("".join(f"{one.logprob:.4f}\n" for one in scores))
        return
    for one in scores:
        _show_in_terminal(one, console)


def _show_in_terminal(score: Score, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for piece, logprob in zip(score.pieces, score.logprobs, strict=True):
        table.add_row(f"{logprob:9.3f}", Text(printable(repr(piece)), "green"))
    console.print(table)
    console.print(f"{score.logprob:9.3f}  {counted(len(score.tokens), 'token')}", style="bold")
