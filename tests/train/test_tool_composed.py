"""Tools composed at random: requests name the values of their calls, names of evaluation stay out, WordNet is read."""

import random
from dataclasses import replace

import pytest

from redraft.train.build import wordnet
from redraft.train.build.tool_composed import compose_domains, evaluation_names
from redraft.train.build.tool_grammar import draw_request, draw_tool
from redraft.train.build.tool_parts import draw_pair, draw_parts, new_part
from redraft.train.build.tool_phrases import placed, request_line
from redraft.train.build.tool_values import Values
from redraft.train.build.tools import ItemSource, Shares
from redraft.train.build.word_forms import plural
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


def test_no_composed_tool_is_called_like_one_of_evaluation():
    assert {"mow_lawn", "locate_vehicle"} <= evaluation_names()
    actions = compose_domains(
        random.Random(0), replace(LEXICON, verbs=(("mow",), ("paint",)), things=("lawn", *LEXICON.things)), 100
    )
    assert {"paint_lawn", "mow_box"} <= {name for action in actions for name in action.names}
    assert not evaluation_names() & {name for action in actions for name in action.names}


@pytest.mark.parametrize("seed", range(20))
def test_a_pair_has_one_kind_and_two_prepositions(seed):
    first, second = draw_pair(random.Random(seed), LEXICON)
    assert first.parameter.kind == second.parameter.kind
    assert first.parameter.required
    assert second.parameter.required
    assert first.phrases[0].split()[0] != second.phrases[0].split()[0]
    assert not set(first.parameter.names) & set(second.parameter.names)


def test_parts_never_take_a_name_twice():
    for seed in range(200):
        parts = draw_parts(random.Random(seed), LEXICON, 3, {"day", "city", "note"})
        names = [name for part in parts for name in part.parameter.names]
        assert len(set(names)) == len(names)
        assert not set(names) & {"day", "city", "note"}


COLOR = new_part(random.Random(0), ["color"], "COLOR", "Colour", ["in {x}"], required=1.0, before=["{x}"])
DAY = new_part(random.Random(0), ["day"], "DATE", "Day", ["on {x}"], required=0.0)


def test_a_part_stands_before_its_noun_or_behind_and_in_brackets_where_it_may_be_left_out():
    lines = {placed(random.Random(seed), "the teapot {teapot_id}", "teapot", [COLOR, DAY]) for seed in range(40)}
    assert lines == {
        ("the {color} teapot {teapot_id}", "[ on {day}]"), ("the teapot {teapot_id}", " in {color}[ on {day}]")
    }  # fmt: skip
    assert placed(random.Random(3), "{teapot}", "teapot", [COLOR]) == ("{teapot}", " in {color}")


def test_a_name_does_not_begin_a_sentence():
    item = new_part(random.Random(0), ["teapot"], "SLUG", "Teapot", ["{x}"], required=1.0)
    lines = [request_line(random.Random(seed), "paint", "teapot", item, [])[1] for seed in range(300)]
    assert any(line.startswith("the teapot {teapot} ") for line in lines)
    assert not any(line.startswith("{") for line in lines)


@pytest.mark.parametrize(("noun", "many"), [("box", "boxes"), ("baby", "babies"), ("toy", "toys"), ("arch", "arches")])
def test_plurals(noun, many):
    assert plural(noun) == many


FILES = {
    "a/data.verb": (
        "  1 a line of the licence\n"
        "00000001 36 v 02 paint 0 daub 1 002 @ 00000002 v 0000 + 00000003 n 0101 01 + 08 00 | cover; \"paint it\"\n"
        "00000002 36 v 01 doze 0 000 01 + 02 00 | somebody sleeps\n"
        "00000004 29 v 01 comb 0 000 01 + 08 00 | a verb of the body\n"
        "00000005 36 v 01 mow 0 000 02 + 02 01 + 09 00 | cut grass\n"
    ),
    "a/data.noun": (
        "00000006 06 n 02 lantern 0 Lantern_Fly 0 000 | a lamp\n"
        "00000007 07 n 01 shade 0 001 ~ 00000006 n 0000 | a colour\n"
        "00000008 18 n 02 potter 0 thrower 0 000 | who makes pots\n"
        "00000009 06 n 01 gizmo 0 000 | used once\n"
    ),
    "a/cntlist.rev": (
        "paint%2:36:00:: 1 7\ndaub%2:36:01:: 1 2\ndoze%2:36:00:: 1 2\ncomb%2:29:00:: 1 2\nmow%2:36:00:: 1 2\n"
        "lantern%1:06:00:: 1 2\nshade%1:07:00:: 1 1\npotter%1:18:00:: 1 3\nthrower%1:18:00:: 1 2\ngizmo%1:06:00:: 1 1\n"
    ),
}  # fmt: skip


def test_wordnet_gives_used_words_with_an_object_and_their_synonyms(monkeypatch, tmp_path):
    monkeypatch.setattr(wordnet, "debian_files", lambda package, cache, suffix: iter(FILES.items()))
    lexicon = wordnet.read_lexicon(tmp_path)
    assert lexicon == Lexicon(
        verbs=(("paint", "daub"), ("mow",)), things=("lantern",), attributes=("shade",), persons=("potter",)
    )
