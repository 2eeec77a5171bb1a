"""Tools composed at random: requests name the values of their calls, words of evaluation stay out, WordNet is read."""

import random

import pytest

from redraft.train.build import wordnet
from redraft.train.build.tool_composed import compose_domains, reserved_words
from redraft.train.build.tool_grammar import draw_request, draw_tool, heldout_actions
from redraft.train.build.tool_parts import plural
from redraft.train.build.tool_values import Values
from redraft.train.build.tools import ItemSource, Shares
from redraft.train.build.wordnet import Lexicon
from tool_requests import check_names, check_values

LEXICON = Lexicon(
    verbs=(("paint", "coat"), ("carry",), ("tidy", "order", "arrange"), ("glaze",)),
    things=("teapot", "box", "lantern", "baby", "bridge", "wheel", "candle"),
    attributes=("shade", "weight", "finish", "age", "grain", "style"),
    persons=("potter", "keeper", "driver"),
)


@pytest.mark.parametrize("seed", range(60))
def test_a_composed_request_names_its_values_and_calls_what_is_declared(seed):
    rng = random.Random(seed)
    for action in compose_domains(rng, LEXICON, 2):
        values = Values(rng)
        tool = draw_tool(action, values)
        request = draw_request(tool, values)
        check_names(tool, request)
        check_values(request)
        assert not set("{}]|") & set(request.text), request.text


def test_a_source_of_composed_items_is_repeatable_and_never_twice_the_same():
    shares = Shares(api=0.0, invented=0.0, composed=1.0)
    once, again = (ItemSource([], 3, shares=shares, lexicon=LEXICON) for _ in range(2))
    items = [once.draw() for _ in range(60)]
    assert items == [again.draw() for _ in range(60)]
    declared = [tool["function"]["name"] for item in items for tool in item.tools]
    assert len(set(declared)) > 0.5 * len(declared)
    assert {len(item.calls) for item in items} == {0, 1, 2}


def test_composed_tools_need_a_lexicon():
    with pytest.raises(ValueError, match="need a lexicon"):
        ItemSource([], 3, shares=Shares(composed=0.5))


def test_words_of_evaluation_alone_are_kept_out():
    reserved = reserved_words()
    assert {"molarity", "mow", "pupil", "semester"} <= reserved
    rng = random.Random(0)
    names = {
        word
        for action in compose_domains(rng, LEXICON, 200)
        for name in (*action.names, *(n for parameter in action.parameters for n in parameter.names))
        for word in name.split("_")
    }
    assert not names & reserved
    assert not names & {name for action in heldout_actions() for name in action.names}


@pytest.mark.parametrize(("noun", "many"), [("box", "boxes"), ("baby", "babies"), ("toy", "toys"), ("arch", "arches")])
def test_plurals(noun, many):
    assert plural(noun) == many


FILES = {
    "a/data.verb": (
        "  1 a line of the licence\n"
        "00000001 36 v 02 paint 0 daub 1 002 @ 00000002 v 0000 + 00000003 n 0101 01 + 08 00 | cover; \"paint it\"\n"
        "00000002 36 v 01 doze 0 000 01 + 02 00 | somebody sleeps\n"
        "00000004 29 v 01 comb 0 000 01 + 08 00 | a verb of the body\n"
        "00000005 36 v 01 mow 0 000 02 + 02 01 + 08 00 | cut grass\n"
    ),
    "a/data.noun": (
        "00000006 06 n 02 lantern 0 Lantern_Fly 0 000 | a lamp\n"
        "00000007 07 n 01 shade 0 001 ~ 00000006 n 0000 | a colour\n"
        "00000008 18 n 02 potter 0 thrower 0 000 | who makes pots\n"
        "00000009 06 n 01 gizmo 0 000 | never used\n"
    ),
    "a/cntlist.rev": (
        "paint%2:36:00:: 1 7\ndaub%2:36:01:: 1 2\ndoze%2:36:00:: 1 2\ncomb%2:29:00:: 1 2\nmow%2:36:00:: 1 2\n"
        "lantern%1:06:00:: 1 1\nshade%1:07:00:: 1 1\npotter%1:18:00:: 1 3\nthrower%1:18:00:: 1 2\n"
    ),
}  # fmt: skip


def test_wordnet_gives_used_words_with_an_object_and_their_synonyms(monkeypatch, tmp_path):
    monkeypatch.setattr(wordnet, "debian_files", lambda package, cache, suffix: iter(FILES.items()))
    lexicon = wordnet.read_lexicon(tmp_path, without={"mow"})
    assert lexicon == Lexicon(
        verbs=(("paint", "daub"),), things=("lantern",), attributes=("shade",), persons=("potter",)
    )
