"""Line ends: a span keeps its own, whatever a model reads, and the end of a text gets no blank lines."""

import random
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from redraft.editing import api, following
from redraft.editing.following import edits_between, line_doubts, occurrences
from redraft.editing.spans import line_span
from redraft.filling.lengths import Choice, find
from redraft.llm import LLM
from redraft.text.line_ends import with_line_ends, with_newlines


class TestLineEnds:
    TEXT = "def total(items):\n    count = 0\n    for item in items:\n        count += item\n    return count\n"

    @pytest.mark.parametrize("end", ["\r\n", "\r"])
    def test_the_span_keeps_its_line_ends(self, tiny: LLM, end: str) -> None:
        """Whatever they are, the model reads newlines, and edits as well as in a text that has these."""
        spans = [(text, line_span(text, 1, 5)) for text in (self.TEXT, self.TEXT.replace("\n", end))]
        plain, other = (tiny.edit(text, span, "Rename count to total") for text, span in spans)
        assert plain.text.count("total") == 4
        assert other.full_text == plain.full_text.replace("\n", end)
        assert other.tokens == plain.tokens
        assert [len(other.text[slice(*place)].split(end)) for place in other.offsets] == [
            len(plain.text[slice(*place)].split("\n")) for place in plain.offsets
        ]

    def test_an_unchanged_mixed_text_is_the_same(self, llm: LLM) -> None:
        text = "a\r\nb\nc\rd\r\n\r\ne"
        for start, end in combinations(range(len(text) + 1), 2):
            result = llm.edit(text, (start, end), choices=[with_newlines(text[start:end])], steps=1, canvas_length=64)
            assert result.full_text == text

    def test_every_line_has_the_end_of_the_line_it_replaces_or_of_the_one_before(self) -> None:
        place = ("x\r\n", "a\nb\r\nc\r", "y\n")

        def written(new: str) -> str:
            return with_line_ends(new, [], *place)[0]

        assert written("A\nB\nc\n") == "A\nB\r\nc\r"
        assert written("a\nB\nB\nc\n") == "a\nB\r\nB\r\nc\r"
        assert written("c\n") == "c\r"
        assert written("new") == "new"
        assert with_line_ends("a\nb", [(0, 2), (2, 3)], "", "", "\r\n") == ("a\r\nb", ((0, 3), (3, 4)))
        assert with_line_ends("a\nb\r\n", [], "\n", "x", "") == ("a\nb\r\n", ())

    def test_no_two_line_ends_become_one(self) -> None:
        """Unless nothing is written between them; a span that begins or ends inside one is another matter."""
        rng = random.Random(3)

        def text(alphabet: str = "a\r\n") -> str:
            return "".join(rng.choices(alphabet, k=rng.randrange(5)))

        for _ in range(20_000):
            before, old, behind, new = text(), text(), text(), text("a\n")
            whole = (before, old, behind)
            if not new or sum(len(re.findall("\r\n", part)) for part in whole) < "".join(whole).count("\r\n"):
                continue
            written, offsets = with_line_ends(new, [(0, len(new))], *whole)
            assert with_newlines(before + written + behind) == "".join(map(with_newlines, (before, new, behind)))
            assert offsets == ((0, len(written)),)


