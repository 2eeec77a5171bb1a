"""Line ends: a span keeps its own, whatever a model reads, and the end of a text gets no blank lines."""

from itertools import combinations

import pytest

from redraft.editing.following import line_doubts
from redraft.editing.spans import line_span
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

    def test_the_next_edit_reads_newlines(self, llm: LLM) -> None:
        doubts, plain = (line_doubts(llm, text, 12) for text in (self.TEXT.replace("\n", "\r\n"), self.TEXT))
        assert list(doubts.values()) == list(plain.values())


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
