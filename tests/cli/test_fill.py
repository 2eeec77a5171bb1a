"""`fill`: both sides come back byte for byte, and a file is replaced in one step or not at all."""

import errno
import os
import re
from pathlib import Path

import pytest
from outcome import Cli
from rich.console import Console

import redraft
from redraft.cli.watching import Watch
from redraft.filling import HoleStep
from redraft.filling.reporting import OnRecord
from redraft.llm import LLM

PREFIX, SUFFIX = b"\xef\xbb\xbfdef f():\r\n\treturn ", b" # \xc3\xa9 <|turn>\r\n\x0c no newline at the end"
OPTIONS = ("--max-tokens", 3, "--steps", 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "code.py"
    path.parent.mkdir()
    path.write_bytes(PREFIX + b"<|fill|>" + SUFFIX)
    return path


def filled(folder: Path) -> bytes:
    result = redraft.load(folder).fill(PREFIX.decode(), SUFFIX.decode(), max_tokens=3, steps=2)
    return PREFIX + result.text.encode() + SUFFIX


def test_the_filled_text_is_printed_byte_for_byte(cli: Cli, folder: Path, file: Path) -> None:
    outcome = cli("fill", file, "--model", folder, *OPTIONS)
    assert outcome.code == 0
    assert outcome.out.encode() == filled(folder)
    assert outcome.err == ""


def test_several_holes(cli: Cli, folder: Path, file: Path) -> None:
    file.write_bytes(b"a = <|fill|>\nb = <|fill|>\n")
    outcome = cli("fill", file, "--model", folder, *OPTIONS, "--json")
    first, second = (filling["text"] for filling in outcome.json["fillings"])
    assert outcome.json["full_text"] == f"a = {first}\nb = {second}\n"


def test_standard_input(cli: Cli, folder: Path, file: Path) -> None:
    outcome = cli("fill", "-", "--model", folder, *OPTIONS, stdin=file.read_bytes())
    assert outcome.out.encode() == filled(folder)


def test_write_replaces_the_file(cli: Cli, folder: Path, file: Path) -> None:
    file.chmod(0o750)
    outcome = cli("fill", file, "--write", "--model", folder, *OPTIONS)
    assert (outcome.code, outcome.out) == (0, "")
    assert file.read_bytes() == filled(folder)
    assert file.stat().st_mode & 0o777 == 0o750
    assert os.listdir(file.parent) == ["code.py"]


def test_write_keeps_a_link_a_link(cli: Cli, folder: Path, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(file)
    assert cli("fill", link, "--write", "--model", folder, *OPTIONS).code == 0
    assert link.is_symlink()
    assert file.read_bytes() == filled(folder)


def test_json_last(cli: Cli, folder: Path, file: Path) -> None:
    outcome = cli("fill", file, "--model", folder, *OPTIONS, "--json")
    assert outcome.json["full_text"].encode() == filled(folder)
    assert PREFIX.decode() + outcome.json["text"] + SUFFIX.decode() == outcome.json["full_text"]


def test_json_tells_the_settings_of_a_filling(cli: Cli, copied: Path, file: Path) -> None:
    (copied / "generation_config.json").write_text('{"eos_token_id": [1], "max_denoising_steps": 48}')
    options = ("--model", copied, "--max-tokens", 1, "--json")
    assert cli("fill", file, *options).json["settings"]["steps"] == 12
    assert cli("fill", file, *options, "--steps", 3).json["settings"]["steps"] == 3
    said = cli("edit", file, "Change it", "--lines", 1, "--model", copied, "--canvas-length", 32, "--json")
    assert (said.json["settings"]["steps"], said.json["settings"]["max_tokens"]) == (16, None)


def test_a_terminal_sees_the_hole_settle(cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the lines before it and the pinned text behind it; the filled text alone stays."""
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "60", "LINES": "20", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    file.write_bytes(b"first = 1\nsecond = <|fill|>\nthird = 3\n")
    outcome = cli("fill", file, "--model", folder, *OPTIONS)
    assert outcome.code == 0
    settling, _, left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", outcome.out).rpartition("second = ")
    assert "trying every length" in settling
    assert settling.count("first = 1") >= 2
    assert re.search(r"third = 3.*step \d/2", settling, re.DOTALL)
    assert re.search(r"third = 3\nfilled \d tokens? . best of 4 lengths", left)  # with one for the seam
    assert "step 1/" not in left


@pytest.mark.parametrize("args", [("fill",), ("edit", "--lines", 1), ("next-edit", "--at", 1)])
def test_a_file_that_cannot_be_replaced_is_refused_before_loading(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[object, ...]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (file.parent, os.W_OK))
    outcome = cli(*args, file, "--write", "--model", "/no/such/model")
    assert outcome.code == 2
    assert outcome.err.endswith(f"{file.parent} is not a writable folder.\n")


@pytest.mark.parametrize("failure", ["filling", "writing"])
def test_a_failure_leaves_the_file_alone(
    cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    before = file.read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((LLM, "fill") if failure == "filling" else (os, "fsync")), fail)
    outcome = cli("fill", file, "--write", "--model", folder, *OPTIONS)
    place = f"{file}: " if failure == "writing" else ""
    assert (outcome.code, outcome.err) == (1, f"error: {place}No space left on device.\n")
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["code.py"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nothing to fill", "has no hole; mark it with <|fill|>."),
        (b"a <|fill|><|fill|> c", "Hole 2 comes directly after hole 1"),
        (b"\xff\xfe<|fill|>", "is not UTF-8 text: byte 0 cannot be decoded."),
        (b"<|fill|>", "no text around the hole; at least one side must not be empty"),
    ],
)
def test_what_cannot_be_filled(cli: Cli, folder: Path, file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    outcome = cli("fill", file, "--write", "--model", folder, *OPTIONS)
    assert outcome.code == 2
    assert words in outcome.err
    assert file.read_bytes() == content


def test_files_that_are_none(cli: Cli, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in cli("fill", tmp_path / "none").err
    assert "cannot be read: Is a directory" in cli("fill", tmp_path).err
    assert "--write needs a file" in cli("fill", "-", "--write", stdin=b"a<|fill|>").err


def step(rank: int, number: int, ids: list[int], *, canvas: int = 0, last: bool = False) -> HoleStep:
    every = (0.0,) * len(ids)
    return HoleStep(
        request_id=rank, canvas_index=canvas, step=number, canvas=tuple(ids), argmax_canvas=tuple(ids),
        accepted=(True,) * len(ids), entropy=every, temperature=0.8, converged=last, pieces=(),
    )  # fmt: skip


def test_a_terminal_shows_the_likeliest_length_that_is_still_open(folder: Path) -> None:
    """And what a seam took back once: the draft begins with it."""
    llm = redraft.load(folder)
    tokenizer = llm.tokenizer
    shown: list[HoleStep] = []

    class Screen:
        lead = ""

        def show(self, record: HoleStep, tally: object) -> None:
            shown.append(record)

    def watching(lead: str) -> OnRecord:
        watch = Watch(llm, Console(), "filling", "hole", "filled", steps=3, lead=lead)
        assert watch.on_record is None  # there is no terminal
        watch._screen = screen  # type: ignore[assignment]
        assert watch.on_record is not None
        return watch.on_record

    screen, lead = Screen(), "class A:\n    retu"
    watched = watching(lead)
    ids = tokenizer.encode("return x")
    for record in (step(0, 0, ids), step(1, 0, ids), step(0, 1, ids, last=True), step(1, 1, ids), step(2, 1, ids)):
        watched(record)
    assert screen.lead == "class A:\n    "
    assert [(record.request_id, record.step) for record in shown] == [(0, 0), (0, 1), (1, 1)]
    watched(step(0, 0, tokenizer.encode("x"), canvas=1))
    assert screen.lead == lead
    assert shown[-1].request_id == 0
    indented = watching("if x:\n  ")
    indented(step(0, 0, tokenizer.encode("    ")))
    assert screen.lead == "if x:\n"


def test_ctrl_c_says_what_was_not_done(cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("a <|fill|> b <|fill|> c", encoding="utf-8")
    progress = Watch.progress

    def stop(self: Watch, done: int, all: int) -> None:
        progress(self, done, all)
        if done == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "progress", stop)
    outcome = cli("fill", file, "--write", "--model", folder, *OPTIONS)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == "interrupted: 1 of 2 holes filled, nothing written\n"
    assert file.read_text(encoding="utf-8") == "a <|fill|> b <|fill|> c"


def test_a_terminal_shows_which_hole_is_filled(
    cli: Cli, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    file.write_text("a <|fill|> b <|fill|> c", encoding="utf-8")
    shown = cli("fill", file, "--model", folder, *OPTIONS).out
    assert "hole 1 of 2: trying every length" in shown
    assert re.search(r"hole 2 of 2 . step \d", shown)


def test_a_length_may_be_given(cli: Cli, folder: Path, file: Path) -> None:
    result = redraft.load(folder).fill(PREFIX.decode(), SUFFIX.decode(), length=5, steps=2)
    shown = cli("fill", file, "--length", 5, "--steps", 2, "--model", folder, "--json").json
    assert (shown["text"], shown["lengths"]) == (result.text, list(result.lengths))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--length", 16), "length is 16; on a canvas of 16 a filling may have 1 to"),
        (("--length", 3, *OPTIONS), "length and max_tokens were both given"),
    ],
)
def test_a_length_that_cannot_be(cli: Cli, folder: Path, file: Path, arguments: tuple[object, ...], said: str) -> None:
    outcome = cli("fill", file, *arguments, "--write", "--model", folder)
    assert (outcome.code, said in outcome.err) == (2, True), outcome.err
