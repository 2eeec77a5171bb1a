"""`redraft chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.answer import INTERRUPTED, Tally, follow
from redraft.cli.images import image_part, with_images
from redraft.cli.options import ModelOptions, OutputOptions, SamplingOptions, Thinking, expand_groups
from redraft.cli.output import facts, print_json
from redraft.cli.prompt import enable_line_editing, read_typed
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.cli.trace import open_trace
from redraft.errors import InputError, check_utf8

if TYPE_CHECKING:
    from rich.console import Console

    from redraft.cli.trace import TraceWriter
    from redraft.llm import LLM

HELP = """\
/help        this list
/image FILE  show an image with the next message
/think       let the model think before it answers, or no longer (on or off says which)
/reset       forget the conversation
/quit        leave (so does Ctrl-D)
Ctrl-C       stop the answer and keep what is committed
\"\"\"          on a line of its own, before and after a message of several lines
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

    given = sampling.given(stop=output.stop, latency_budget_ms=output.latency_budget_ms)
    check_file(output.trace)
    llm = model.load()
    # Fail before anybody types if there is no chat template, or one without thoughts.
    llm.encode_chat([{"role": "user", "content": "?"}], thinking=thinking)
    trace = open_trace(output.trace, llm, model, given)
    conversation = _Conversation(llm, given, system, thinking, output, trace)
    with trace or nullcontext():
        code = _talk(conversation, Console(stderr=True, highlight=False))
    if output.json:
        print_json({"messages": conversation.messages, "answers": conversation.answers} | facts(llm, model, given))
    raise typer.Exit(code)


@dataclass(slots=True)
class _Conversation:
    llm: LLM
    given: dict[str, Any]
    system: str | None
    thinking: bool
    output: OutputOptions
    trace: TraceWriter | None
    messages: list[dict[str, Any]] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    """Images waiting for the next message."""
    answers: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over, with only the system's instructions."""
        self.shown = []
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def show(self, name: str) -> None:
        """Show an image with the next message. Raises `InputError` if it is not an image or the model has no vision."""
        part = image_part(name)
        self.llm.read_chat([{"role": "user", "content": [part]}])
        self.shown.append(part)

    def think(self, word: str) -> None:
        """Let the model think before it answers, or not: "on", "off", or "" for the other. Raises `InputError`."""
        if word not in ("", "on", "off"):
            raise InputError("/think takes on or off.")
        wanted = word == "on" if word else not self.thinking
        self.llm.encode_chat([{"role": "user", "content": "?"}], thinking=wanted)
        self.thinking = wanted

    def ask(self, text: str) -> Tally:
        """One exchange. A question that cannot be asked (it no longer fits) leaves the conversation as it was."""
        from redraft.cli.view import screen_for
        from redraft.text.marks import Marker
        from redraft.text.reply import read_reply

        check_utf8(text, "The message")
        question = {"role": "user", "content": with_images(text, self.shown)}
        prompt = self.llm.read_chat([*self.messages, question], thinking=self.thinking)
        records = self.llm.stream(prompt, thinking=self.thinking, **self.given)
        screen = screen_for(self.llm, self.given, live=not self.output.no_live, json=self.output.json)
        if self.trace is not None:
            self.trace.turn(text)
        tally = follow(records, screen, self.trace)
        self.answers.append(tally.to_dict())
        if _is_worth_keeping(tally):
            # Thoughts do not belong in a history: the chat format expects them to be left out.
            said = read_reply(Marker(self.llm.tokenizer).mark(tally.text, tally.token_ids)).content
            self.messages += [question, {"role": "assistant", "content": said}]
            self.shown = []
        return tally


def _is_worth_keeping(tally: Tally) -> bool:
    return bool(tally.text) or tally.finish_reason != INTERRUPTED


def _talk(conversation: _Conversation, console: Console) -> int:
    """Read and answer until the end of input; returns the exit code. Other messages go to standard error."""
    interactive = sys.stdin.isatty()
    if interactive:
        enable_line_editing()
        console.print("Talk to the model. /help lists the commands.", style="dim")
    while (given := _read(interactive)) is not None:
        line = given.removeprefix("\ufeff")
        match line.strip() if "\n" not in line else line.strip("\n"):
            case text if not text.strip():
                continue
            case text if "\n" in line:  # several lines are no command, whatever they begin with
                _ask(conversation, text, console)
            case "/quit":
                return 0
            case "/reset":
                conversation.reset()
                console.print("The conversation is forgotten.", style="dim")
            case "/help":
                console.print(HELP, style="dim")
            case show if show.split()[0] == "/image":
                _show(conversation, show.removeprefix("/image").strip(), console, interactive)
            case think if think.split()[0] == "/think":
                _think(conversation, think.removeprefix("/think").strip(), console, interactive)
            case command if command.startswith("/"):
                console.print(f"There is no command {command.split()[0]}; /help lists them.", style="dim", markup=False)
            case text if interactive:
                _ask(conversation, text, console)
            case text:
                if conversation.ask(text).finish_reason == INTERRUPTED:
                    return EXIT_INTERRUPTED
    return 0


def _ask(conversation: _Conversation, text: str, console: Console) -> None:
    """One exchange with a person, who can fix what cannot be asked."""
    try:
        conversation.ask(text)
    except InputError as error:
        console.print(f"error: {str(error).rstrip('.')}. /reset forgets the conversation.", style="red", markup=False)
    console.print()


def _show(conversation: _Conversation, name: str, console: Console, interactive: bool) -> None:
    """Take an image for the next message; if it is not an image, a person is told so and nothing changes."""
    try:
        if not name:
            raise InputError("/image needs the name of a file.")
        conversation.show(name)
    except InputError as error:
        if not interactive:
            raise
        console.print(f"error: {str(error).rstrip('.')}.", style="red", markup=False)
        return
    if interactive:
        console.print(f"{name} will be shown with your next message.", style="dim", markup=False)


def _think(conversation: _Conversation, word: str, console: Console, interactive: bool) -> None:
    """Turn thinking on or off; if that cannot be, a person is told so and nothing changes."""
    try:
        conversation.think(word)
    except InputError as error:
        if not interactive:
            raise
        console.print(f"error: {str(error).rstrip('.')}.", style="red", markup=False)
        return
    if interactive:
        said = "thinks before it answers" if conversation.thinking else "answers without thinking first"
        console.print(f"The model {said}.", style="dim")


def _read(interactive: bool) -> str | None:
    """What comes next, None at the end of input: one line of a pipe, or whatever a person enters at once."""
    if interactive:
        return read_typed(_is_command)
    try:
        return input()
    except EOFError:
        return None


def _is_command(line: str) -> bool:
    return re.match(r"/\w+(\s|$)", line.strip()) is not None
