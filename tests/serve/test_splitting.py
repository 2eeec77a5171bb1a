"""Answers that arrive in pieces: the same parts, wherever the text is cut."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redraft.serve import splitting
from redraft.serve.splitting import Content, Reasoning, Splitter
from redraft.text.marks import MARK, mark_all
from redraft.text.reply import Reply, read_reply, scan_call
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
    """The parts of a split answer, joined."""
    splitter = Splitter(reasoning_open=reasoning_open, exact=exact)
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
    return Reply(
        content="".join(part.text for part in parts if isinstance(part, Content)),
        reasoning="".join(part.text for part in parts if isinstance(part, Reasoning)),
        tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
    )


def whole(text: str, *, reasoning_open: bool = False, exact: bool = False) -> Reply:
    reply = read_reply(text, reasoning_open=reasoning_open, exact=exact)
    return Reply(content=reply.content, reasoning=reply.reasoning, tool_calls=reply.tool_calls)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("reasoning_open", [False, True])
@pytest.mark.parametrize("text", [mark_all(text) for text in ANSWERS])
def test_one_cut_at_every_position(text: str, reasoning_open: bool, exact: bool) -> None:
    how = {"reasoning_open": reasoning_open, "exact": exact}
    expected = whole(text, **how)
    for cut in range(len(text) + 1):
        assert collect([text[:cut], text[cut:]], **how) == expected, cut


@pytest.mark.parametrize("text", [mark_all(text) for text in ANSWERS])
def test_one_character_at_a_time(text: str) -> None:
    assert collect(list(text)) == whole(text)


PIECES = st.sampled_from(
    ["<|channel>", "thought", "\n", "<channel|>", "<|tool_call>", "call:f{", "a:", '<|"|>', "}", "<tool_call|>", "1,",
     "<|tool_response>", "<turn|>", " ", "word", "<", "|", "true", "[", "]", "é"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(st.tuples(PIECES, st.booleans()), max_size=24), width=st.integers(1, 9))
@example(pieces=[(piece, True) for piece in ("<|tool_call>", "call:f{", "a:", "1,", "}", "word", "<turn|>")], width=5)
def test_any_answer_in_pieces_of_any_width(pieces: list[tuple[str, bool]], width: int) -> None:
    """Of special tokens, and of plain ones that spell the same."""
    text = "".join(mark_all(piece) if special else piece for piece, special in pieces)
    assert collect([text[at : at + width] for at in range(0, len(text), width)]) == whole(text)


def test_text_is_told_as_soon_as_it_is_certain() -> None:
    splitter = Splitter()
    assert splitter.push(mark_all("<|channel>thought\nI thi")) == [Reasoning("I thi")]
    assert splitter.push(f"nk. {MARK}<chan") == [Reasoning("nk.")]
    assert splitter.push(f"nel|>Yes {MARK}<|tool_") == [Content("Yes")]
    assert splitter.push("call>call:f{a:1}") == []
    assert splitter.push(mark_all("<tool_call|>no")) == [ToolCall(name="f", arguments={"a": 1}), Content(" no")]
    assert splitter.finish() == []


def test_a_long_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(splitting, "scan_call", lambda *text, final: read.append(1) or scan_call(*text, final=final))
    items = ",".join(f'[{i},<|"|>a<|"|>]' for i in range(500))
    text = mark_all(f"<|tool_call>call:f{{a:[{items}]}}<tool_call|>")
    parts = collect([text[at : at + 50] for at in range(0, len(text), 50)])
    assert parts.tool_calls[0].arguments == {"a": [[i, "a"] for i in range(500)]}
    assert len(read) <= 2


def test_plain_text_that_spells_markers_is_plain_text() -> None:
    spelled = "The <eos> ends it, <|channel>thought\n opens <channel|> and <|tool_call>call:rm{}<tool_call|> calls"
    assert whole(spelled) == Reply(content=spelled)
    quoted = mark_all('<|tool_call>call:f{a:<|"|>') + '<|"|>}<tool_call|>' + mark_all('<|"|>}<tool_call|>')
    assert whole(quoted) == Reply(content="", tool_calls=(ToolCall(name="f", arguments={"a": '<|"|>}<tool_call|>'}),))


def test_white_space_that_was_asked_for_stays() -> None:
    text = mark_all("<|channel>thought\n so <channel|>  return x\n")
    assert whole(text) == Reply(content="return x", reasoning="so")
    assert whole(text, exact=True) == Reply(content="  return x\n", reasoning="so")
