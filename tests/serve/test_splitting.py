"""Answers that arrive in pieces: the same parts, wherever the text is cut."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redraft.serve.splitting import Content, Reasoning, Splitter
from redraft.text.tools import Reply, ToolCall, parse_reply

ANSWERS = [
    "Just words.",
    "  spaced  out \n\n",
    "<|channel>thought\n<channel|>Hello <b>you</b>.<turn|>",
    "<|channel>thought\nFirst, think.\n\nThen more.\n<channel|>The answer is 4.<turn|><eos>junk",
    '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,tags:[<|"|>a<|"|>,<|"|>b<|"|>],x:true}<tool_call|>',
    '<|channel>thought\nUse it.<channel|>Let me look. <|tool_call>call:f{a:<|"|>}<tool_call|><turn|><|"|>,b:-1.5e3}'
    "<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>ignored",
    "<|tool_call>call:broken{a:}<tool_call|> and on <|tool_call>call:f{n:12}<tool_call|>",
    "<|tool_call>call:broken{a <|tool_call>call:f{}<tool_call|>",
    '<|tool_call>call:open{a:<|"|>never closed <tool_call|> tail',
    "<|tool_call>call:f{o:{a:null,b:[1,2,{}]},é:false}<tool_call|>",
    "<|channel>thought\nnever <turn|> closed",
    "<|channel>thought\n<turn|> but closed <channel|>so it is a thought",
    "<|channel>other name<channel|>x<|channel>thought<channel|>y<|channel>thought\ntwo\n<channel|> z ",
    "<|channel>thou<channel|>a <| b <|too c <channel|> d",
    "<|chan",
    "<|tool_call>call:f{a:1",
    "<|tool_call>",
    "a<|channel>thoughtful",
    "",
]


def collect(pieces: list[str], *, reasoning_open: bool = False) -> Reply:
    """The parts of a split answer, joined."""
    splitter = Splitter(reasoning_open=reasoning_open)
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
    return Reply(
        content="".join(part.text for part in parts if isinstance(part, Content)),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
    )


def whole(text: str, *, reasoning_open: bool = False) -> Reply:
    reply = parse_reply(text, reasoning_open=reasoning_open)
    return Reply(content=reply.content, reasoning=reply.reasoning, tool_calls=reply.tool_calls)


@pytest.mark.parametrize("reasoning_open", [False, True])
@pytest.mark.parametrize("text", ANSWERS)
def test_one_cut_at_every_position(text: str, reasoning_open: bool) -> None:
    expected = whole(text, reasoning_open=reasoning_open)
    for cut in range(len(text) + 1):
        assert collect([text[:cut], text[cut:]], reasoning_open=reasoning_open) == expected, cut


@pytest.mark.parametrize("text", ANSWERS)
def test_one_character_at_a_time(text: str) -> None:
    assert collect(list(text)) == whole(text)


PIECES = st.sampled_from(
    ["<|channel>", "thought", "\n", "<channel|>", "<|tool_call>", "call:f{", "a:", '<|"|>', "}", "<tool_call|>", "1,",
     "<|tool_response>", "<turn|>", " ", "word", "<", "|", "true", "[", "]", "é"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(PIECES, max_size=24), width=st.integers(1, 9))
@example(pieces=["<|tool_call>", "call:f{", "a:", "1,", "}", "word", "<turn|>"], width=5)
def test_any_answer_in_pieces_of_any_width(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    assert collect([text[at : at + width] for at in range(0, len(text), width)]) == whole(text)


def test_text_is_told_as_soon_as_it_is_certain() -> None:
    splitter = Splitter()
    assert splitter.push("<|channel>thought\nI thi") == [Reasoning("I thi")]
    assert splitter.push("nk. <chan") == [Reasoning("nk.")]
    assert splitter.push("nel|>Yes <|tool_") == [Content("Yes")]
    assert splitter.push("call>call:f{a:1}") == []
    assert splitter.push("<tool_call|>no") == [ToolCall(name="f", arguments={"a": 1}), Content(" no")]
    assert splitter.finish() == []
