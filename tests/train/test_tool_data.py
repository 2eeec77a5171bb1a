"""Tool-call data: requests and calls agree, the sides of the split stay apart, the format is the model's own."""

import random
from pathlib import Path

import pytest

import redraft
from redraft.eval.tools import read_tools_jsonl
from redraft.text.reply import parse_reply
from redraft.train.build.tool_api import (
    ApiParameter,
    Operation,
    _imperative,
    draw_api_request,
    draw_api_tool,
    is_heldout,
)
from redraft.train.build.tool_grammar import (
    draw_request,
    draw_tool,
    heldout_actions,
    read_grammar,
    second_actions,
    training_actions,
)
from redraft.train.build.tool_values import Values, is_evaluation_value
from redraft.train.build.tools import NO_TOOL, ItemSource, Shares, answer_text, documents, write_second_evaluation
from tool_requests import check_names, check_values

LAMP = """
@home home
set_lamp/switch_lamp :: Switch a lamp
lamp!=CITY:Which lamp; level=INT(1,9):How bright; slow=BOOL:Slowly
- switch the lamp {lamp}[ to {level}][ {slow:slowly|at once}]
"""


def test_grammar_reads_names_kinds_and_requests():
    (action,) = read_grammar(LAMP)
    assert action.names == ("set_lamp", "switch_lamp")
    assert [(p.names, p.required, p.kind) for p in action.parameters] == [
        (("lamp",), True, "CITY"), (("level",), False, "INT"), (("slow",), False, "BOOL")
    ]  # fmt: skip
    assert action.requests == (("-", "switch the lamp {lamp}[ to {level}][ {slow:slowly|at once}]"),)


@pytest.mark.parametrize("line", ["- switch {bulb} and {lamp}", "- switch it[ off at {lamp}]"])
def test_grammar_refuses_unknown_and_optional_required_slots(line):
    with pytest.raises(ValueError, match="wrong slots"):
        read_grammar(LAMP.rsplit("- switch", 1)[0] + line)


def test_grammar_refuses_a_tool_that_nobody_asks_for():
    with pytest.raises(ValueError, match="set_lamp has no request line"):
        read_grammar(LAMP.rsplit("- switch", 1)[0])


def test_every_tool_can_be_drawn_and_calls_only_what_it_declares():
    for action in (*training_actions(), *heldout_actions(), *second_actions()):
        for seed in range(6):
            values = Values(random.Random(seed))
            tool = draw_tool(action, values)
            check_names(tool, draw_request(tool, values))


def test_string_arguments_stand_in_the_request():
    for seed in range(150):
        values = Values(random.Random(seed))
        check_values(draw_request(draw_tool(values.rng.choice(training_actions()), values), values))


def test_heldout_tools_and_requests_are_not_in_training():
    names = {name for action in training_actions() for name in action.names}
    lines = {line for action in training_actions() for line in action.requests}
    for actions in (heldout_actions(), second_actions()):
        assert not names & {name for action in actions for name in action.names}
        assert not lines & {line for action in actions for line in action.requests}
        assert not {a.domain for a in training_actions()} & {a.domain for a in actions}


def test_the_second_evaluation_is_what_its_builder_writes(tmp_path):
    write_second_evaluation(tmp_path / "items.jsonl", 200)
    embedded = Path(redraft.__file__).parent / "eval" / "data" / "tools_second.jsonl"
    assert (tmp_path / "items.jsonl").read_text() == embedded.read_text()
    assert len(read_tools_jsonl(embedded)) == 200


@pytest.mark.parametrize("evaluation", [False, True])
def test_values_keep_to_their_side_of_the_split(evaluation):
    values = Values(random.Random(1), evaluation=evaluation)
    for kind in ("PERSON", "CITY", "TEXT", "EMAIL", "PATH", "ID"):
        assert {is_evaluation_value(values.string(kind)) for _ in range(20)} == {evaluation}


