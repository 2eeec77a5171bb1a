"""`edit`: the difference is shown, the file is replaced in one step or not at all, and only the lines change."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
from outcome import Cli

from redraft.cli.edit import diff_name
from redraft.llm import LLM

CONTENT = "\ufefffirst = 1\r\n\tsecond = 2\r\nthird = 3 # é 🙂".encode()
OPTIONS = ("--lines", "2", "--max-tokens", 4, "--steps", 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "code.py"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def test_the_difference_is_one_that_patch_reads(cli: Cli, folder: Path, file: Path) -> None:
    outcome = cli("edit", file, "Change it", "--model", folder, *OPTIONS)
    assert outcome.code == 0
    assert file.read_bytes() == CONTENT
    lines = outcome.out.split("\n")
    assert lines[0] == f"--- a{file}"
    assert [line for line in lines if line.startswith("-\t")] == ["-\tsecond = 2\r"]
    assert " third = 3 # é 🙂" in lines


def test_write_changes_only_the_lines(cli: Cli, folder: Path, file: Path) -> None:
    file.chmod(0o640)
    outcome = cli("edit", file, "Change it", "--write", "--model", folder, *OPTIONS, "--json")
    first, _, third = CONTENT.split(b"\r\n")
    after = file.read_bytes()
    assert after.startswith(first + b"\r\n")
    assert after.endswith(b"\r\n" + third)
    assert after.decode() == outcome.json["full_text"]
    assert 0 <= outcome.json["changed"] <= 1
    assert outcome.json["old"] == "\tsecond = 2"
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(file.parent) == ["code.py"]


def test_a_terminal_sees_colours_and_the_cost(
    cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "60", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    outcome = cli("edit", file, "Change it", "--model", folder, *OPTIONS)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", outcome.out)
    assert re.search(r"\d+% changed . 1 step . ", plain)
    assert "\n-    second = 2\n" in plain


def test_a_failure_leaves_the_file_alone(cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    outcome = cli("edit", file, "Change it", "--write", "--model", folder, *OPTIONS)
    assert (outcome.code, outcome.err) == (1, f"error: {file}: No space left on device.\n")
    assert file.read_bytes() == CONTENT
    assert os.listdir(file.parent) == ["code.py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x", "--lines", "2-3"), "--lines is '2-3'; it must be A:B or A"),
        (("x", "--lines", "0:1"), "lines 0 to 1 are not in the text, which has 3"),
        (("x", "--lines", "2:9"), "lines 2 to 9 are not in the text, which has 3"),
        (("x", "--lines", "3:2"), "lines 3 to 2"),
        (("x", "--lines", "1", "--steps", "0"), "steps is 0"),
        ((" ", "--lines", "1"), "The instruction is empty"),
        (("x", "--lines", "1", "--strength", "2"), "strength is 2.0; it must be between 0 and 1"),
        (("x", "--lines", "1", "--max-tokens", "500"), "max_tokens is 500"),
        (("x",), "Missing option '--lines'"),
        (("x", "--lines", "1", "--regex", "("), "unbalanced parenthesis"),
        (("x", "--lines", "1", "--regex", "a{99}", "--max-tokens", "2"), "shortest text that regex allows has"),
    ],
)
def test_bad_input(cli: Cli, folder: Path, file: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = cli("edit", file, *arguments, "--write", "--model", folder)
    assert outcome.code == 2
    assert words in outcome.err
    assert file.read_bytes() == CONTENT


def test_files_that_are_none(cli: Cli, tmp_path: Path, file: Path) -> None:
    assert "cannot be read: No such file" in cli("edit", tmp_path / "none", "x", "--lines", 1).err
    assert "--write needs a file" in cli("edit", "-", "x", "--lines", 1, "--write", stdin=b"a").err
    file.write_bytes(b"")
    assert "Line 1 is not in the text, which has 0" in cli("edit", file, "x", "--lines", 1).err


def test_what_was_saved_in_the_meantime_is_not_overwritten(
    cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = LLM.edit

    def slowly(*arguments: Any, **settings: Any) -> Any:
        file.write_bytes(b"# saved meanwhile")
        return edit(*arguments, **settings)

    monkeypatch.setattr(LLM, "edit", slowly)
    outcome = cli("edit", file, "Change it", "--write", "--model", folder, *OPTIONS)
    assert (outcome.code, file.read_bytes()) == (2, b"# saved meanwhile")
    assert "has changed in the meantime" in outcome.err
    assert [one.name for one in file.parent.iterdir() if one.name.startswith(".redraft-")] == []


@pytest.mark.parametrize("given", ["./x.py", "sub/../x.py", "x.py"])
def test_a_diff_names_a_file_as_git_takes_it(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert diff_name(given) == diff_name(str(tmp_path / "x.py")) == "x.py"


def test_without_an_instruction_and_with_a_constraint(cli: Cli, folder: Path, file: Path) -> None:
    choices = ("--choices", "third = 4", "--choices", "third = 5")
    arguments = ("--lines", 3, *choices, "--steps", 1, "--canvas-length", 64, "--model", folder)
    outcome = cli("edit", file, *arguments, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["text"] in ("third = 4", "third = 5")
    assert {"start", "end", "entropy", "settled_step"} <= outcome.json["tokens"][0].keys()


def test_what_changes_nothing_says_so(cli: Cli, folder: Path, file: Path) -> None:
    third = file.read_text(encoding="utf-8").splitlines()[2]
    given = ("--choices", third, "--steps", 1, "--canvas-length", 64, "--model", folder)
    outcome = cli("edit", file, "--lines", 3, *given)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "nothing changed\n")


def test_the_difference_in_json_is_the_one_that_is_printed(cli: Cli, folder: Path) -> None:
    arguments = ("edit", "-", "--lines", 1, "--choices", "b", "--steps", 1, "--model", folder)
    printed = cli(*arguments, stdin=b"a\n").out
    assert (
        printed
        == cli(*arguments, "--json", stdin=b"a\n").json["diff"]
        == ("--- a/stdin\n+++ b/stdin\n@@ -1 +1 @@\n-a\n+b\n")
    )


def test_edit_is_what_the_library_does(cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    whole = LLM.edit

    def spy(self: LLM, text: str, span: tuple[int, int], instruction: str, **settings: object) -> object:
        seen.update(settings, span=span, instruction=instruction)
        return whole(self, text, span, instruction, **settings)

    monkeypatch.setattr(LLM, "edit", spy)
    cli("edit", file, "Change it", "--model", folder, *OPTIONS, "--strength", 0.5, "--seed", 4)
    assert seen.pop("on_record") is None  # there is no terminal
    assert callable(seen.pop("on_progress"))
    assert seen == {
        "span": (12, 23),
        "instruction": "Change it",
        "strength": 0.5,
        "max_tokens": 4,
        "steps": 1,
        "seed": 4,
    }


def test_the_parts_of_a_long_edit_are_counted(
    cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    outcome = cli("edit", file, "Change it", "--model", folder, "--lines", "1:3", *OPTIONS[2:])
    assert re.search(r"part 2 of \d: editing", outcome.err)
    assert re.search(r"part 1 of \d . step 1/1", outcome.err)


def test_ctrl_c_says_how_many_parts_are_lost(
    cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: LLM, *arguments: Any, on_progress: Any, **settings: Any) -> None:
        on_progress(2, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "edit", stop)
    outcome = cli("edit", file, "Change it", "--write", "--model", folder, *OPTIONS)
    assert (outcome.code, outcome.err) == (130, "interrupted: 2 of 5 parts edited, nothing written\n")
    assert file.read_bytes() == CONTENT
