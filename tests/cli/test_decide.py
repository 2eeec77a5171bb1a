"""`decide`: a choice a line, everything in JSON, and bad input refused before a model is loaded."""

import re
from pathlib import Path

import pytest
from outcome import Cli

CHOICES = ("--choice", "yes", "--choice", "no", "--choice", "not at all")


def test_one_line_a_question(cli: Cli, folder: Path) -> None:
    outcome = cli("decide", "Is it?", "Was it?", *CHOICES, "--model", folder)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert len(lines) == 2
    assert set(lines) <= {"yes", "no", "not at all"}


def test_questions_from_standard_input(cli: Cli, folder: Path) -> None:
    piped = cli("decide", "-", *CHOICES, "--model", folder, stdin=b"Is it?\n\nWas it?\n")
    assert piped.out == cli("decide", "Is it?", "Was it?", *CHOICES, "--model", folder).out


def test_only_line_ends_part_questions(cli: Cli, folder: Path) -> None:
    piped = cli("decide", "-", *CHOICES, "--model", folder, stdin="Is it\u2028so?\r\nWas it\fso?".encode())
    assert piped.out == cli("decide", "Is it\u2028so?", "Was it\fso?", *CHOICES, "--model", folder).out


def test_json_has_every_probability(cli: Cli, folder: Path) -> None:
    outcome = cli("decide", "Is it?", *CHOICES, "--model", folder, "--reads", 2, "--sure", 1, "--json")
    (decision,) = outcome.json["decisions"]
    (reading,) = decision["readings"]
    assert sum(reading["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert reading["reads"] == 2
    assert decision["text"] == reading["choice"] == max(reading["probabilities"], key=reading["probabilities"].get)


def test_a_form_with_slots(cli: Cli, folder: Path) -> None:
    slots = ("--template", "The {animal} is {size}.", "--slot", "animal=cat|dog", "--slot", "size=big|very small")
    outcome = cli("decide", "What is it?", *slots, "--model", folder)
    assert re.fullmatch(r"The (cat|dog) is (big|very small)\.\n", outcome.out)


def test_a_terminal_sees_how_sure(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", cli("decide", "Is it?", *CHOICES, "--model", folder).out)
    assert re.search(r"(yes|no|not at all) +\d+\.\d% +█", plain)
    shares = [float(share) for share in re.findall(r"(\d+\.\d)%", plain)]
    assert shares == sorted(shares, reverse=True)
    assert re.search(r"\b(1 canvas|([2-9]|\d\d+) canvases) read", plain)


@pytest.mark.parametrize("long", ["no", "a choice of several words that needs a line of its own"])
def test_a_narrow_terminal_sees_whole_bars_and_numbers(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, long: str
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    choices = ("--choice", "yes", "--choice", long)
    shown = cli("decide", "Is it?", *choices, "--temperature", 0.001, "--model", folder).out
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "…" not in plain
    assert "100.0%  " + 15 * "█" in plain
    assert max(map(len, plain.splitlines())) <= 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Is it?",), "Give --choice for each choice, or --slot"),
        (("Is it?", *CHOICES, "--slot", "a=b|c"), "Give --choice for each choice, or --slot"),
        (("-", *CHOICES), "There is no question"),
        (("Is it?", "--choice", "yes"), "at least two choices"),
        (("Is it?", "--choice", "yes", "--choice", "yes"), "the same choice twice"),
        (("Is it?", "--choice", "yes", "--choice", ""), "non-empty strings"),
        (("Is it?", "--slot", "kind"), "must be NAME=A|B|C"),
        (("Is it?", "--slot", "a=b|c", "--slot", "a=d|e"), "once for each name"),
        (("Is it?", "--slot", "a=b|c", "--template", "It is {b}."), "The template has the slots 'b'"),
        (("Is it?", *CHOICES, "--template", "{choice"), "The template cannot be read"),
        (("Is it?", *CHOICES, "--temperature", "0"), "temperature is 0.0; it must be above 0"),
        (("Is it?", *CHOICES, "--sure", "2"), "sure is 2.0; it must be between 0 and 1"),
        (("Is it?", *CHOICES, "--reads", "0"), "reads is 0; it must be between 1 and 64"),
        ((" ", *CHOICES), "The question is empty"),
    ],
)
def test_bad_input(cli: Cli, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = cli("decide", *arguments, "--model", folder)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.out == ""