def operation(**changes):
    parameter = ApiParameter(name="pageSize", type="integer", description="How many", options=(), required=True)
    fields = {
        "service": "s",
        "names": ("list_things",),
        "words": "list things",
        "description": "Lists all things",
        "parameters": (parameter,),
    }
    return Operation(**{**fields, **changes})


@pytest.mark.parametrize(
    ("description", "expected"),
    [("Lists all things", "list all things"), ("Retrieves a thing", "retrieve a thing"), ("This is old",
    "list things"), ("Access things", "list things")],
)  # fmt: skip
def test_descriptions_become_imperatives(description, expected):
    assert _imperative(operation(description=description)) == expected


def test_api_request_names_its_argument():
    for seed in range(30):
        values = Values(random.Random(seed))
        request = draw_api_request(draw_api_tool(operation(), values), values)
        assert list(request.arguments) == ["pageSize"]
        assert "page size" in request.text.lower() or "pageSize" in request.text


def test_items_answer_with_declared_tools_in_the_call_format():
    source = ItemSource([operation()] if not is_heldout("s") else [], 7)
    counts = set()
    for _ in range(300):
        item = source.draw()
        declared = [tool["function"]["name"] for tool in item.tools]
        assert len(set(declared)) == len(declared)
        assert all(name in declared for name, _ in item.calls)
        reply = parse_reply(answer_text(item.calls))
        assert [(call.name, call.arguments) for call in reply.tool_calls] == item.calls
        assert reply.content == ("" if item.calls else NO_TOOL)
        counts.add(len(item.calls))
    assert counts == {0, 1, 2}


def test_calls_end_with_the_response_marker_and_answers_with_the_turn():
    assert (
        answer_text([("f", {"b": 1, "a": "x"})]) == '<|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|><|tool_response>'
    )
    assert answer_text([]) == NO_TOOL + "<turn|>"


def test_stream_repeats_with_its_seed():
    first, again = (ItemSource([], 5) for _ in range(2))
    assert [first.draw() for _ in range(20)] == [again.draw() for _ in range(20)]
    assert ItemSource([], 6).draw() != ItemSource([], 5).draw()


class CharacterTokenizer:
    def encode(self, text):
        return [ord(character) for character in text]


class Template:
    def render(self, messages, *, tools=None, add_generation_prompt=True):
        return f"{tools}{messages}>"


def test_documents_mark_the_prompt_and_respect_the_longest_length():
    made = list(documents(ItemSource([], 5), 10, CharacterTokenizer(), Template(), longest=900))
    assert len(made) == 10
    for document in made:
        text = "".join(map(chr, document.tokens))
        assert len(text) <= 900
        assert text[: document.prompt_length].endswith(">")
        assert text[document.prompt_length :].startswith(("<|tool_call>", NO_TOOL))


def test_shares_are_checked():
    with pytest.raises(ValueError, match="shares"):
        Shares(api=0.8, invented=0.4)


def test_foreign_names_keep_the_call_and_the_described_parameters() -> None:
    source = ItemSource([], 5, shares=Shares(api=0.0, invented=0.0, none=0.0, parallel=0.0, foreign=1.0))
    plain = ItemSource([], 5, shares=Shares(api=0.0, invented=0.0, none=0.0, parallel=0.0))
    drawn = [tool["function"] for _ in range(200) for tool in plain.draw().tools]
    known = {name for function in drawn for name in function["parameters"]["properties"]}
    renamed = 0
    for _ in range(100):
        item = source.draw()
        ((called, arguments),) = item.calls
        function = next(tool["function"] for tool in item.tools if tool["function"]["name"] == called)
        properties = function["parameters"]["properties"]
        assert set(arguments) <= set(properties)
        assert set(function["parameters"].get("required", [])) <= set(properties)
        for name, field in properties.items():
            renamed += "description" in field and name not in known
    assert renamed > 50
