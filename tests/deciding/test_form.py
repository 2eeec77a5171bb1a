"""Forms, the strings of their choices, and where these part."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft.deciding.form import Branch, Form, branches
from redraft.deciding.read import BranchRow, choice_logprobs
from redraft.errors import SettingError
from redraft.llm import LLM


@pytest.fixture(scope="module")
def llm() -> LLM:
    return redraft.load("tiny", device="cpu", dtype="float32")


def test_a_list_is_one_slot() -> None:
    form = Form.of(["a", "b"])
    assert (form.literals, form.names, form.choices) == (("", ""), ("choice",), (("a", "b"),))


def test_slots_without_a_template_stand_on_lines() -> None:
    form = Form.of({"size": ["big", "small"], "kind": ["cat", "dog"]})
    assert form.fill(["big", "dog"]) == "size: big\nkind: dog"
    assert form.fill(["big"]) == "size: big\nkind: "


def test_braces_are_written_twice() -> None:
    assert Form.of(["a", "b"], "call:{choice}{{").fill(["a"]) == "call:a{"


def test_strings_are_whole_answers_padded_to_one_length(llm: LLM) -> None:
    """Tokenised as a whole: the space belongs to the word, and the answer is closed and filled up."""
    tokenizer = llm.tokenizer
    strings = Form.of(["no", "not at all"], "It is {choice}").strings(tokenizer, [])
    assert [tokenizer.decode(ids) for ids in strings] == [
        "It is no" + "<turn|>" + "<eos>" * (len(strings[0]) - len(tokenizer.encode("It is no")) - 1),
        "It is not at all<turn|>",
    ]
    assert len(set(map(len, strings))) == 1


def test_a_slot_before_others_ends_where_the_next_begins(llm: LLM) -> None:
    form = Form.of({"a": ["cat", "dog"], "b": ["big", "small"]}, "The {a} is {b}.")
    first = form.strings(llm.tokenizer, [])
    assert [llm.tokenizer.decode(ids) for ids in first] == ["The cat is ", "The dog is "]
    second = form.strings(llm.tokenizer, ["dog"])
    assert all(llm.tokenizer.decode(ids).startswith("The dog is ") for ids in second)


def test_strings_may_part_at_every_position() -> None:
    strings = tuple((1,) * n + (0,) * (500 - n) for n in range(500))
    assert [branch.at for branch in branches(strings)] == list(range(499))


def test_strings_part_once_for_each_further_choice() -> None:
    strings = ((1, 2, 9, 9), (1, 3, 4, 9), (1, 3, 5, 6), (1, 3, 5, 7))
    assert branches(strings) == [
        Branch(1, (2, 3), ((0,), (1, 2, 3))),
        Branch(2, (4, 5), ((1,), (2, 3))),
        Branch(3, (6, 7), ((2,), (3,))),
    ]


@given(st.sets(st.tuples(*[st.integers(0, 2)] * 4), min_size=2, max_size=12), st.randoms())
def test_probabilities_of_all_choices_sum_to_one(found: set[tuple[int, ...]], random) -> None:  # type: ignore[no-untyped-def]
    strings = tuple(sorted(found))
    rows = [BranchRow(0, branch, ()) for branch in branches(strings)]
    odds = []
    for row in rows:
        weights = [random.random() + 0.01 for _ in row.branch.tokens]
        odds.append([math.log(weight / sum(weights)) for weight in weights])
    assert sum(map(math.exp, choice_logprobs(len(strings), rows, odds))) == pytest.approx(1)
    assert len(rows) <= len(strings) - 1


@pytest.mark.parametrize(
    ("choices", "template", "sentence"),
    [
        ([], None, "at least two choices"),
        (["a"], None, "at least two choices"),
        ("ab", None, "at least two choices"),
        (["a", ""], None, "non-empty strings"),
        ({1: ["a", "b"], "c": ["a", "b"]}, "{c}", "choices has the slot 1; a slot's name must be a string"),
        ({"a b": ["a", "b"]}, None, "choices has the slot 'a b'; a slot's name must be"),
        (["a", 1], None, "non-empty strings"),
        (["a", "a"], None, "the same choice twice"),
        (["a", "b"], "no slot", "no slot"),
        (["a", "b"], "{other}", "slots 'other'; choices are given for 'choice'"),
        (["a", "b"], "{choice} {choice}", "choices are given for 'choice'"),
        (["a", "b"], "{choice:d}", "nothing more"),
        (["a", "b"], "{choice!r}", "nothing more"),
        (["a", "b"], "{}", "nothing more"),
        (["a", "b"], "{choice", "cannot be read"),
        ({"x": ["a", "b"]}, "{x} {y}", "choices are given for 'x'"),
        ({}, None, "choices has no slot"),
    ],
)
def test_what_is_no_form(choices: object, template: str | None, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        Form.of(choices, template)  # type: ignore[arg-type]


def test_choices_that_cannot_be_told_apart(llm: LLM) -> None:
    """Where the answer goes on, a choice that begins another one has no end to be seen."""
    form = Form.of(["no", "no more"], ends=False)
    with pytest.raises(SettingError, match="'no more' begins with 'no'"):
        form.strings(llm.tokenizer, [])
    assert Form.of(["no", "no more"]).strings(llm.tokenizer, [])


@pytest.mark.parametrize(
    ("template", "choice"),
    [("<{choice}", "turn|> a"), ("{choice}", "<turn|>b"), ("{choice}>.", "a <turn|"), ("<|channel>{choice}", "<eos>")],
)
def test_special_strings_are_special_in_literals_alone(llm: LLM, template: str, choice: str) -> None:
    tokenizer = llm.tokenizer
    form = Form.of(["a", choice], template, ends=False)
    for ids, value in zip(form.strings(tokenizer, []), ("a", choice), strict=True):
        assert tokenizer.decode(ids) == form.fill([value])
        special = [token for token in ids if token in tokenizer.special_ids.values()]
        assert special == [tokenizer.special_id("<|channel>")] * template.count("<|channel>")
