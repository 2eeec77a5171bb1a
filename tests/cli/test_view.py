"""The live view: what each position looks like, what fits the terminal, what stays when it is over."""

import dataclasses
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.text import Text

import redraft
from redraft.cli.answer import follow
from redraft.cli.canvas import ASCII, COLOUR, MONOCHROME, UNICODE, Progress, crop, draft_text, look_of, status_line
from redraft.cli.printable import printable
from redraft.cli.view import LiveScreen, PlainScreen, open_screen, show, summary, waiting_for
from redraft.diffusion.records import Commit, DenoiseStep, Record

EOS = 0


class Words:
    """A vocabulary whose ids are positions in a list of byte strings; 0 is end-of-text."""

    def __init__(self, *words: str | bytes) -> None:
        self.words = [b"<eos>", *(word.encode() if isinstance(word, str) else word for word in words)]

    def token_bytes(self, id: int) -> bytes:
        return self.words[id]

    def is_special(self, id: int) -> bool:
        return id == EOS


def step(ids: list[int], entropy: list[float], *, number: int = 0, canvas: int = 0, last: bool = False) -> DenoiseStep:
    return DenoiseStep(
        request_id=0,
        canvas_index=canvas,
        step=number,
        canvas=tuple(ids),
        argmax_canvas=tuple(ids),
        accepted=tuple(value < 0.01 for value in entropy),
        entropy=tuple(entropy),
        temperature=0.8,
        converged=last,
    )


def commit(ids: list[int], text: str, *, canvas: int = 0, final: bool = True) -> Commit:
    return Commit(
        request_id=0, canvas_index=canvas, token_ids=tuple(ids), text=text, finish_reason="stop" if final else None
    )


def drawn(words: Words, ids: list[int], entropy: list[float]) -> Text:
    return draft_text(step(ids, entropy), words, (EOS,), COLOUR, UNICODE)


def style_at(text: Text, position: int) -> str:
    return next(str(s.style) for s in text.spans if s.start <= position < s.end and isinstance(s.style, str))


