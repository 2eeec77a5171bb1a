"""Front ends through random weights: whatever the model says, the answer obeys; what cannot be obeyed is refused."""

import codecs
import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from redraft.constraints import build, read_template
from redraft.constraints.answer import AutomatonConstraint
from redraft.constraints.build import NAMES, NARROWING, WHOLE
from redraft.errors import ConstraintError, PromptError, SettingError
from redraft.llm import LLM
from redraft.text.prompt import thought_open
from redraft.text.reply import parse_reply
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12},
                   "age": {"type": "integer", "minimum": 0, "maximum": 130},
                   "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["name", "age"],
}  # fmt: skip
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer", "maximum": 9},
                           "unit": {"enum": ["C", "F"]}},
            "required": ["city", "days"],
        },
    },
}  # fmt: skip
CLOCK = {"type": "function", "function": {"name": "clock"}}


def named(name: str, parameters: Any = None) -> dict[str, Any]:
    """A declared tool."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def nested(levels: int) -> Any:
    schema: Any = True
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def ask(llm: LLM, **wanted: Any) -> str:
    given = {"steps": 2, "seed": 3, "max_tokens": 64, "canvas_length": 16} | wanted
    return llm.generate("Hello", **given).text


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("canvas_length", [16, 37])
def test_answers_obey_at_any_length_of_canvas(random_llm: LLM, steps: int, canvas_length: int) -> None:
    shape = {"steps": steps, "canvas_length": canvas_length}
    assert ask(random_llm, choices=["yes", "no", "vielleicht, äh"], **shape) in ("yes", "no", "vielleicht, äh")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d( [a-z]+){3}", ask(random_llm, regex=r"\d{4}-\d\d-\d\d( [a-z]+){3}", **shape))
    person = json.loads(ask(random_llm, json_schema=PERSON, **shape))
    assert len(person["name"]) <= 12
    assert 0 <= person["age"] <= 130
    assert isinstance(json.loads(ask(random_llm, json_object=True, **shape)), dict)


def test_a_template_is_written_and_read(random_llm: LLM) -> None:
    template = "Name: {name:str<12}, age {age:int<120}, {sure:bool}, {day:date} {{{kind:red|green}}}"
    values = read_template(template, ask(random_llm, template=template))
    assert len(values["name"]) < 12
    assert values["age"] < 120
    assert isinstance(values["sure"], bool)
    assert values["kind"] in ("red", "green")


@pytest.mark.parametrize(("template", "text", "value"), [
    ("{x:/a|/b}", "/b", "/b"), ("{x:int<5|y}", "int<5", "int<5"), (r"{x:/\p{Lu}{2}/}", "ÄB", "ÄB"),
    ("p={x:json-pointer}", "p=", ""), ("{x:/[0-9]/}", "7", "7"), ("a {x:/^[^b]+$/};", "a c;", "c"),
])  # fmt: skip
def test_what_a_hole_may_hold_can_be_read(tokenizer: Tokenizer, template: str, text: str, value: str) -> None:
    constraint = build(tokenizer, template=template)
    assert constraint is not None
    assert obeys(constraint, tokenizer.encode(text, special=False))
    assert read_template(template, text) == {"x": value}


def test_every_keyword_asks_for_something_or_qualifies_what_others_ask() -> None:
    """One that does neither would be taken and ignored."""
    qualifying = {"tool_choice", "parallel_tool_calls", "strict", "thinking", "thought_open", "allow_empty"}
    assert set(NAMES) == {*WHOLE, *NARROWING, "pins", "tools"} | qualifying


def test_words_appear_in_order_or_not_at_all(random_llm: LLM, tokenizer: Tokenizer) -> None:
    text = ask(random_llm, must_include=["blue", "sea"], forbidden=["e s", "x"], max_tokens=40)
    assert re.search("blue.*sea", text, re.DOTALL)
    assert "x" not in text
    assert "e s" not in text


def test_an_empty_answer_can_be_forbidden(random_llm: LLM) -> None:
    assert ask(random_llm, regex="a*b?", forbid_empty=True) != ""
    with pytest.raises(ConstraintError, match="choices allows only the empty text"):
        ask(random_llm, choices=[""], forbid_empty=True)


@pytest.mark.parametrize("choice", ["required", "clock", {"type": "function", "function": {"name": "get_weather"}}])
def test_calls_always_parse_with_declared_names_and_types(random_llm: LLM, choice: Any) -> None:
    for seed in range(3):
        reply = parse_reply(ask(random_llm, tools=[WEATHER, CLOCK], tool_choice=choice, seed=seed, max_tokens=96))
        assert reply.tool_calls
        assert not reply.malformed
        for call in reply.tool_calls:
            names = {"clock": {"clock"}, "required": {"clock", "get_weather"}}.get(str(choice), {"get_weather"})
            assert call.name in names
            if call.name == "get_weather":
                assert isinstance(call.arguments["city"], str)
                assert isinstance(call.arguments["days"], int)
                assert call.arguments["days"] <= 9
            else:
                assert call.arguments == {}


@pytest.mark.parametrize("parameters", [
    {"type": ["object", "null"], "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
    {"enum": [[1], {"a": 1}, "x"]},
    {"properties": {"": {"const": 1}, " b": {}, "a": {"const": 1}}, "required": ["a"]},
])  # fmt: skip
def test_whatever_the_parameters_are_a_call_can_be_read(random_llm: LLM, parameters: dict[str, Any]) -> None:
    for choice in ("required", {"name": "f"}):
        reply = parse_reply(ask(random_llm, tools=[named("f", parameters)], tool_choice=choice))
        assert not reply.malformed
        assert reply.tool_calls[0].arguments["a"] in (1, 2)


@pytest.mark.parametrize("parameters", [
    None, {}, {"type": "object", "properties": {}}, {"type": "object", "title": "Now", "required": []},
    {"type": "object", "properties": {}, "additionalProperties": False},
])  # fmt: skip
def test_a_tool_that_declares_no_argument_gets_none(random_llm: LLM, parameters: Any) -> None:
    reply = parse_reply(ask(random_llm, tools=[named("f", parameters)], tool_choice="f"))
    assert [call.arguments for call in reply.tool_calls] == [{}]


@pytest.mark.parametrize("parameters", [
    {"properties": {}, "additionalProperties": {"const": 1}, "minProperties": 1},
    {"properties": {}, "patternProperties": {"^[a-z]$": {"const": 1}}, "additionalProperties": False},
    {"properties": {}, "anyOf": [{"properties": {"a": {"const": 1}}}]},
    {"properties": {}, "$ref": "#/$defs/f", "$defs": {"f": {"properties": {"a": {"const": 1}}}}},
])  # fmt: skip
def test_a_tool_that_declares_its_arguments_elsewhere_gets_them(tokenizer: Tokenizer, parameters: Any) -> None:
    constraint = build(tokenizer, tools=[named("f", parameters)], tool_choice="f")
    assert constraint is not None
    assert obeys(constraint, tokenizer.encode("<|tool_call>call:f{a:1}<tool_call|>"))


def test_what_cannot_be_enforced_of_a_tool_is_left_out_unless_it_is_strict(random_llm: LLM) -> None:
    several = {
        "type": "array",
        "items": {"type": "integer", "maximum": 9},
        "minItems": 1,
        "maxItems": 3,
        "uniqueItems": True,
    }
    (tool,) = tools = [named("f", {"properties": {"a": several}, "required": ["a"]})]
    for strict in (None, False):
        tool["function"]["strict"] = strict
        reply = parse_reply(ask(random_llm, tools=tools, tool_choice="f", strict=True))
        assert all(number <= 9 for number in reply.tool_calls[0].arguments["a"])
    tool["function"]["strict"] = True
    with pytest.raises(ConstraintError, match="tool 'f': The schema keyword 'uniqueItems'"):
        ask(random_llm, tools=tools, tool_choice="f", strict=False)


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_tool_may_have_the_name_of_a_mode(random_llm: LLM, mode: str) -> None:
    reply = parse_reply(ask(random_llm, tools=[named(mode), CLOCK], tool_choice={"name": mode}))
    assert [call.name for call in reply.tool_calls] == [mode]


def test_calls_that_are_not_parallel_are_one_at_most(tokenizer: Tokenizer) -> None:
    call = tokenizer.encode("<|tool_call>call:clock{}<tool_call|>")
    for choice in ("auto", "required"):
        several, one = (
            build(tokenizer, tools=[CLOCK], tool_choice=choice, parallel_tool_calls=said) for said in (True, False)
        )
        assert several is not None
        assert one is not None
        assert [obeys(several, call), obeys(several, 2 * call)] == [True, True]
        assert [obeys(one, call), obeys(one, 2 * call)] == [True, False]
        assert obeys(one, []) is (choice == "auto")


def test_no_call_when_none_is_wanted(random_llm: LLM) -> None:
    reply = parse_reply(ask(random_llm, tools=[WEATHER], tool_choice="none", max_tokens=32))
    assert not reply.tool_calls
    assert not reply.malformed


def test_a_thought_may_come_first(tokenizer: Tokenizer) -> None:
    constraint = build(tokenizer, choices=["yes"], thinking=True)
    assert constraint is not None
    ids = tokenizer.encode("<|channel>thought\nwell<channel|>yes<turn|><eos>")
    state = constraint.begin()
    state.advance(ids)
    assert state.closed


@pytest.mark.parametrize(("wanted", "reason"), [
    ({"forbidden": ["zebra"]}, "length"), ({"pins": {0: "Once"}}, "length"), ({"regex": r"[a-z]+"}, "length"),
    ({"regex": "x{9}"}, "stop"), ({"json_schema": {"const": [1, 22]}}, "stop"),
])  # fmt: skip
def test_an_answer_that_could_go_on_at_max_tokens_has_reached_its_length(
    random_llm: LLM, wanted: dict[str, Any], reason: str
) -> None:
    constraint = build(random_llm.tokenizer, **wanted)
    assert constraint is not None
    most = max(constraint.min_tokens, 4)
    found = random_llm.generate("Hi", steps=1, max_tokens=most, canvas_length=16, **wanted)
    assert len(found.token_ids) == most
    assert found.finish_reason == reason


THINKS_ON = ChatTemplate(
    """
{%- for message in messages -%}
  {%- if message['role'] == 'tool' -%}
    {{- '<|tool_response>' ~ message['content'] ~ '<tool_response|>' -}}
  {%- else -%}
    {{- '<|turn>' ~ message['role'] ~ '\\n' ~ message['content'] ~ ('' if message['tool_calls'] else '<turn|>\\n') -}}
  {%- endif -%}
{%- endfor -%}
{%- if messages[-1]['role'] == 'tool' and enable_thinking and tools is defined -%}
  {{- '<|channel>thought\\n' -}}
{%- endif -%}"""
)
"""Like a published template: behind a tool's result the model goes on in a thought that is open already."""
CALLED = [
    {"role": "user", "content": "Time?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {}}}]},
    {"role": "tool", "content": "noon"},
]
CALL = "<|tool_call>call:clock{}<tool_call|>"


def obeys(constraint: AutomatonConstraint, ids: list[int]) -> bool:
    state = 0
    for token in ids:
        state = constraint.automaton.step(state, token)
        if state < 0:
            return False
    return bool(constraint.automaton.accept[state])


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("Noon.", {"tools": [CLOCK]}),
        (CALL, {"tools": [CLOCK]}),
        (CALL, {"tools": [CLOCK], "tool_choice": "required"}),
        ('"a"', {"json_schema": {"const": "a"}}),
    ],
)
def test_a_thought_that_the_prompt_opened_is_closed_before_the_body(
    random_llm: LLM, tokenizer: Tokenizer, body: str, wanted: dict[str, Any]
) -> None:
    llm = LLM(random_llm.model, tokenizer, THINKS_ON, path=random_llm.path, eos_ids=random_llm.eos_ids)
    ids = llm.encode_chat(CALLED, thinking=True)
    assert thought_open(ids, tokenizer)
    constraint = llm.request(ids, thinking=True, **wanted).constraint
    assert isinstance(constraint, AutomatonConstraint)
    assert obeys(constraint, tokenizer.encode(f"It is noon.\n<channel|>{body}"))
    assert not obeys(constraint, tokenizer.encode(body))
    assert not obeys(constraint, tokenizer.encode(f"<|channel>thought\nwell<channel|>{body}"))


