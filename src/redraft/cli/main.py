"""The command `redraft`. Exit codes: 0, 1 (failed while running), 2 (bad input), 130 (stopped by Ctrl-C)."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from redraft.checks import TEMPERATURES
from redraft.cli import bench, evaluate
from redraft.cli.chat import chat
from redraft.cli.convert import convert
from redraft.cli.decide import decide
from redraft.cli.distill import distill
from redraft.cli.edit import edit
from redraft.cli.fill import fill
from redraft.cli.generate import generate
from redraft.cli.inspect import inspect
from redraft.cli.merge import merge
from redraft.cli.next_edit import next_edit
from redraft.cli.quantize import quantize
from redraft.cli.replay import replay
from redraft.cli.score import score
from redraft.cli.serve import serve
from redraft.cli.stopping import EXIT_INTERRUPTED
from redraft.cli.train import train
from redraft.errors import NO_TEMPLATE, WITHOUT_TEMPLATE, InputError, RedraftError

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
HELP_OPTIONS = ["-h", "--help"]

# Depending on its version, Typer bundles Click or uses the installed one; this is either's class.
_UsageError = cast(type[Exception], typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="redraft",
    help="The engine for DiffusionGemma, which drafts a canvas of tokens at once and redrafts it until it is right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_OPTIONS},
)
_PANELS = {
    "Write": (generate, chat, fill, edit, next_edit, decide),
    "Look": (score, replay, inspect),
    "Serve and measure": (serve,),
    "Make models": (train, distill, merge, convert, quantize),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(evaluate.app, name="eval", help="Measure what a model can do.", rich_help_panel="Serve and measure")
app.add_typer(bench.app, name="bench", help="Measure how fast it is.", rich_help_panel="Serve and measure")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""
    if version:
        from redraft import __version__

        print(f"redraft {__version__}")
        raise typer.Exit


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every expected error becomes one line on standard error."""
    _use_streams_as_they_are()
    _forget_empty_sizes()
    try:
        code = _commands()(args=args, prog_name="redraft", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except _UsageError as error:
        return _usage(error)
    except InputError as error:
        return _fail(_with_options(error), EXIT_BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _fail(_about_file(error), EXIT_FAILED)
    except (RedraftError, MemoryError) as error:
        return _fail(str(error) or type(error).__name__, EXIT_FAILED)
    except Exception as error:
        message = _about_resources(error)
        if message is None:
            raise
        return _fail(message, EXIT_FAILED)


def _with_options(error: InputError) -> str:
    """What an error says, with an option where Python has an argument."""
    if error.code == NO_TEMPLATE:
        return f"{WITHOUT_TEMPLATE} With --raw, `redraft generate` and `redraft score` take it."
    return str(error)


def _commands() -> Any:
    """The whole command line, with what Typer gets wrong in help put right.

    `--help` is shown like other flags, without a value type, and paragraphs are wrapped anew.
    """
    root = typer.main.get_command(app)
    context, left = typer.Context(root, help_option_names=HELP_OPTIONS), [root]
    while left:
        command = left.pop()
        if (flag := command.get_help_option(context)) is not None:
            flag.metavar = ""
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
        left += getattr(command, "commands", {}).values()
    return root


def _use_streams_as_they_are() -> None:
    """Let outputs show a question mark for characters that their encoding lacks, instead of failing.

    Undecodable bytes in the input become lone surrogates, which the tokenizer reports. If the caller has closed a
    stream (`>&-`), Python has None: then output is discarded, and the input is empty.
    """
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(os.devnull), encoding="utf-8")
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)


def _forget_empty_sizes() -> None:
    """Ignore a terminal that does not know its size and reports 0 columns, which Rich would take for a width."""
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name, "").strip("0") == "":
            os.environ.pop(name, None)


def _usage(error: Exception) -> int:
    message = getattr(error, "format_message", error.__str__)()
    if not message:  # a group without a command has already shown its help
        return EXIT_BAD_INPUT
    if getattr(error, "option_name", None) == "--temperature":
        message = f"No such option: --temperature. {TEMPERATURES.replace('t_', '--t-')}"
    context = getattr(error, "ctx", None)
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    return _fail(message + ("" if message.endswith((".", "?")) else ".") + hint, EXIT_BAD_INPUT)


def _about_resources(error: Exception) -> str | None:
    """What torch, which is not imported here, says when memory runs out; None for any other error."""
    message = str(error).partition("\n")[0]
    if type(error).__name__ == "OutOfMemoryError":
        return message
    bytes_asked = re.search(r"memory: you tried to allocate (\d+) bytes", message)
    return bytes_asked and f"There is no memory for another {int(bytes_asked[1]) / 1e9:,.1f} GB at once."


def _about_file(error: OSError) -> str:
    """What went wrong, and with which file if known, without a number that only programmers understand."""
    if error.strerror is None:
        return str(error)
    return f"{error.strerror}." if error.filename is None else f"{error.filename}: {error.strerror}."


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"error: {message}\n")
    return code