class TestDraft:
    def test_certainty_has_a_colour(self) -> None:
        text = drawn(Words("a", "b", "c", "d"), [1, 2, 3, 4], [0.0, 0.5, 2.0, 9.0])
        assert text.plain == "abcd"
        assert [style_at(text, i) for i in range(4)] == ["bold", "yellow", "red", "dim"]

    def test_behind_a_certain_end_there_are_dots(self) -> None:
        text = drawn(Words("yes", "no"), [1, EOS, 2, EOS], [0.0, 0.1, 0.0, 0.0])
        assert text.plain == "yes···"

    def test_an_uncertain_end_ends_nothing(self) -> None:
        for entropy in (0.7, 3.0):
            text = drawn(Words("yes", "no"), [1, EOS, 2], [0.0, entropy, 0.0])
            assert text.plain == "yes·no"

    def test_only_certain_newlines_break_the_line(self) -> None:
        text = drawn(Words("\n"), [1, 1], [0.1, 5.0])
        assert text.plain == "\n↵"

    def test_characters_made_of_several_tokens(self) -> None:
        text = drawn(Words("é".encode()[:1], "é".encode()[1:], "x"), [1, 2, 3], [0.0] * 3)
        assert text.plain == "éx"

    def test_half_a_character_is_visible_as_such(self) -> None:
        assert drawn(Words(b"\xc3", "x"), [1, 2], [0.0] * 2).plain == "\ufffdx"
        assert drawn(Words(b"\xc3", "x"), [1, EOS, 2], [0.0, 3.0, 0.0]).plain == "·x"

    def test_nothing_reaches_the_terminal_unescaped(self) -> None:
        assert drawn(Words("\x1b[2J"), [1], [0.0]).plain == "\\x1b[2J"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 👩\u200d🚀\n", "plain é 漢 👩\u200d🚀\n"),
        ("a\tb", "a    b"),
        ("\x00\x07\r\x7f\x9b", "\\x00\\x07\\x0d\\x7f\\x9b"),
        ("a\r\nb\n\rc", "a\nb\n\\x0dc"),
        ("a\u202eb\u2028c\ufeff", "a\\u202eb\\u2028c\\ufeff"),
        ("a\u00a0b", "a b"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


class TestCrop:
    def lines(self, count: int, settled: int) -> list[Text]:
        ids = list(range(1, count + 1))
        words = Words(*(f"line {i}\n" for i in ids[:-1]), f"line {count}")
        text = drawn(words, ids, [0.0 if i < settled else 0.5 for i in range(count)])
        return list(text.wrap(Console(), 80))

    def test_what_fits_stays(self) -> None:
        lines = self.lines(5, 2)
        assert crop(lines, 6, UNICODE) == (lines, 0)

    @pytest.mark.parametrize("settled", [0, 3, 20, 36, 40])
    def test_the_first_unsettled_line_is_in_sight(self, settled: int) -> None:
        shown, top = crop(self.lines(40, settled), 10, UNICODE)
        assert len(shown) == 10
        plain = [line.plain for line in shown]
        assert f"line {min(settled + 1, 40)}" in plain
        assert (plain[0] == f"⋮ {top + 1} lines above") == (top > 0)
        assert plain[-1].endswith("lines below") == (settled < 36)

    def test_it_only_scrolls_down(self) -> None:
        _, top = crop(self.lines(40, 20), 10, UNICODE)
        assert crop(self.lines(40, 3), 10, UNICODE, top=top)[1] == top


class TestStatus:
    progress = Progress(canvas_index=2, step=6, steps=48, accepted=32, length=64, entropy=1.234, speed=87.6)

    def test_everything_fits_80_columns(self) -> None:
        line = status_line(self.progress, 80, UNICODE).plain
        assert line == "canvas 3 · step 7/48 · ━━━━━━────── · 32/64 accepted · 1.23 nats · 88 tok/s"

    def test_a_slow_speed_keeps_a_digit_that_says_something(self) -> None:
        slow = dataclasses.replace(self.progress, speed=0.44)
        assert status_line(slow, 80, UNICODE).plain.endswith("0.4 tok/s")

    @pytest.mark.parametrize("width", range(1, 90))
    def test_it_never_wraps_and_keeps_the_step_longest(self, width: int) -> None:
        line = status_line(self.progress, width, UNICODE).plain
        assert len(line) <= width
        assert "step 7/48" in line or width < len("step 7/48")

    def test_only_what_is_shown_counts(self) -> None:
        """Ends behind a certain end are accepted, too, and would be a hundred times as many."""
        record = step([1, 2, 3, EOS, EOS, EOS], [0.0, 0.0, 2.0, 0.0, 0.0, 0.0])
        progress = Progress.of(record, (EOS,), steps=4, committed=8, seconds=2.0)
        assert (progress.accepted, progress.length, progress.speed) == (2, 3, 5.0)
        empty = Progress.of(step([EOS], [0.0]), (EOS,), steps=1)
        assert "0/0 accepted" in status_line(empty, 200, UNICODE).plain

    def test_no_speed_where_nothing_is_measured(self) -> None:
        untimed = Progress.of(step([1], [0.0]), (EOS,), steps=0)
        assert status_line(untimed, 80, ASCII).plain == "canvas 1 | step 1/1 | ############ | 1/1 accepted | 0.00 nats"


def console(width: int = 80, height: int = 24, **more: object) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, _environ={}, **more
    )  # type: ignore[arg-type]


def test_looks_follow_the_console() -> None:
    assert look_of(console(color_system="truecolor")) == (COLOUR, UNICODE)
    assert look_of(console(no_color=True)) == (MONOCHROME, UNICODE)


WORDS = Words(*(f"word{i} " for i in range(1, 200)))