def test_what_stands_in_an_open_thought_is_reasoning(random_llm: LLM, tokenizer: Tokenizer) -> None:
    llm = LLM(random_llm.model, tokenizer, THINKS_ON, path=random_llm.path, eos_ids=random_llm.eos_ids)
    shape: dict[str, Any] = {"steps": 2, "seed": 3, "canvas_length": 16, "thinking": True}
    free = llm.chat(CALLED, max_tokens=16, **shape)
    assert free.content == ""
    assert free.reasoning
    called = llm.chat(CALLED, tools=[CLOCK], tool_choice="required", max_tokens=64, **shape)
    assert {call.name for call in called.tool_calls} == {"clock"}
    assert called.content == ""


BAD: list[tuple[dict[str, Any], str]] = [
    ({"choices": []}, "choices is empty"),
    ({"choices": "yes"}, "must be a list of strings"),
    ({"choices": ["a"], "regex": "a"}, "both say what the whole answer is"),
    ({"regex": "a(?=b)"}, "look-ahead"),
    ({"regex": r"(a)\1"}, "back reference"),
    ({"regex": "(a"}, "unbalanced parenthesis"),
    ({"regex": r"\c1"}, "without a letter from A to Z"),
    ({"regex": r"\cé"}, "without a letter from A to Z"),
    ({"regex": "(?P<>x)"}, "group name '', which is not an identifier"),
    ({"regex": "(?P<1>x)"}, "group name '1', which is not an identifier"),
    ({"regex": "(?P<a>x)|(?P<a>y)"}, "two groups named 'a'"),
    ({"json_schema": {"type": "number", "multipleOf": 99.99}}, "'multipleOf' asks for multiples of 99.99, which take"),
    ({"json_schema": {"type": "integer", "multipleOf": 10**6 + 3}}, "multiples of 1000003, which take too many states"),
    ({"regex": "a{3,1}"}, "empty repetition"),
    ({"template": "{a} and {a}"}, "more than one hole named 'a'"),
    ({"regex": "(a{1,900}){1,900}"}, "automaton of more than"),
    ({"regex": "(a|b)*a(a|b){18}"}, "automaton of more than"),
    ({"json_schema": "{"}, "not valid JSON"),
    ({"json_schema": 3}, "must be a dict"),
    ({"json_schema": 0}, "must be a dict"),
    ({"json_schema": False}, "allows no JSON"),
    ({"json_schema": {"enum": []}}, "allows no JSON"),
    ({"json_schema": {"type": "object", "required": ["a"], "properties": {"a": False}}}, "allows no value."),
    ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "allows no JSON"),
    ({"json_schema": {"contains": {"format": "date"}, "maxContains": 1}}, "'contains' cannot be enforced"),
    ({"json_schema": {"type": "text"}}, "'type' has the value"),
    ({"json_schema": {"$ref": "https://example.org/x"}}, r"'\$ref' names"),
    ({"json_schema": "[" * 100_000}, "json_schema is nested too deeply"),
    ({"json_schema": nested(2000)}, "nested too deeply"),
    ({"json_schema": {"type": "integer", "maximum": 10**400}}, "integer of more than 320 digits"),
    ({"json_schema": {"type": "integer", "minimum": 10**300}}, "more than 80 digits before or after"),
    ({"json_schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-300}}, "more than 80 digits before or"),
    ({"json_schema": {"type": "number", "minimum": float("nan")}}, "holds nan, which is not a JSON number"),
    ({"json_schema": {"type": "number", "multipleOf": float("nan")}}, "holds nan, which is not a JSON number"),
    ({"json_schema": {"enum": [b"x"]}}, "holds b'x', which is not a JSON value"),
    ({"json_schema": {"properties": {1: {}}}}, "holds the name 1, which is not a string"),
    ({"json_schema": {"const": float("nan")}}, "holds nan, which is not a JSON number"),
    ({"json_schema": '{"enum": [1e999]}'}, "holds 1e999, which has more than 320 digits"),
    ({"json_schema": {"enum": [float("inf")]}}, "holds inf, which is not a JSON number"),
    (
        {"tools": [named("f", {"properties": {"k": {"enum": [1.0, 1e400]}}})], "tool_choice": "required"},
        r"tools\[0\].function.parameters.properties.k.enum\[1\] holds inf, which is not a JSON number",
    ),
    ({"json_schema": "null"}, "must be an object or a bool, not NoneType"),
    ({"json_schema": "[1]"}, "must be an object or a bool, not list"),
    ({"json_schema": {"not": 3}}, "must be an object or a bool, not int"),
    ({"json_schema": {"not": {"anyOf": [None]}}, "strict": False}, "must be an object or a bool, not NoneType"),
    ({"choices": np.array(["a", "b"])}, "choices must be a list of strings"),
    ({"choices": ["a", "b\ud800"]}, "choices holds a character that UTF-8 cannot express at index 1"),
    ({"forbidden": ["\ud800"]}, "forbidden holds a character that UTF-8 cannot express at index 0"),
    ({"must_include": ["\udcff"]}, "must_include holds a character that UTF-8 cannot"),
    ({"pins": {0: "\ud800"}}, "pins holds a character that UTF-8 cannot"),
    ({"text_pins": {0: "\ud800"}}, "text_pins holds a character that UTF-8 cannot"),
    ({"template": "\ud800{a}"}, "template holds a character that UTF-8 cannot"),
    ({"regex": "a\ud800"}, "regex allows no text"),
    ({"template": "no hole"}, "no hole"),
    ({"template": "{a} {a}"}, "more than one hole"),
    ({"template": "{a:colour}"}, "unknown type"),
    ({"template": "{a:int<1_000}"}, "has the limit '1_000'; it must be a number"),
    ({"template": "{a:str<٤٠}"}, "has the limit '٤٠'; it must be a natural number"),
    ({"template": "{a:/" + "[]" * 40 + "}"}, "unknown type"),
    ({"template": "{a:int<NaN}"}, "has the limit 'NaN'; it must be a number"),
    ({"template": "{a:float<=-Infinity}"}, "has the limit '-Infinity'; it must be a number"),
    ({"template": "{a:int<1e1000000}"}, "has the limit '1e1000000'; it must be a number"),
    ({"template": f"{{a:str<{'9' * 5000}}}"}, "has the limit '9+; it must be a natural number"),
    ({"pins": {0: "a"}, "choices": ["b"]}, "pin at position 0 contradicts"),
    ({"pins": {0: "ab cd ef", 1: "zz"}}, "different tokens at position"),
    ({"pins": {-1: "a"}}, "position -1"),
    ({"pins": {40_000_000: "a"}}, "position 40000000; no answer is longer than 262144"),
    ({"text_pins": {40_000_000: "a"}}, "position 40000000; no answer is longer"),
    ({"pins": {262_143: "a"}}, "has 262144 tokens"),
    ({"must_include": [""]}, "empty string"),
    ({"choices": ["abc"], "forbidden": ["b"]}, "allows no text"),
    ({"choices": ["abc"], "must_include": ["d"]}, "allows no text"),
    ({"tools": [CLOCK], "tool_choice": "dance"}, "must be auto, none, required or one of clock"),
    ({"tools": [CLOCK], "tool_choice": {"name": "none"}}, "tool_choice names 'none'; the tools are clock"),
    ({"tools": [named("f", {"type": "array"})], "tool_choice": "required"}, "arguments are an object"),
    ({"tools": [named("f", {"required": ["p<q"]})], "tool_choice": "required"}, "tool 'f': .* member named 'p<q'"),
    (
        {
            "tools": [named("f", {"properties": {"p": {"const": '<|"|>'}}, "required": ["p"]})],
            "tool_choice": "required",
        },
        r"tool 'f': The schema asks for '<",
    ),
    ({"tools": [CLOCK], "parallel_tool_calls": 0}, "parallel_tool_calls is 0; it must be True or False"),
    ({"tool_choice": "required"}, "no tools are declared"),
    ({"choises": ["a"]}, "Unknown"),
]


@pytest.mark.parametrize(("wanted", "message"), BAD)
def test_what_cannot_be_obeyed_is_refused_in_one_sentence(
    random_llm: LLM, wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConstraintError, PromptError, SettingError), match=message) as caught:
        random_llm.generate("x", **wanted)
    assert "\n" not in str(caught.value)


