"""The evaluations against a stand-in model whose answers are known, so every count can be checked by hand."""

import dataclasses
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from redraft.errors import PromptError, SettingError
from redraft.eval import infill, smalltalk, sudoku, tools
from redraft.eval.phrases import holds
from redraft.eval.task import spread

SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"


@dataclass
class Stats:
    steps: tuple
    forwards: int


@dataclass
class Result:
    text: str
    token_ids: tuple
    stats: Stats


@dataclass
class Filled:
    text: str
    token_ids: tuple
    steps: int
    forwards: int


@dataclass
class FixedModel:
    """Gives its answers in order, whatever is asked, and keeps what was asked."""

    answers: list
    batches: list = field(default_factory=list)
    chats: list = field(default_factory=list)
    settings: list = field(default_factory=list)
    each: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    too_long: int = 0

    def encode_chat(self, messages, *, tools=None):
        self.chats.append((messages, tools))
        return [len(self.chats)]

    def generate_batch(self, prompts, *, each, **settings):
        self.batches.append(prompts)
        self.each += each
        self.settings.append(settings)
        taken = [self.answers.pop(0) for _ in prompts]
        return [Result(text, tuple(range(8)), Stats((3, 1), 5)) for text in taken]

    def request(self, prompt, **settings):
        self.asked.append(settings)
        if prompt[0] == self.too_long:
            raise PromptError("The prompt is too long.")

    def fill(self, prefix, suffix, **settings):
        self.chats.append((prefix, suffix))
        self.settings.append(settings)
        return Filled(self.answers.pop(0), (1, 2, 3, 4), 2, 16)


def grid(text):
    return " ".join(text)


def puzzle_item(name="a"):
    return sudoku.SudokuItem(id=name, puzzle=PUZZLE, solution=SOLUTION)


def test_an_item_that_cannot_be_asked_is_named_before_any_is():
    model = FixedModel([grid(SOLUTION)] * 3, too_long=3)
    with pytest.raises(PromptError, match=r"item c: The prompt is too long\."):
        sudoku.TASK.evaluate(model, [puzzle_item(name) for name in "abc"], batch_size=1)
    assert not model.batches


def test_sudoku_counts_solved_steps_and_tokens():
    wrong = grid("1" + SOLUTION[1:])
    answers = [grid(SOLUTION), wrong, "This 9x9 grid:\n" + grid(SOLUTION) + "\n", ""]
    result = sudoku.TASK.evaluate(FixedModel(answers), [puzzle_item(name) for name in "abcd"], batch_size=3)
    assert [record.solved for record in result.records] == [True, False, True, False]
    assert (result.solved, result.total, result.mean_steps) == (2, 4, 2.0)
    assert result.tokens_per_forward == pytest.approx(8 / 5)
    assert (result.records[1].output, result.records[1].expected) == (wrong, grid(SOLUTION))
    assert result.summary()["accuracy"] == 0.5


def test_sudoku_asks_in_batches_with_the_settings_given():
    model = FixedModel([grid(SOLUTION)] * 5)
    seen = []
    sudoku.TASK.evaluate(
        model,
        [puzzle_item()] * 5,
        steps=9,
        seed=4,
        batch_size=2,
        progress=lambda *counts: seen.append(counts),
        preset="fast",
    )
    assert [len(batch) for batch in model.batches] == [2, 2, 1]
    assert model.settings[0] == {"steps": 9, "seed": 4, "max_tokens": 256, "preset": "fast"}
    assert seen == [(2, 5, 2), (4, 5, 4), (5, 5, 5)]
    messages, declared = model.chats[0]
    assert messages[0]["role"] == "system"
    assert messages[1]["content"] == grid(PUZZLE)
    assert declared is None


def test_steps_are_left_to_the_model_unless_given():
    model = FixedModel([""])
    sudoku.TASK.evaluate(model, [puzzle_item()])
    assert "steps" not in model.settings[0]


def test_items_may_have_settings_of_their_own():
    model = FixedModel([""] * 3)
    task = dataclasses.replace(sudoku.TASK, own=lambda item: {"regex": item.id})
    task.evaluate(model, [puzzle_item(name) for name in "abc"], batch_size=2)
    assert model.each == [{"regex": name} for name in "abc"]
    assert model.asked[0] == {"seed": 0, "max_tokens": 256, "regex": "a"}


def test_batch_size_is_checked():
    with pytest.raises(SettingError, match="batch_size is 0"):
        sudoku.TASK.evaluate(FixedModel([]), [puzzle_item()], batch_size=0)