def answer(canvases: int, length: int) -> list[Record]:
    """Canvases that settle in three steps; the text is word1 word2 ... in every canvas, on one endless line."""
    records: list[Record] = []
    ids = list(range(1, length + 1))
    text = "".join(f"word{i} " for i in ids)
    for canvas in range(canvases):
        for number in range(3):
            entropy = [0.0 if i < number * length // 2 else 4.0 for i in range(length)]
            records.append(step(ids, entropy, number=number, canvas=canvas, last=number == 2))
        records.append(commit(ids, text, canvas=canvas, final=canvas == canvases - 1))
    return records


def final_screen(output: str, width: int) -> list[str]:
    """The lines a terminal holds after this output. Knows the sequences that Rich's live display uses."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", output):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
            assert row >= 0, "the cursor left the screen"
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith("\x1b"):
            lines[row] = (lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]).rstrip()
            column += len(part)
            assert column <= width, "a line wrapped"
    return lines


@pytest.mark.parametrize("width", [20, 80])
@pytest.mark.parametrize("height", [8, 24])
def test_what_stays_is_the_answer_and_one_line_about_it(width: int, height: int) -> None:
    screen = LiveScreen(live := console(width, height), WORDS, (EOS,), steps=48)
    tally = follow(answer(3, 100), screen)
    lines = final_screen(live.file.getvalue(), width)  # type: ignore[attr-defined]
    text = " ".join(lines)
    at = text.index("3 canvases")
    assert text[:at].split() == tally.text.split()
    assert "3 + 3 + 3 steps" in text[at:]
    assert "lines above" not in text
    assert "accepted" not in text


@pytest.mark.parametrize("height", [4, 8, 24])
def test_a_tall_canvas_never_exceeds_the_terminal(height: int) -> None:
    screen = LiveScreen(live := console(20, height), WORDS, (EOS,), steps=48)
    for record in answer(1, 100)[:3]:
        assert isinstance(record, DenoiseStep)
        live.file.truncate(0)  # type: ignore[attr-defined]
        with live.capture() as captured:
            live.print(screen._frame(record, follow([], PlainScreen(io.StringIO()))))
        assert captured.get().count("\n") < height


def test_the_status_line_does_not_jump_while_a_draft_gets_shorter() -> None:
    """Until its canvas is committed."""
    screen = LiveScreen(live := console(), Words("a\n", "b"), (EOS,), steps=48)
    heights = []
    for ids in ([1, 1, 1], [2, 2, 2], [2, 2, 2]):
        if len(heights) == 2:
            screen._commit("b")
        with live.capture() as captured:
            live.print(screen._frame(step(ids, [0.1] * 3), follow([], PlainScreen(io.StringIO()))))
        heights.append(captured.get().count("\n"))
    assert heights[0] == heights[1] > heights[2]


def test_an_empty_answer_is_said_to_be_empty() -> None:
    screen = LiveScreen(live := console(), WORDS, (EOS,), steps=48)
    follow([step([EOS], [0.0], last=True), commit([], "")], screen)
    assert "(empty answer)" in final_screen(live.file.getvalue(), 80)  # type: ignore[attr-defined]


def test_an_answer_that_ctrl_c_ended_is_not_said_to_be_empty() -> None:
    def records() -> Iterator[Record]:
        yield step([1], [3.0])
        raise KeyboardInterrupt

    screen = LiveScreen(live := console(), WORDS, (EOS,), steps=48)
    follow(records(), screen)
    lines = final_screen(live.file.getvalue(), 80)  # type: ignore[attr-defined]
    assert [line for line in lines if line] == ["interrupted before the first canvas was committed"]


def test_the_first_and_the_last_step_of_a_canvas_are_always_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.cli.view.FRAME_SECONDS", 1e9)
    follow(answer(1, 3), LiveScreen(live := console(), WORDS, (EOS,), steps=48))
    drawn = re.findall(r"step (\d)/", live.file.getvalue())  # type: ignore[attr-defined]
    assert list(dict.fromkeys(drawn)) == ["1", "3"]


@pytest.mark.parametrize(("canvases", "told"), [(4, "3 + 3 + 3 + 3 steps"), (5, "5 x 3.0 steps")])
def test_the_steps_of_many_canvases_are_told_by_their_mean(canvases: int, told: str) -> None:
    assert told in summary(follow(answer(canvases, 3), PlainScreen(io.StringIO()))).plain


def test_committed_text_survives_a_failure() -> None:
    def records() -> object:
        yield from answer(2, 3)[:5]
        raise OSError("gone")

    screen = LiveScreen(live := console(), WORDS, (EOS,), steps=48)
    with pytest.raises(OSError, match="gone"):
        follow(records(), screen)  # type: ignore[arg-type]
    assert "word1 word2 word3" in final_screen(live.file.getvalue(), 80)  # type: ignore[attr-defined]


def test_a_pipe_gets_exact_text_and_json_wants_none(capsys: pytest.CaptureFixture[str]) -> None:
    records = [step([1], [0.0], last=True), commit([1], "\x1b[2J\u202e")]
    follow(records, open_screen(WORDS, (EOS,), steps=1))
    assert capsys.readouterr().out == "\x1b[2J\u202e\n"
    follow(records, open_screen(WORDS, (EOS,), steps=1, json=True))
    assert capsys.readouterr().out == ""


def test_show_answers_as_the_library_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llm = redraft.load(folder)
    tally = show(llm, "Hello", max_tokens=20, seed=2)
    expected = llm.generate("Hello", max_tokens=20, seed=2)
    assert (tally.text, tuple(tally.token_ids)) == (expected.text, expected.token_ids)
    assert capsys.readouterr().out == expected.text + "\n"


@pytest.mark.parametrize(("device", "shown"), [("cpu", "reading the prompt"), ("cuda", "are compiled first")])
def test_what_a_first_step_waits_for_is_said(device: str, shown: str) -> None:
    llm = SimpleNamespace(model=SimpleNamespace(device=torch.device(device)))
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with LiveScreen(console, Words("a"), (EOS,), steps=4, waiting=waiting_for(llm)):  # type: ignore[arg-type]
        assert shown in out.getvalue()
