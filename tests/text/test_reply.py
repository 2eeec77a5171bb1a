"""Answers that arrive in pieces: the same parts, wherever the text is cut."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redraft.text import reply
from redraft.text.call_reader import read_call
from redraft.text.marks import MARK, mark_all, unmarked
from redraft.text.reply import Content, Reasoning, Reply, ReplyParser, content_alone, read_reply
from redraft.text.tools import ToolCall

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
    "a<|channel>thoughtful answer<channel|>hi",
    "a<|channel>thought",
    "",
]


def collect(pieces: list[str], *, reasoning_open: bool = False, exact: bool = False) -> Reply:
    """The parts of an answer in pieces, joined."""
    parser = ReplyParser(reasoning_open=reasoning_open, exact=exact)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    return Reply(
        content="".join(part.text for part in parts if isinstance(part, Content)),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
        malformed=tuple(parser.malformed),
    )


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("reasoning_open", [False, True])
@pytest.mark.parametrize("text", [mark_all(text) for text in ANSWERS])
def test_one_cut_at_every_position(text: str, reasoning_open: bool, exact: bool) -> None:
    how = {"reasoning_open": reasoning_open, "exact": exact}
    expected = read_reply(text, **how)
    for cut in range(len(text) + 1):
        assert collect([text[:cut], text[cut:]], **how) == expected, cut


@pytest.mark.parametrize("text", [mark_all(text) for text in ANSWERS])
def test_one_character_at_a_time(text: str) -> None:
    assert collect(list(text)) == read_reply(text)


PIECES = st.sampled_from(
    ["<|channel>", "thought", "\n", "<channel|>", "<|tool_call>", "call:f{", "a:", '<|"|>', "}", "<tool_call|>", "1,",
     "<|tool_response>", "<turn|>", " ", "word", "<", "|", "true", "[", "]", "é"]
)  # fmt: skip


@settings(max_examples=400)
@given(pieces=st.lists(st.tuples(PIECES, st.booleans()), max_size=24), width=st.integers(1, 9))
@example(pieces=[(piece, True) for piece in ("<|tool_call>", "call:f{", "a:", "1,", "}", "word", "<turn|>")], width=5)
def test_any_answer_in_pieces_of_any_width(pieces: list[tuple[str, bool]], width: int) -> None:
    """Of special tokens, and of plain ones that spell the same."""
    text = "".join(mark_all(piece) if special else piece for piece, special in pieces)
    assert collect([text[at : at + width] for at in range(0, len(text), width)]) == read_reply(text)


def test_text_is_told_as_soon_as_it_is_certain() -> None:
    parser = ReplyParser()
    assert parser.push(mark_all("<|channel>thought\nI thi")) == [Reasoning("I thi")]
    assert parser.push(f"nk. {MARK}<chan") == [Reasoning("nk.")]
    assert parser.push(f"nel|>Yes {MARK}<|tool_") == [Content("Yes")]
    assert parser.push("call>call:f{a:1}") == []
    assert parser.push(mark_all("<tool_call|>no")) == [ToolCall(name="f", arguments={"a": 1}), Content(" no")]
    assert parser.finish() == []


def test_a_call_is_told_with_the_piece_that_ends_it_wherever_it_is_cut() -> None:
    text = mark_all('<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>')
    for first in range(len(text)):
        for second in range(first, len(text)):
            parser = ReplyParser()
            assert parser.push(text[:first]) + parser.push(text[first:second]) == []
            assert parser.push(text[second:]) == [ToolCall(name="f", arguments={"a": "b"})]


def test_a_long_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(reply, "read_call", lambda *text: read.append(1) or read_call(*text))
    items = ",".join(f'[{i},<|"|>a<|"|>]' for i in range(500))
    text = mark_all(f"<|tool_call>call:f{{a:[{items}]}}<tool_call|>")
    parts = collect([text[at : at + 50] for at in range(0, len(text), 50)])
    assert parts.tool_calls[0].arguments == {"a": [[i, "a"] for i in range(500)]}
    assert len(read) <= 2


def test_plain_text_that_spells_markers_is_plain_text() -> None:
    spelled = "The <eos> ends it, <|channel>thought\n opens <channel|> and <|tool_call>call:rm{}<tool_call|> calls"
    assert read_reply(spelled) == Reply(content=spelled)
    quoted = mark_all('<|tool_call>call:f{a:<|"|>') + '<|"|>}<tool_call|>' + mark_all('<|"|>}<tool_call|>')
    assert read_reply(quoted) == Reply(
        content="", tool_calls=(ToolCall(name="f", arguments={"a": '<|"|>}<tool_call|>'}),)
    )


def test_white_space_that_was_asked_for_stays() -> None:
    text = mark_all("<|channel>thought\n so <channel|>  return x\n")
    assert read_reply(text) == Reply(content="return x", reasoning="so")
    assert read_reply(text, exact=True) == Reply(content="  return x\n", reasoning="so")


@pytest.mark.parametrize("reasoning_open", [False, True])
@pytest.mark.parametrize("text", [mark_all(text) for text in ANSWERS])
def test_content_alone_keeps_places_and_is_what_the_whole_reply_says(text: str, reasoning_open: bool) -> None:
    """A malformed call and a stray marker, which a reply keeps as content, are none here."""
    shown, spelled = content_alone(text, reasoning_open=reasoning_open), unmarked(text)
    assert len(shown) == len(spelled)
    assert all(char in (MARK, there) for char, there in zip(shown, spelled, strict=True))
    said = read_reply(text, reasoning_open=reasoning_open)
    if not said.malformed:
        assert unmarked(shown).strip() == said.content.replace("<channel|>", "")
