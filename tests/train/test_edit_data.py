"""Edits for training: every kind does what its instruction says, and documents are what an edit's canvas sees."""

import ast
import inspect
import json
import random
from importlib.resources import files

import numpy as np
import pytest

import redraft.train.build.edit_kinds as kinds
from redraft.text.edit_request import edit_request
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.build.decontaminate import EvaluationFilter
from redraft.train.build.edits import LEAD, VIEW, Edit, EditSource, documents, encode_edit

CODE = [inspect.getsource(ast), inspect.getsource(json), inspect.getsource(random)]
PROSE = ["The cat sat on the mat.\nIt was happy about 12 mice\nWe see a river from here.\nNobody knows where it ends."]
TINY = str(files("redraft") / "assets" / "tiny")
NAMES = ["count", "total", "Reader", "LIMIT"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TINY)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.from_folder(TINY)


def made(maker: kinds.Maker, lines: list[str], tries: int = 60) -> list[kinds.Change]:
    """What a kind makes of the lines with different random numbers."""
    changes = [maker(lines, NAMES, random.Random(seed)) for seed in range(tries)]
    return [change for change in changes if change is not None]


@pytest.mark.parametrize(
    ("maker", "lines", "expected"),
    [
        (kinds.switch, ["    ready = True"], ["    ready = False"]),
        (kinds.negate, ["if found:", "    go()"], ["if not found:", "    go()"]),
        (kinds.negate, ["while not done(x):"], ["while done(x):"]),
        (kinds.compare, ["if a == b:"], ["if a != b:"]),
        (kinds.compare, ["return a and b"], ["return a or b"]),
        (kinds.swap, ["    a = 1", "    b = 2"], ["    b = 2", "    a = 1"]),
        (kinds.comment_out, ["    a = 1"], ["    # a = 1"]),
        (kinds.comment_out, ["    # a = 1"], ["    a = 1"]),
    ],
)
def test_kinds_with_one_outcome(maker: kinds.Maker, lines: list[str], expected: list[str]) -> None:
    assert {tuple(change.lines) for change in made(maker, lines)} == {tuple(expected)}


@pytest.mark.parametrize(
    ("maker", "lines"),
    [
        (kinds.switch, ["a = True or True"]),
        (kinds.negate, ["if a and b:"]),
        (kinds.compare, ["for x in rows:"]),
        (kinds.compare, ["from a import b"]),
        (kinds.swap, ["if a:", "    b()"]),
        (kinds.delete, ["one line"]),
        (kinds.rename, ["return None"]),
        (kinds.number, ["x = 1.5"]),
    ],
)
def test_kinds_that_do_not_apply(maker: kinds.Maker, lines: list[str]) -> None:
    assert not made(maker, lines)


def test_a_name_changes_wherever_it_stands_and_nowhere_else() -> None:
    line = "rows = read(rows, arrows)"
    renamed = {change.lines[0] for change in made(kinds.rename, [line]) if "rows" not in change.lines[0].split()}
    assert renamed == {"count = read(count, arrows)", "total = read(total, arrows)"}
    assert {change.lines[0] for change in made(kinds.rename, [line])} > renamed


def test_a_document_is_the_request_and_then_what_the_canvas_holds(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    edit = Edit(
        instruction="Use 2 instead of 1.", before="a = 0\n" * 40, old="b = 1", new="b = 2", behind="\nc = 3" * 30
    )
    document = encode_edit(edit, tokenizer, template)
    assert document is not None
    request = template.render(
        [{"role": "user", "content": edit_request(edit.instruction, edit.before, edit.old, edit.behind)}],
        add_generation_prompt=True,
    )
    prompt = tokenizer.encode(request)
    before, new, behind = (tokenizer.encode(text, special=False) for text in (edit.before, edit.new, edit.behind))
    assert document.prompt_length == len(prompt) + LEAD
    np.testing.assert_array_equal(document.tokens, [*prompt, *before[-LEAD:], *new, *behind[:VIEW]])


def test_documents_repeat_and_never_show_an_evaluation_item(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    nothing = EvaluationFilter.from_items([])
    one, two = (list(documents(EditSource(CODE, PROSE, 3), 40, tokenizer, template, nothing)) for _ in range(2))
    assert [a.tokens.tolist() for a in one] == [b.tokens.tolist() for b in two]
    held_out = EvaluationFilter.from_items([("", text, "") for text in CODE])
    kept = list(documents(EditSource(CODE, PROSE, 3), 5, tokenizer, template, held_out))
    texts = [tokenizer.decode(document.tokens.tolist()) for document in kept]
    assert not any(held_out.is_contaminated(text) for text in texts)
    assert nothing | held_out == held_out


def test_the_shipped_items_change_only_what_they_show() -> None:
    path = files("redraft") / "eval" / "data" / "edits.jsonl"
    items = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(items) == len({item["id"] for item in items}) == 200
    assert all(item["old"] != item["new"] and item["instruction"] for item in items)
