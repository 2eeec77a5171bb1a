"""Results of tools and what is said about them: every value is told, in the order in which it is read."""

import json
import random
from pathlib import Path

import pytest
from test_tool_composed import LEXICON

import redraft
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import TURN_END, Tokenizer
from redraft.train.build.chat import ChatSource, all_tables
from redraft.train.build.tool_answers import ConversationSource, documents, said
from redraft.train.build.tool_facts import Facts, sentence
from redraft.train.build.tool_results import DONE, FAILED, NOTHING, Result, draw_result
from redraft.train.build.tool_values import Values, enumerated
from redraft.train.build.tools import Item, ItemSource, Shares

TINY = Path(redraft.__file__).parent / "assets" / "tiny"
SHARES = Shares(api=0.0, invented=0.1, composed=0.4, none=0.1, parallel=0.3)
ASIDE = {"ok", "success", "done", "completed", "error", "failed"}


TABLES = all_tables(None, seed=7)


def source(seed: int = 1) -> ConversationSource:
    items = ItemSource([], seed, shares=SHARES, lexicon=LEXICON)
    return ConversationSource(items, ChatSource(TABLES, seed), LEXICON, seed)


def values_of(content):
    """All strings and numbers of a result, but those that only say whether it worked, or how many there are."""
    if isinstance(content, dict):
        return [v for key, item in content.items() if key not in ("code", "count", "total") for v in values_of(item)]
    if isinstance(content, list):
        return [value for item in content for value in values_of(item)]
    return [] if content is None or isinstance(content, bool) or content in ASIDE else [str(content)]


def read(content):
    """A result as a reader of JSON understands it."""
    try:
        return json.loads(content) if isinstance(content, str) else content
    except ValueError:
        return content


@pytest.mark.parametrize("seed", range(400))
def test_everything_that_a_result_says_is_told(seed):
    result = draw_result(Values(random.Random(seed)), LEXICON, {})
    assert not isinstance(result.content, list), "a list of messages' parts"
    assert result.said.endswith((".", "?", "!"))
    content = read(result.content)
    if result.said == DONE:
        return
    told = result.said.lower()
    texts = (
        [content.removeprefix("Error: ").removeprefix("error: ")] if isinstance(content, str) else values_of(content)
    )
    assert all(text.lower().removesuffix(".") in told for text in texts), result


def test_arguments_that_a_result_repeats_are_not_told():
    arguments = {"town": "Xanadu"}
    repeated = 0
    for seed in range(300):
        result = draw_result(Values(random.Random(seed)), LEXICON, arguments)
        repeated += "Xanadu" in str(result.content)
        assert "Xanadu" not in result.said
    assert repeated > 10


def test_objects_are_told_in_the_order_of_the_template():
    several = 0
    for seed in range(300):
        result = draw_result(Values(random.Random(seed)), LEXICON, {})
        if isinstance(result.content, dict) and result.said.startswith("The "):
            told = result.said.lower()
            names = [name for name in result.content if f"the {name} " in told]
            assert sorted(names, key=str.lower) == sorted(names, key=lambda name: told.index(f"the {name} "))
            several += len(names) > 1
    assert several > 5


def test_kinds_of_results():
    drawn = [draw_result(Values(random.Random(seed)), LEXICON, {}).said for seed in range(300)]
    for opening in (DONE, FAILED, NOTHING, "I found 1: ", "It is ", "The "):
        assert any(text.startswith(opening) for text in drawn), opening


def test_facts_are_said_as_people_call_them():
    facts = Facts(values=Values(random.Random(0)), words=LEXICON, camel=True)
    fact = facts.of("wind speed", 14, "km/h", ("unit", "km/h"))
    assert (fact.fields, fact.clause) == ({"windSpeed": 14, "unit": "km/h"}, "the wind speed is 14 km/h")
    assert facts.of("guests", ["Ana", "Bo"]).clause == "the guests are Ana and Bo"
    assert facts.of("owner", None).clause == "the owner is not known"
    assert enumerated(["a", "b", "c"]) == "a, b and c"
    assert [sentence(text) for text in ("it is so", "Why?")] == ["It is so.", "Why?"]


def test_results_of_one_tool_are_told_apart():
    results = [Result(content=4, said="The result is 4."), Result(content=9, said="The result is 9.")]
    calls = [("f", {"unit": "c", "city": "Oslo"}), ("f", {"unit": "c", "city": "Rome"})]
    item = Item(tools=[], messages=[], calls=calls)
    assert said(item, results) == "Oslo: The result is 4. Rome: The result is 9."
    other = Item(tools=[], messages=[], calls=[calls[0], ("g", {})])
    assert said(other, results) == "The result is 4. The result is 9."


def test_conversations_end_with_a_result_with_a_next_request_or_with_thanks():
    ends = set()
    drawing = source()
    for drawn in (drawing.draw() for _ in range(400)):
        last = drawn.messages[-1]["role"]
        calls = drawn.answer.startswith("<|tool_call>")
        ends.add((last, calls, sum(message["role"] == "user" for message in drawn.messages)))
        assert not (calls and last == "tool")
        assert drawn.answer.endswith("<|tool_response>" if calls else TURN_END)
        results = {message["tool_call_id"] for message in drawn.messages if message["role"] == "tool"}
        assert results == {call["id"] for message in drawn.messages for call in message.get("tool_calls", ())}
    results = {("tool", False, 1), ("tool", False, 2)}
    assert ends == results | {("user", True, 2), ("user", False, 2), ("user", False, 3)}


def test_documents_are_what_a_client_would_send_and_repeat_with_their_seed():
    template, tokenizer = ChatTemplate.from_folder(TINY), Tokenizer.from_folder(TINY)
    once, again = (list(documents(source(), 20, tokenizer, template, longest=500)) for _ in range(2))
    assert [d.tokens.tolist() for d in once] == [d.tokens.tolist() for d in again]
    for document in once:
        assert len(document.tokens) <= 500
        prompt = tokenizer.decode(document.tokens[: document.prompt_length].tolist())
        assert prompt.endswith(("<tool_response|>", "<|turn>model\n"))
