"""`redraft decide`: which of several choices, and how sure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.options import JsonFlag, ModelOptions, expand_groups, read_words
from redraft.cli.output import print_json
from redraft.cli.printable import counted, printable
from redraft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.deciding import Decision

BAR = 30
"""Length of a bar for probability 1, in characters, where the terminal has room for it."""


@expand_groups
def decide(
    questions: Annotated[
        list[str], typer.Argument(help="What to decide; - reads one question per line.", metavar="QUESTION")
    ],
    choice: Annotated[
        list[str] | None, typer.Option("--choice", metavar="TEXT", help="A choice; repeat the option for each.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", metavar="TEXT", help='The answer with {slots}: "It is a {kind}."')
    ] = None,
    slot: Annotated[
        list[str] | None,
        typer.Option("--slot", metavar="NAME=A|B|C", help="A slot of the template; repeat the option for each."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", metavar="", help="Discount the model's answer to a question without content.")
    ] = False,
    temperature: Annotated[float, typer.Option("--temperature", metavar="X", help="Divides the log-odds.")] = 1.0,
    sure: Annotated[float, typer.Option("--sure", metavar="P", help="Read again below this probability.")] = 0.9,
    reads: Annotated[int, typer.Option("--reads", metavar="N", help="Most reads of a question.")] = 4,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the noise on the canvas.")] = 0,
    *,
    model: ModelOptions,
    json: JsonFlag = False,
) -> None:
    """Choose among answers, with probabilities: read from a short pinned canvas."""
    from redraft.deciding.api import Rule
    from redraft.deciding.form import Form

    asked = [line for question in questions for line in _questions(question)]
    if not asked:
        raise InputError("There is no question; give one, or one per line.")
    choices = _choices(choice, slot)
    Form.of(choices, template)  # this and the rule are only checked, so that a typo fails before a long load
    Rule(calibrate=calibrate, temperature=temperature, sure=sure, reads=reads, seed=seed)
    llm = model.load()
    decisions = llm.decide(
        asked,
        choices,
        template=template,
        calibrate=calibrate,
        temperature=temperature,
        sure=sure,
        reads=reads,
        seed=seed,
    )
    assert isinstance(decisions, list), "a list of questions has a list of answers"
    if not json:
        _show(asked, decisions)
    else:
        print_json({**model.names, "decisions": [one.to_dict() for one in decisions]})


def _questions(question: str) -> list[str]:
    if question != "-":
        return [question]
    from redraft.text.line_ends import split_lines

    lines = split_lines(read_words("-", "The questions"))
    return [line.rstrip("\r\n") for line in lines if line.strip()]


def _choices(choice: list[str] | None, slot: list[str] | None) -> list[str] | dict[str, list[str]]:
    if bool(choice) == bool(slot):
        raise InputError("Give --choice for each choice, or --slot for each slot of the --template.")
    if choice:
        return choice
    slots: dict[str, list[str]] = {}
    for text in slot or ():
        name, sign, values = text.partition("=")
        if not sign or name in slots:
            raise InputError(f"--slot is {text!r}; it must be NAME=A|B|C, once for each name.")
        slots[name] = values.split("|")
    return slots


def _show(questions: list[str], decisions: list[Decision]) -> None:
    """Only the filled form in a pipe; in a terminal also how sure the model was."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write("".join(f"{decision.text}\n" for decision in decisions))
        return
    for question, decision in zip(questions, decisions, strict=True):
        _show_in_terminal(question, decision, console)


def _show_in_terminal(question: str, decision: Decision, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    bar = min(BAR, console.width // 2 - 5)
    console.print(Text(printable(question), "dim"), soft_wrap=True)
    for reading in decision.readings:
        table = Table.grid(padding=(0, 2))
        for choice, p in sorted(reading.probabilities.items(), key=lambda pair: -pair[1]):
            style = "bold green" if choice == reading.choice else ""
            table.add_row(Text(printable(choice), style), f"{p:6.1%}", Text("\u2588" * round(bar * p), "green"))
        if len(decision.readings) > 1:
            console.print(Text(reading.name, "bold"))
        console.print(table)
    reads = ", ".join(str(reading.reads) for reading in decision.readings)
    console.print(f"{counted(decision.forwards, 'canvas')} read \u00b7 reads: {reads}", style="dim")