def tool_item(*calls):
    declared = [{"type": "function", "function": {"name": name, "description": "d"}} for name in ("f", "g")]
    return tools.ToolItem(id="t", tools=declared, messages=[{"role": "user", "content": "go"}], calls=calls)


CALL_F = '<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>'
CALL_G = "<|tool_call>call:g{on:true}<tool_call|>"
F, G = ("f", {"a": 1, "b": "x"}), ("g", {"on": True})


@pytest.mark.parametrize(
    ("calls", "text", "solved"),
    [
        ((F,), CALL_F, True),
        ((F,), CALL_F + "<|tool_response>", True),
        ((F,), '<|tool_call>call:f{b:<|"|>x<|"|>,a:1.0}<tool_call|>', True),
        ((F,), '<|tool_call>call:f{a:2,b:<|"|>x<|"|>}<tool_call|>', False),
        ((F,), '<|tool_call>call:f{a:<|"|>1<|"|>,b:<|"|>x<|"|>}<tool_call|>', False),
        ((F,), CALL_F + CALL_F, False),
        ((F,), CALL_F + "<|tool_call>call:f{a:<tool_call|>", False),
        ((F,), "f", False),
        ((G,), "<|tool_call>call:g{on:1}<tool_call|>", False),
        ((F, G), CALL_G + CALL_F, True),
        ((F, G), CALL_F, False),
        ((), "None of the available tools can do that.", True),
        ((), "", False),
        ((), "<|channel>thought\nNo tool fits.<channel|>", False),
        ((), CALL_G, False),
    ],
)
def test_tools_are_judged_by_the_exact_calls(calls, text, solved):
    assert tools.TASK.evaluate(FixedModel([text]), [tool_item(*calls)]).solved == solved


def test_tools_pass_the_declarations_to_the_template():
    model, item = FixedModel([CALL_F]), tool_item(F)
    tools.TASK.evaluate(model, [item])
    assert model.chats == [(item.messages, item.tools)]


def test_infill_is_exact_but_for_white_space_at_the_end():
    items = [infill.InfillItem(id=str(i), prefix="p", answer="    x = 1", suffix="s", source="test") for i in range(3)]
    model = FixedModel(["    x = 1\n", "x = 1", "    x = 2"])
    result = infill.evaluate(model, items, steps=5, seed=2, max_tokens=16)
    assert [record.solved for record in result.records] == [True, False, False]
    assert (result.mean_steps, result.tokens_per_forward) == (2.0, 0.25)
    assert model.settings[0] == {"steps": 5, "seed": 2, "max_tokens": 16}
    assert model.chats[0] == ("p", "s")


@pytest.mark.parametrize(
    ("text", "solved"),
    [
        ("It is Paris.", True),
        ("PARIS", True),
        ("Comparison", False),
        ("Parisian", False),
        ("I do not know.", True),
        ("I do know, not you", False),
        ("5+3=8 (C++)", True),
        ("", False),
    ],
)
def test_small_talk_asks_for_whole_words(text, solved):
    messages = [{"role": "user", "content": "?"}]
    item = smalltalk.SmalltalkItem(id="s", messages=messages, expected=("Paris", "not know", "C++"))
    model = FixedModel([text])
    result = smalltalk.TASK.evaluate(model, [item], seed=3)
    assert result.solved == solved
    assert result.records[0].expected == "Paris | not know | C++"
    assert model.chats == [(messages, None)]
    assert model.settings[0] == {"seed": 3, "max_tokens": 256}


class Sides(FixedModel):
    """Also continues a text with its next answer; its tokens are words."""

    tokenizer = SimpleNamespace(encode=lambda text, special: text.split())

    def generate(self, prompt, *, raw, **settings):
        assert raw
        self.chats.append(prompt)
        self.settings.append(settings)
        return Result(self.answers.pop(0), (1, 2), Stats((3, 1), 5))


ITEM = infill.InfillItem(id="x", prefix="if x:\n", answer="    return f(a, b)", suffix="\n", source="test")


