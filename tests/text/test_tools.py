"""Tool calls: written and read back, broken ones, and whole replies taken apart."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redraft.errors import PromptError
from redraft.text.reply import Reply, parse_reply
from redraft.text.tools import MAX_DEPTH, QUOTE, ToolCall, format_call

NAMES = st.text("abXY_019.:-", min_size=1, max_size=6)
KEYS = st.text("abXY_019é|-.", min_size=1, max_size=6)
STRINGS = st.text(max_size=12).filter(lambda text: QUOTE not in text) | st.sampled_from(
    [
        "<tool_call|>",
        "<turn|>",
        "}",
        "a,b:c",
        "<|channel>thought\n",
        "<|tool_call>call:x{}<tool_call|>",
        " ",
        "null",
        "3",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(KEYS, VALUES, max_size=4)))


def same(left: Any, right: Any) -> bool:
    """Equality that tells 1 from 1.0 and from True."""
    return left == right and repr(left) == repr(right)


def by_key(value: Any) -> Any:
    """The value with its keys in the order that calls are written in."""
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value, key=str.lower)}
    return [by_key(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=80)
@given(
    calls=CALLS,
    content=st.sampled_from(["", "Let me look.", "a\n\nb"]),
    tail=st.sampled_from(["", "<turn|>", "<|tool_response>"]),
)
@example(calls=[("f", {"a": -0.0, "b": 1e300, "c": 10**40})], content="", tail="")
def test_reading_undoes_writing(calls: list[tuple[str, dict[str, Any]]], content: str, tail: str) -> None:
    reply = parse_reply("".join(format_call(name, arguments) for name, arguments in calls) + content + tail)
    assert reply.content == content
    assert not reply.malformed
    assert [call.name for call in reply.tool_calls] == [name for name, _ in calls]
    for call, (_, arguments) in zip(reply.tool_calls, calls, strict=True):
        assert same(call.arguments, by_key(arguments))


def test_the_format_spelled_out() -> None:
    arguments = {"unit": "C", "city": "Paris", "days": 3, "tags": ["a", "b"], "x": True, "O": {"b": 1.5, "a": None}}
    assert format_call("get_weather", arguments) == (
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,O:{a:null,b:1.5},tags:[<|"|>a<|"|>,<|"|>b<|"|>],'
        'unit:<|"|>C<|"|>,x:true}<tool_call|>'
    )


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("Hello<turn|>", "Hello", ""),
        ("Hello<turn|>\n<eos><eos>", "Hello", ""),
        ("Hello<eos><pad>", "Hello", ""),
        ("<|channel>thought\n<channel|>Hello", "Hello", ""),
        ("<|channel>thought\nhm\nso\n<channel|>Hello<turn|>", "Hello", "hm\nso"),
        ("<|channel>thought\nhm", "", "hm"),
        ("<|channel>thought\nhm<turn|><eos>", "", "hm"),
        ("<|channel>thought\n<channel|><|channel>thought\nb<channel|>c", "c", "b"),
        ("<|channel>thought<channel|>Hello", "Hello", ""),
        ("<|channel>thoughtful answer<channel|>hi", "hi", "thoughtful answer"),
        ("<eos>", "", ""),
        ("", "", ""),
        ("a <b> {c}", "a <b> {c}", ""),
    ],
)
def test_content_and_reasoning(text: str, content: str, reasoning: str) -> None:
    assert parse_reply(text) == Reply(content=content, reasoning=reasoning)


def test_reasoning_that_the_prompt_opened() -> None:
    assert parse_reply("hm\n<channel|>Hi<turn|>", reasoning_open=True) == Reply(content="Hi", reasoning="hm")
    assert parse_reply("thoughtful<channel|>Hi", reasoning_open=True) == Reply(content="Hi", reasoning="thoughtful")


def test_calls_among_words() -> None:
    text = (
        "<|channel>thought\nlook<channel|>I look. "
        + format_call("f", {"a": 1})
        + format_call("g", {})
        + "<|tool_response>"
    )
    assert parse_reply(text) == Reply(
        content="I look.",
        reasoning="look",
        tool_calls=(ToolCall(name="f", arguments={"a": 1}), ToolCall(name="g", arguments={})),
    )


def test_white_space_and_quoted_keys_are_read() -> None:
    reply = parse_reply('<|tool_call>call:f { a : 1 , <|"|>b c<|"|> : [ true , null ] } <tool_call|>')
    assert reply.tool_calls == (ToolCall(name="f", arguments={"a": 1, "b c": [True, None]}),)


@pytest.mark.parametrize(
    "broken",
    [
        "<|tool_call>call:f{a:1",
        "<|tool_call>call:f{a:1}",
        "<|tool_call>call:f{a}<tool_call|>",
        "<|tool_call>call:f{a:}<tool_call|>",
        "<|tool_call>call:f{a:1 b:2}<tool_call|>",
        "<|tool_call>call:f{,}<tool_call|>",
        "<|tool_call>call:f{a:hello}<tool_call|>",
        "<|tool_call>call:f{a:01}<tool_call|>",
        "<|tool_call>call:f{a:1e999}<tool_call|>",
        "<|tool_call>call:f{a:" + "9" * 5000 + "}<tool_call|>",
        '<|tool_call>call:f{a:<|"|>x}<tool_call|>',
        "<|tool_call>call:{}<tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:f{a:" + "[" * 2000 + "]" * 2000 + "}<tool_call|>",
    ],
)
def test_broken_calls_are_kept_and_named(broken: str) -> None:
    reply = parse_reply(f"so {broken}<turn|>")
    assert reply == Reply(content=f"so {broken}", malformed=(broken,))


def test_a_broken_call_does_not_hide_a_good_one() -> None:
    reply = parse_reply(
        "<|tool_call>call:f{a:<tool_call|>" + format_call("g", {}) + "<|tool_call>call:h{" + format_call("i", {})
    )
    assert [call.name for call in reply.tool_calls] == ["g", "i"]
    assert reply.malformed == ("<|tool_call>call:f{a:<tool_call|>", "<|tool_call>call:h{")


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("", {}, "tool name"),
        ("a b", {}, "tool name"),
        ("f", {"a:b": 1}, "argument name 'a:b'"),
        ("f", {"": 1}, "argument name ''"),
        ("f", {"o": {3: 1}}, "argument name 3"),
        ("f", {"a": f"x{QUOTE}"}, "delimiter"),
        ("f", {"a": float("nan")}, "nan"),
        ("f", {"a": 10**5000}, "thousands of digits"),
        ("f", {"a": object()}, "not a JSON value"),
        ("f", {"a": b"x"}, "not a JSON value"),
    ],
)
def test_what_cannot_be_written(name: str, arguments: dict[Any, Any], sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        format_call(name, arguments)


def test_arguments_nested_too_deep() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert parse_reply(format_call("f", {"a": deep})).tool_calls[0].arguments == {"a": deep}
    deep = [deep]
    with pytest.raises(PromptError, match="deeper"):
        format_call("f", {"a": deep})


@settings(max_examples=80)
@given(
    pieces=st.lists(
        st.sampled_from(
            [
                "<|tool_call>",
                "call:f{",
                "a:",
                "1",
                ",",
                "}",
                "<tool_call|>",
                QUOTE,
                "x",
                "<|channel>",
                "<channel|>",
                "[",
                "]",
                "<turn|>",
            ]
        ),
        max_size=14,
    )
)
def test_any_text_is_read_without_an_error(pieces: list[str]) -> None:
    text = "".join(pieces)
    reply = parse_reply(text)
    assert all(
        broken in text and broken in reply.content + "\n" for broken in reply.malformed if broken.strip() == broken
    )
