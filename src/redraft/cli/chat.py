"""`redraft chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.answer import INTERRUPTED
from redraft.cli.conversation import Conversation
from redraft.cli.options import ModelOptions, OutputOptions, SamplingOptions, Thinking, expand_groups
from redraft.cli.output import print_json
from redraft.cli.prompt import TypedInput, enable_line_editing
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.cli.trace import open_trace
from redraft.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

HELP = """\
/help            this list
/image FILE      show an image with the next message
/think on|off    whether the model thinks before it answers
/set NAME VALUE  a setting of later answers (steps, preset, seed ...); without VALUE the model's own
/retry           answer the last message again, with another seed
/save FILE       write the conversation as JSON
/reset           forget the conversation
/quit            leave (so does Ctrl-D)
Ctrl-C           stop the answer and keep what is committed
\"\"\"              on a line of its own, before and after a message of several lines
                 (lines that are pasted together are one message anyway)"""


@expand_groups
def chat(
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Instructions before the conversation.")
    ] = None,
    *,
    thinking: Thinking = False,
    model: ModelOptions,
    sampling: SamplingOptions,
    output: OutputOptions,
) -> None:
    """Talk with a model.

    /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.
    """
    from rich.console import Console

    from redraft.outputs import check_file

    given = sampling.given(**output.settings)
    check_file(output.trace)
    llm = model.load()
    # Fail before anybody types if there is no chat template, or one without thoughts.
    llm.encode_chat([{"role": "user", "content": "?"}], thinking=thinking)
    trace = open_trace(output.trace, llm, model, given)
    conversation = Conversation(llm, model, given, system, thinking, output, trace)
    with trace or nullcontext():
        code = _talk(conversation, Console(stderr=True, highlight=False))
    if output.json:
        print_json(conversation.to_dict())
    raise typer.Exit(code)


def _talk(conversation: Conversation, console: Console) -> int:
    """Read and answer until the end of input; returns the exit code. Other messages go to standard error."""
    interactive = sys.stdin.isatty()
    if interactive:
        enable_line_editing()
        console.print("Talk to the model. /help lists the commands.", style="dim")
    for given in _lines(interactive):
        text = given.removeprefix("\ufeff")
        several = "\n" in text  # which are no command, whatever they begin with
        text = text.strip("\n") if several else text.strip()
        name, argument = "" if several else text.split(" ")[0], text.partition(" ")[2].strip()
        if not text.strip():
            continue
        if name == "/quit":
            return 0
        hint = ""
        try:
            if name.startswith("/") and name != "/retry":
                told = _COMMANDS[name](conversation, argument) if name in _COMMANDS else _unknown(name)
                console.print(told, style="dim", markup=False)
                continue
            hint = " /reset forgets the conversation."
            tally = conversation.retry() if name == "/retry" else conversation.ask(text)
            if tally.finish_reason == INTERRUPTED and not interactive:
                return EXIT_INTERRUPTED
        except InputError as error:
            if not interactive:  # only a person can go on
                raise
            console.print(f"error: {str(error).rstrip('.')}.{hint}", style="red", markup=False)
        if interactive:
            console.print()
    return 0


def _unknown(name: str) -> str:
    return f"There is no command {name}; /help lists them."


_COMMANDS: dict[str, Callable[[Conversation, str], str]] = {
    "/help": lambda conversation, argument: HELP,
    "/image": Conversation.show,
    "/think": Conversation.think,
    "/set": Conversation.set,
    "/save": Conversation.save,
    "/reset": Conversation.reset,
}
"""What a command does with what follows it, and what a person is told then; `/retry` and `/quit` are the loop's own."""


def _lines(interactive: bool) -> Iterator[str]:
    """What comes next until the end of input: one line of a pipe, or whatever a person enters at once."""
    read = TypedInput(_is_command).read if interactive else _line_of_a_pipe
    return iter(read, None)


def _line_of_a_pipe() -> str | None:
    try:
        return input()
    except EOFError:
        return None


def _is_command(line: str) -> bool:
    return line.strip().split(" ")[0] in {*_COMMANDS, "/retry", "/quit"}
