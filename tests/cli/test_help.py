"""Help and version answer at once, without torch."""

import builtins
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from outcome import Cli

import redraft
from redraft import __main__
from redraft.cli.main import app
from redraft.editing.api import DEFAULT_STEPS as edit_steps
from redraft.eval.curve import TASKS
from redraft.filling.api import DEFAULT_HOLE
from redraft.filling.api import DEFAULT_STEPS as fill_steps


def commands_of(group: Any, path: str = "") -> list[str]:
    """Every command by the words that call it; a group comes before its own."""
    found = []
    for name, command in group.commands.items():
        found += [path + name, *(commands_of(command, f"{path}{name} ") if hasattr(command, "commands") else ())]
    return found


COMMANDS = commands_of(typer.main.get_command(app))


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom redraft.cli.main import main\nassert main(['--help']) == 0\n"
        "heavy = {'torch', 'tokenizers', 'numpy', 'transformers'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS if " " not in name)


def shown_help(cli: Cli, command: str) -> str:
    outcome = cli(*command.split(), "--help")
    assert outcome.code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", outcome.out)


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_are_shown_without_a_type(cli: Cli, command: str) -> None:
    assert "bool" not in shown_help(cli, command).lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    assert "Usage: redraft " + command in shown_help(cli, command)


def test_a_terminal_without_a_size_is_shown_the_help_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "Usage: redraft replay" in shown_help(cli, "replay")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("eval", "bench")])
def test_every_command_can_end_with_json(cli: Cli, command: str) -> None:
    assert "--json " in shown_help(cli, command)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("edit", "FILE [INSTRUCTION]"), ("decide", "QUESTION..."), ("eval sudoku", "[FILE]"), ("eval tools", "[FILE]")],
)
def test_arguments_are_bracketed_once(cli: Cli, command: str, arguments: str) -> None:
    usage = shown_help(cli, command).split("Usage: ")[1].splitlines()[0].strip()
    # Typer writes what is required in braces or bare, depending on its version.
    assert usage.replace("{", "").replace("}", "") == f"redraft {command} [OPTIONS] {arguments}"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_common_options(cli: Cli, command: str) -> None:
    shown = shown_help(cli, command)
    options = (
        "model steps preset max-tokens canvas-length seed entropy-bound t-min t-max stop dtype device quantization"
    )
    assert all(f"--{name} " in shown for name in (*options.split(), "json", "trace", "no-live"))


@pytest.mark.parametrize(
    ("command", "steps", "tokens"),
    [
        ("fill", fill_steps, f"{DEFAULT_HOLE} a hole"),
        ("edit", edit_steps, "twice the old"),
        ("next-edit", edit_steps, ""),
        ("eval infill", fill_steps, f"{DEFAULT_HOLE} a hole"),
        ("eval edit", edit_steps, "twice the old"),
    ],
)
def test_defaults_are_those_that_apply(cli: Cli, command: str, steps: int, tokens: str) -> None:
    shown = " ".join(shown_help(cli, command).replace("\u2502", "").split())
    assert f"{steps}, or the model's if fewer" in shown
    assert tokens in shown
    assert "1024" not in shown


def test_only_evaluations_have_tasks_that_say_how_long_answers_are(cli: Cli) -> None:
    assert "what the answers need" in shown_help(cli, "eval sudoku")
    assert "answers need" not in shown_help(cli, "generate")


def test_paragraphs_are_wrapped_for_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = [line.strip() for line in shown_help(cli, "merge").splitlines()]
    assert "own dtype. Quantized weights, also those that the adapter does not change, become that dtype;" in lines


def test_distill_says_what_its_prompts_are_read_as(cli: Cli) -> None:
    shown = " ".join(shown_help(cli, "distill").split())
    assert "conversations, prompts with completions, or token ids" in shown
    assert "only what is asked counts" in shown


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"redraft {redraft.__version__}\n"


def test_ctrl_c_while_the_command_is_imported_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *rest: object) -> object:
        if name == "redraft.cli.main":
            raise KeyboardInterrupt
        return importing(name, *rest)

    importing = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert __main__.main() == 130


def test_every_task_has_a_command_and_every_command_a_place_in_the_documentation() -> None:
    usage = (Path(__file__).parents[2] / "docs/usage.md").read_text(encoding="utf-8")
    rows = " ".join(line for line in usage.splitlines() if line.startswith("| `"))
    assert {f"eval {task}" for task in TASKS} <= set(COMMANDS)
    assert not [name for name in COMMANDS if not re.search(rf"`{name.split()[-1]}[` ]", rows)]