def test_too_small_a_budget_is_refused_with_the_tokens_it_takes(random_llm: LLM) -> None:
    with pytest.raises(ConstraintError, match=r"max_tokens is 5, but .* has 10 tokens"):
        random_llm.generate("x", regex=r"\d{4}-\d\d-\d\d", max_tokens=5)
    assert random_llm.generate("x", regex=r"\d{4}-\d\d-\d\d", max_tokens=10, steps=1).text[4] == "-"


def test_a_pydantic_model_is_a_schema(random_llm: LLM) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):
        x: int = pydantic.Field(ge=0, le=9)
        label: str | None = pydantic.Field(default=None, max_length=5)

    Point.model_validate_json(ask(random_llm, json_schema=Point))


def test_forbidden_words_hold_however_they_are_cut(tokenizer: Tokenizer) -> None:
    """Every way to cut the word into tokens is closed, not only the usual one."""
    constraint = build(tokenizer, forbidden=["ok"], regex="[a-z]+")
    assert constraint is not None
    automaton = constraint.automaton
    o, k = (tokenizer.encode(letter, special=False)[0] for letter in "ok")
    assert automaton.step(automaton.step(0, o), k) == -1
    assert all(automaton.step(0, t) == -1 for t in range(tokenizer.vocab_size) if b"ok" in tokenizer.token_bytes(t))


