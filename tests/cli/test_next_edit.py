"""`next-edit`: recent edits are read from the older text, the proposal is shown or written, and nothing due is said."""

from pathlib import Path

import pytest
from outcome import Cli

OLD = "count = 0\nfor item in items:\n    count += item\nprint(count)\n"
NEW = OLD.replace("count = 0", "total = 0")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(OLD)
    new.write_text(NEW)
    return old, new


def test_a_rename_goes_on(cli: Cli, files: tuple[Path, Path]) -> None:
    """As `git show HEAD:FILE | redraft next-edit FILE --since -` would; the next occurrence is due."""
    _, new = files
    outcome = cli("next-edit", new, "--since", "-", stdin=OLD.encode())
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == f"--- a{new}"
    assert "-    count += item" in lines
    assert "+    total += item" in lines
    assert new.read_text() == NEW


def test_it_is_written_and_told_as_json(cli: Cli, files: tuple[Path, Path]) -> None:
    old, new = files
    outcome = cli("next-edit", new, "--since", old, "--write", "--json")
    assert outcome.json["edit"]["reason"] == "repeat"
    assert outcome.json["edit"]["text"] == "total"
    assert new.read_text() == outcome.json["edit"]["full_text"] != NEW


def test_nothing_is_due(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("\n\n\n")
    outcome = cli("next-edit", file, "--at", 2, "--model", folder)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "Nothing is due.\n")
    assert cli("next-edit", file, "--at", "1:1", "--model", folder, "--json").json["edit"] is None


def test_the_cursor_may_stand_behind_the_last_line_end(cli: Cli, files: tuple[Path, Path]) -> None:
    old, new = files
    outcome = cli("next-edit", new, "--since", old, "--at", "5:1", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["edit"]["text"] == "total"
    assert "Line 6 is not in the text" in cli("next-edit", new, "--since", old, "--at", "6").err


def test_a_column_behind_a_line_is_its_end(cli: Cli, files: tuple[Path, Path]) -> None:
    assert "a column past the end of the line means its end" in " ".join(
        cli("next-edit", "--help").out.replace("\u2502", "").split()
    )
    old, new = files
    at_end, behind = (cli("next-edit", new, "--since", old, "--at", at, "--json") for at in ("1:10", "1:99"))
    assert behind.code == 0, behind.err
    assert behind.json["edit"]["span"] == at_end.json["edit"]["span"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give the text before the edits with --since, or the cursor with --at"),
        (("--at", "x"), "--at is 'x'; it must be LINE or LINE:COLUMN"),
        (("--at", "1:0"), "it must be LINE or LINE:COLUMN"),
        (("--at", "9"), "Line 9 is not in the text, which has 4"),
        (("--since", "none.py"), "cannot be read"),
        (("--at", "1", "--steps", "0"), "steps is 0"),
    ],
)
def test_bad_input(cli: Cli, files: tuple[Path, Path], arguments: tuple[str, ...], words: str) -> None:
    outcome = cli("next-edit", files[1], *arguments)
    assert outcome.code == 2
    assert words in outcome.err


def test_standard_input_is_one_text(cli: Cli) -> None:
    assert "cannot both be standard input" in cli("next-edit", "-", "--since", "-", stdin=b"a").err
    assert "--write needs a file" in cli("next-edit", "-", "--at", 1, "--write", stdin=b"a").err