def test_the_middle_of_an_answer_leaves_whole_words_on_both_sides():
    middle = infill.middle_of(ITEM)
    assert middle is not None
    assert middle.prefix + middle.answer + middle.suffix == ITEM.prefix + ITEM.answer + ITEM.suffix
    assert middle.prefix.startswith(ITEM.prefix + "    return")
    assert middle.suffix.endswith(ITEM.suffix)
    assert 0 < len(middle.answer) < len(ITEM.answer)
    three = infill.middle_of(dataclasses.replace(ITEM, answer="    return x +"))
    assert three is not None
    assert (three.answer, three.suffix) == (" x", " +" + ITEM.suffix)
    assert infill.middle_of(dataclasses.replace(ITEM, answer="    pass")) is None


def test_an_item_that_cannot_be_filled_is_named():
    model = Sides([])
    model.fill = Mock(side_effect=PromptError("There is nothing to fill."))
    with pytest.raises(PromptError, match="item x: There is nothing to fill"):
        infill.evaluate(model, [ITEM])


def test_the_length_is_given_in_tokens():
    model = Sides([ITEM.answer])
    assert infill.evaluate(model, [ITEM], method="given").solved == 1
    assert model.settings == [{"seed": 0, "length": 3}]


def test_left_to_right_hides_what_is_behind_and_is_cut_where_the_answer_ends():
    model = Sides([ITEM.answer + " and more", "    return g"])
    result = infill.evaluate(model, [ITEM, ITEM], method="left")
    assert [record.solved for record in result.records] == [True, False]
    assert model.chats == [ITEM.prefix, ITEM.prefix]
    assert model.settings[0] == {"steps": infill.LEFT_STEPS, "seed": 0, "max_tokens": 6}
    assert (result.records[0].tokens, result.records[0].forwards) == (2, 5)
    model = Sides([""])
    infill.evaluate(model, [dataclasses.replace(ITEM, prefix="")], method="left")
    assert model.chats == ["\n"]  # a prompt cannot be empty
    model = Sides(["", ""])
    infill.evaluate(model, [ITEM], method="left", preset="careful")
    infill.evaluate(model, [ITEM], method="left", preset="careful", steps=3)
    assert [given.get("steps") for given in model.settings] == [None, 3]


def test_methods_are_compared_item_by_item():
    answers = [ITEM.answer, ITEM.answer, "x", ITEM.answer, "x", "x"]  # found, given, left; two items each
    done: list[tuple[int, int, int]] = []
    compared = infill.compare(Sides(answers), [ITEM, ITEM], max_tokens=9, progress=lambda *now: done.append(now))
    assert [result.solved for result in compared.results.values()] == [2, 1, 0]
    assert compared.pairs == [("found", "given", 1, 0, 1.0), ("found", "left", 2, 0, 0.5), ("given", "left", 1, 0, 1.0)]
    assert [record.id for record in compared.records][::2] == ["found:x", "given:x", "left:x"]
    assert compared.summary()["pairs"][1] == {
        "first": "found", "second": "left", "first_only": 2, "second_only": 0, "p": 0.5
    }  # fmt: skip
    assert done[-1] == (6, 6, 3)


def test_a_method_that_is_none():
    with pytest.raises(SettingError, match="method is 'both'"):
        infill.evaluate(FixedModel([]), [ITEM], method="both")
    with pytest.raises(SettingError, match="max_tokens is only for the method 'found'"):
        infill.evaluate(FixedModel([]), [ITEM], method="left", max_tokens=3)


@pytest.mark.parametrize(("count", "expected"), [
    (1, [0]), (3, [0, 3, 6]), (4, [0, 2, 5, 7]), (5, [0, 2, 4, 6, 8]), (7, [0, 1, 2, 4, 5, 7, 8]),
    (9, [0, 1, 2, 3, 4, 5, 6, 7, 8]), (10, list(range(10))), (11, list(range(10))),
])  # fmt: skip
def test_some_items_are_taken_from_all_over_a_set(count: int, expected: list[int]) -> None:
    assert spread(range(10), count) == expected


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("It is 3.", "3", True), ("3, 4 and 5-3", "3", True), ("I have 5-3 left", "5", True), ("(3)", "3", True),
        ("It is 3.5 degrees", "3", False), ("It is 3.5 degrees", "5", False), ("3.5 degrees", "3.5", True),
        ("It costs 1,200", "200", False), ("It costs 1,200", "1", False), ("It costs 1,200.", "1,200", True),
        ("It is -5", "5", False), ("It is \u22125", "5", False), ("It is -5", "-5", True), ("v. 3.5", "v", True),
    ],
)  # fmt: skip
def test_a_number_is_not_found_within_another(text: str, phrase: str, expected: bool) -> None:
    assert holds(text, phrase) == expected
