"""`score`: a number for each text, every token in JSON and in a terminal, and bad input refused."""

import re
from pathlib import Path

import pytest
from outcome import Cli

import redraft

PROMPT, TEXTS = "What is it?", ("It is.", "Not at all!")


def test_one_number_a_text(cli: Cli, folder: Path) -> None:
    outcome = cli("score", PROMPT, *TEXTS, "--model", folder)
    scores = redraft.load(folder).score_batch(TEXTS, [PROMPT] * 2)
    assert outcome.code == 0
    assert outcome.out == "".join(f"{score.logprob:.4f}\n" for score in scores)


def test_texts_from_standard_input_keep_their_white_space(cli: Cli, folder: Path) -> None:
    arguments = ("score", "Once upon", "-", "--raw", "--model", folder)
    piped = cli(*arguments, stdin=b" a time\n, a king\n")
    assert piped.out == cli("score", "Once upon", " a time", ", a king", "--raw", "--model", folder).out
    assert piped.out != cli(*arguments, stdin=b"a time\n, a king\n").out


@pytest.mark.parametrize(("given", "line"), [(b"a\r\n\r\nb", 2), (b"\n", 1), (b"a\n \nb\n\n", 4)])
def test_an_empty_line_is_refused_as_lines_and_scores_belong_together(cli: Cli, given: bytes, line: int) -> None:
    outcome = cli("score", "a", "-", "--model", "/no/such/model", stdin=given)
    said = f"error: Line {line} of standard input is empty; a text has at least one character.\n"
    assert (outcome.code, outcome.err) == (2, said)


def test_the_prompt_may_be_standard_input(cli: Cli, folder: Path) -> None:
    piped = cli("score", "-", *TEXTS, "--model", folder, stdin=PROMPT.encode())
    assert piped.code == 0
    assert piped.out == cli("score", PROMPT, *TEXTS, "--model", folder).out


def test_json_has_every_token(cli: Cli, folder: Path) -> None:
    outcome = cli("score", PROMPT, *TEXTS, "--model", folder, "--json")
    scores = redraft.load(folder).score_batch(TEXTS, [PROMPT] * 2)
    assert outcome.json["scores"] == [score.to_dict() for score in scores]
    assert outcome.json["model"] == str(folder)


def test_a_terminal_sees_every_token(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", cli("score", PROMPT, "It is.\x1b", "--model", folder).out)
    *tokens, total = plain.splitlines()
    score = redraft.load(folder).score("It is.\x1b", PROMPT)
    assert len(tokens) == len(score.tokens)
    assert [float(line.split()[0]) for line in tokens] == pytest.approx(score.logprobs, abs=1e-3)
    assert total.split() == [f"{score.logprob:.3f}", str(len(tokens)), "tokens"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a",), "Missing argument 'TEXT'"),
        (("a", ""), "The text is empty"),
        (("", "a"), "The prompt is empty"),
        (("a", "-"), "There is no text"),
        (("a", "b", ""), "texts[1]: The text is empty"),
        (("-", "-"), "Standard input can be the prompt or the texts, not both"),
    ],
)
def test_bad_input(cli: Cli, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = cli("score", *arguments, "--model", folder)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.out == ""
