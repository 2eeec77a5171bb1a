"""`replay`: a trace gives the same answer again; a broken one is refused by its line."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from outcome import Cli

from redraft.cli.main import main


@pytest.fixture(scope="module")
def recorded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["generate", "Hello", "--model", str(folder), "--max-tokens", "30", "--trace", str(file)]) == 0
    return file.read_bytes()


@pytest.fixture
def trace(recorded: bytes, tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(recorded)
    return file


def rewrite(trace: Path, line: int, **changes: Any) -> None:
    lines = trace.read_text().splitlines()
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | changes)
    trace.write_text("\n".join(lines) + "\n")


def test_the_answer_comes_back(cli: Cli, folder: Path, trace: Path) -> None:
    said = cli("generate", "Hello", "--model", folder, "--max-tokens", 30, "--json").json
    replayed = cli("replay", trace)
    assert (replayed.code, replayed.out) == (0, said["text"] + "\n")
    answer = cli("replay", trace, "--json").json["answers"][0]
    assert answer["token_ids"] == said["token_ids"]
    assert answer["steps"] == said["stats"]["steps"]


def test_the_embedded_model_is_meant_beside_a_folder_of_its_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    said = cli("generate", "Hello", "--steps", 1, "--max-tokens", 4, "--canvas-length", 16, "--trace", "trace.jsonl")
    assert said.code == 0
    assert cli("replay", "trace.jsonl").out == said.out


def test_a_line_separator_inside_a_text_does_not_end_a_line(cli: Cli, trace: Path) -> None:
    rewrite(trace, 5, text="a\u2028b")
    trace.write_text(trace.read_text().replace("\\u2028", "\u2028"))
    assert cli("replay", trace).out.startswith("a\u2028b")


def test_what_a_canvas_that_was_broken_off_had_held_back_follows_a_commit(cli: Cli, trace: Path) -> None:
    last = json.loads(trace.read_text().splitlines()[-1])
    held = last | {"canvas_index": last["canvas_index"] + 1, "token_ids": [], "text": " and the rest"}
    steps = cli("replay", trace, "--json").json["answers"][0]["steps"]
    trace.write_text(f"{trace.read_text()}{json.dumps(held)}\n")
    assert cli("replay", trace).out.endswith(" and the rest\n")
    assert cli("replay", trace, "--json").json["answers"][0]["steps"] == steps


@pytest.mark.parametrize(
    ("line", "changes", "words"),
    [
        (1, {"type": "denoise"}, "Line 1 of {} is not the header of a trace."),
        (1, {"version": 2}, "Line 1 of {} has version 2"),
        (1, {"model": None}, "names no model"),
        (1, {"settings": None}, "Line 1 of {} has settings that are not valid."),
        (1, {"settings": {"steps": "x"}}, "Line 1 of {} has settings that are not valid."),
        (1, {"eos_token_ids": 1}, "Line 1 of {} has eos_token_ids that are not a list of token ids."),
        (2, {"type": "draft"}, "Line 2 of {} is not a record: unknown record type 'draft'."),
        (2, {"extra": 1}, "Line 2 of {} is not a record"),
        (3, {"entropy": [0.5]}, "Line 3 of {} is not a record: its sequences differ in length"),
        (3, {"canvas": [], "argmax_canvas": [], "accepted": [], "entropy": []},
         "Line 3 of {} is not a record: its sequences differ in length or are empty"),
        (3, {"canvas": "text"}, "Line 3 of {} is not a record: canvas"),
        (3, {"request_id": 4}, "Line 3 of {} is not a record: it belongs to request 4"),
        (5, {"canvas_index": 7}, "Line 5 of {} is not a record: it commits a canvas without steps"),
        (5, {"text": None}, "Line 5 of {} is not a record: text is not a string."),
        (2, {"argmax_canvas": [16384] * 16}, "token id 16384"),
        (2, {"argmax_canvas": [-1] * 16}, "token id -1"),
    ],
)  # fmt: skip
def test_a_broken_trace_is_named(cli: Cli, trace: Path, line: int, changes: dict[str, Any], words: str) -> None:
    rewrite(trace, line, **changes)
    outcome = cli("replay", trace)
    assert (outcome.code, outcome.out) == (2, "")
    assert words.format(trace) in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"[1]\n", b"no json\n", b"\xff\xfe\n", b"[" * 100_000])
def test_a_file_that_is_no_trace(cli: Cli, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "foreign"
    file.write_bytes(content)
    outcome = cli("replay", file)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1


def test_an_empty_trace(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.touch()
    assert cli("replay", file).err == f"error: The trace {file} is empty.\n"


def test_a_trace_that_is_not_there(cli: Cli) -> None:
    outcome = cli("replay", "nowhere.jsonl")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "error: The trace nowhere.jsonl cannot be read: No such file or directory.\n"


def test_a_trace_that_was_cut_off_in_a_line(cli: Cli, trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-20])
    count = len(trace.read_text().split("\n"))
    assert f"Line {count} of {trace} is not valid JSON." in cli("replay", trace).err


def test_a_trace_of_an_answer_that_was_broken_off_says_so(cli: Cli, trace: Path) -> None:
    lines = trace.read_text().splitlines()
    assert cli("replay", trace).err == ""
    trace.write_text("\n".join(lines[:3]) + "\n")  # the header and two steps
    cut = cli("replay", trace)
    assert (cut.code, cut.out.strip(), cut.err) == (0, "", "The trace ends before this answer does.\n")


def test_a_trace_without_records(cli: Cli, trace: Path) -> None:
    trace.write_text(trace.read_text().splitlines()[0] + "\n")
    assert "holds no records" in cli("replay", trace).err


@pytest.mark.parametrize("speed", ["0", "1e-320", "nan"])
def test_speed_must_be_such_that_one_can_wait(cli: Cli, trace: Path, speed: str) -> None:
    outcome = cli("replay", trace, "--speed", speed)
    assert (outcome.code, outcome.err.count("it must be at least 0.001.")) == (2, 1)


def test_a_terminal_sees_steps_one_by_one_and_ctrl_c_ends_them(
    cli: Cli, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("redraft.cli.replay.time.sleep", sleep)
    assert cli("replay", trace).code == 0
    assert waits == []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli("replay", trace, "--speed", 4).code == 130
    assert waits == [0.25] * 3


def test_a_prompt_cannot_command_the_terminal(cli: Cli, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(trace, 1, prompt="Hello\x1b]0;title\x07")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = cli("replay", trace, "--speed", 1000).out
    assert shown.startswith("> Hello\\x1b]0;title\\x07\n")
    assert "\x1b" not in shown
