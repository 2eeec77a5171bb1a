"""The evaluation of edits: what is asked, what counts as solved, and files that are refused."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from redraft.errors import InputError, PromptError
from redraft.eval import DATA
from redraft.eval.edit import EditItem, evaluate, read_edits_jsonl

ITEM = EditItem(id="e", instruction="Use 2.", before="a = 0\n", old="b = 1", new="b = 2", behind="\nc = 3\n")


class Editor:
    """Gives its answers in order and keeps what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def edit(self, text, span, instruction, **settings):
        self.asked.append((text, text[span[0] : span[1]], instruction, settings))
        return SimpleNamespace(text=self.answers.pop(0), steps=3, tokens=(1, 2), forwards=7)


def test_the_span_must_read_exactly_as_it_should():
    editor = Editor("b = 2", "b = 2 ")
    result = evaluate(editor, [ITEM, ITEM], steps=4)
    assert [record.solved for record in result.records] == [True, False]
    assert editor.asked == [("a = 0\nb = 1\nc = 3\n", "b = 1", "Use 2.", {"seed": 0, "steps": 4})] * 2
    assert (result.records[0].steps, result.records[0].tokens, result.records[0].forwards) == ((3,), 2, 7)


def test_bundled_edits_read():
    items = read_edits_jsonl(DATA / "edits.jsonl")
    assert len({item.id for item in items}) == 200
    assert all(item.old != item.new for item in items)


def test_broken_lines_are_named(tmp_path):
    path = tmp_path / "edits.jsonl"
    path.write_text(json.dumps({"id": "e", "instruction": "x"}) + "\n")
    with pytest.raises(InputError, match=r"edits\.jsonl, line 1"):
        read_edits_jsonl(path)


def test_an_item_that_cannot_be_edited_is_named():
    with pytest.raises(PromptError, match="item e: The instruction is empty"):
        evaluate(Mock(edit=Mock(side_effect=PromptError("The instruction is empty."))), [ITEM])