class TestNextEdit:
    TEXT = TestLineEnds.TEXT

    def test_it_reads_newlines(self, llm: LLM) -> None:
        doubts, plain = (line_doubts(llm, text, 12) for text in (self.TEXT.replace("\n", "\r\n"), self.TEXT))
        assert list(doubts.values()) == list(plain.values())

    def test_what_was_replaced_is_found_whatever_the_line_ends_are(self) -> None:
        text, added = "import os\r\nimport sys\r\nx = 1\r\nimport os\r\n", "import os\nimport sys"
        assert occurrences(text, "import os", added, 0) == [(30, 39)]
        assert occurrences(text, "sys\nx", "y", 0) == [(18, 24)]

    def test_another_kind_of_line_end_is_no_edit(self) -> None:
        old, new = "a = 1\nb = 2\nc = 3\n", "a = 1\r\nb = 5\r\nc = 3\r\n"
        assert edits_between(old, new) == ([("b = 2\n", "b = 5\n")], new.index("c"))

    def test_a_repeat_has_the_line_ends_of_its_place(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(following, "_gain", lambda *given: 1.0)
        text = "x = 1\r\ny = 2\r\nx = 1\r\n"
        found = llm.next_edit(text, 0, [("x = 1", "x = 1\ny = 2")])
        assert found is not None
        assert (found.reason, found.edit.text) == ("repeat", "1\r\ny = 2")
        assert found.edit.full_text == "x = 1\r\ny = 2\r\n" * 2


class TestEndOfText:
    LINES = "def total(items):\n    count = 0\n    for item in items:\n        count += item\n    return count"

    def test_a_line_end_that_ends_the_span_stays(self, tiny: LLM) -> None:
        """The model was taught spans without it, and would write a second one."""
        text = self.LINES + "\n"
        result = tiny.edit(text, (self.LINES.rindex("\n") + 1, len(text)), "Rename count to total")
        assert (result.old, result.text) == ("    return count\n", "    return total\n")
        assert result.full_text.endswith("\n    return total\n")

    @pytest.mark.parametrize("end", ["", "\n"])
    def test_no_blank_line_is_added(self, tiny: LLM, end: str) -> None:
        text = f"The quick brown fox.\nIt jumps over the lazy dog.{end}"
        result = tiny.edit(text, line_span(text, 2, 2), "Replace lazy with sleepy")
        assert result.full_text == text.replace("lazy", "sleepy")
        assert result.offsets[-1][1] == len(result.text)

    @pytest.mark.parametrize(
        ("text", "span", "expected", "tokens"),
        [
            ("a\nb\n", (4, 4), "a\nb\nc\n", 2),
            ("a\nb\n", (3, 4), "a\nbc\n", 2),
            ("a\nb\n\n", (2, 3), "a\nc\n\n", 1),
            ("a\nb\n", (2, 4), "a\nc\n", 1),
            ("a\nb", (2, 3), "a\nc", 1),
            ("a\nb\nd\n", (2, 3), "a\nc\n\n\n\nd\n", 4),
        ],
    )
    def test_blank_lines_that_a_draft_ends_with_are_left_out(
        self, llm: LLM, monkeypatch: pytest.MonkeyPatch, text: str, span: tuple[int, int], expected: str, tokens: int
    ) -> None:
        """With their tokens, one for each character here."""
        drafted(llm, "c\n\n\n", monkeypatch)
        result = llm.edit(text, span, "Change it", steps=1)
        assert result.full_text == expected
        assert len(result.tokens) == tokens
        assert result.offsets == tuple((at, at + 1) for at in range(tokens))

    @pytest.mark.parametrize(
        ("text", "span", "expected"),
        [
            ("a\ndrop\nb\n", (2, 7), "a\nb\n"),
            ("a\r\ndrop\r\nb\r\n", (3, 9), "a\r\nb\r\n"),
            ("a\ndrop\n", (2, 7), "a\n"),
            ("drop\n", (0, 5), ""),
            ("a\ndrop\nb\n", (3, 7), "a\nd\nb\n"),
        ],
    )
    def test_lines_that_become_nothing_leave_no_line_end(
        self, llm: LLM, monkeypatch: pytest.MonkeyPatch, text: str, span: tuple[int, int], expected: str
    ) -> None:
        drafted(llm, "", monkeypatch)
        result = llm.edit(text, span, "Delete it", steps=1)
        assert result.full_text == expected
        assert result.full_text == text[: span[0]] + result.text + text[span[1] :]


def drafted(llm: LLM, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search for an edit find this text."""
    ids = tuple(id for char in text for id in llm.tokenizer.encode(char, special=False))

    def found(*given: Any) -> Choice:
        choice = find(*given)
        *records, last = choice.best.records
        written = replace(last, argmax_canvas=ids + last.argmax_canvas[len(ids) :])
        return replace(choice, best=replace(choice.best, length=len(ids), records=[*records, written]))

    monkeypatch.setattr(api, "find", found)