def test_the_best_string_is_what_a_step_reports(tokenizer: Tokenizer) -> None:
    constraint = build(tokenizer, regex="a+b", eos_ids=(1,))
    assert constraint is not None
    torch.manual_seed(0)
    logits = torch.randn(16, tokenizer.vocab_size)
    limit = constraint.begin().canvas(16, 16)
    assert limit.free(16, logits.device) is None
    assert re.fullmatch("a+b(<eos>)*", tokenizer.decode(limit.restrict(logits).argmax.tolist()))


NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 90}, "by": {"type": "string", "maxLength": 50}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "wanted",
    [
        {"json_schema": {"type": "string", "maxLength": 100}},
        {"json_schema": {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "string", "maxLength": 100}]}},
        {"json_schema": {"anyOf": [NOTE | {"required": ["text"]}, NOTE | {"required": ["text", "by"]}]}},
        {"json_schema": {"type": "string", "maxLength": 100}, "must_include": ["é"], "forbidden": ["ee"]},
    ],
    ids=["one limit", "two limits", "two objects", "narrowed"],
)
def test_whatever_is_likely_is_utf8_under_limits_that_count(tokenizer: Tokenizer, wanted: dict[str, Any]) -> None:
    """Counted characters may be any bytes, so that only tokens of whole characters may stand among them."""
    constraint = build(tokenizer, **wanted)
    assert constraint is not None
    device, partial = torch.device("cpu"), [_is_partial(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
    for seed in range(30):
        canvas = constraint.begin().canvas(24, 64)
        logits = 4 * torch.randn(24, tokenizer.vocab_size, generator=torch.Generator().manual_seed(seed))
        logits += 4 * torch.tensor(partial)
        rows, tokens = canvas.free(24, device), canvas.tokens(device)
        logits = logits if rows is None else logits[rows]
        likely = canvas.restrict(logits if tokens is None else logits[:, tokens]).argmax
        written = canvas.hold(torch.zeros(24, dtype=torch.long))
        written[slice(None) if rows is None else rows] = likely if tokens is None else tokens[likely]
        ids = written.tolist()
        end = next((i for i, token in enumerate(ids) if tokenizer.is_special(token)), 24)
        text = tokenizer.decode_bytes(ids[:end])
        codecs.getincrementaldecoder("utf-8")().decode(text)  # which a canvas may cut in the midst of a character


def _is_partial(token: bytes) -> bool:
    return token.decode("utf-8", "ignore").encode() != token
