"""Requests for JSON: what the answer gives stands in the text, and what is asked for is what the answer gives."""

import json
import random
import re
from pathlib import Path

import pytest
from test_tool_composed import LEXICON

import redraft
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.build.chat import ChatSource, all_tables
from redraft.train.build.chat_text import expansions
from redraft.train.build.extraction import ExtractionSource, documents
from redraft.train.build.extraction_asks import ask
from redraft.train.build.extraction_records import (
    Passage,
    draw_list,
    draw_passage,
    draw_value,
    read_records,
)
from redraft.train.build.tool_values import Values
from redraft.train.build.tools import ItemSource, Shares

TINY = Path(redraft.__file__).parent / "assets" / "tiny"
RECORDS = read_records()
TABLES = all_tables(None, seed=7)
SLOT = re.compile(r"\{(!?\w+)(?:=([\w ]+))?\}")
SPELLED = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def values(seed: int) -> Values:
    return Values(random.Random(seed))


def source(seed: int = 1) -> ExtractionSource:
    items = ItemSource([], seed, shares=Shares(api=0.0, invented=0.2, composed=0.4), lexicon=LEXICON)
    return ExtractionSource(items, ChatSource(TABLES, seed), LEXICON, seed)


def parts(value):
    """The strings and numbers of a value."""
    if isinstance(value, dict):
        return [part for item in value.values() for part in parts(item)]
    return [part for item in value for part in parts(item)] if isinstance(value, list) else [value]


def stands_in(value, text: str) -> bool:
    """Whether a text gives a value: as it is, with thousands divided, or as a word."""
    if isinstance(value, int) and (f"{value:,}" in text or (0 < value <= 12 and SPELLED[value - 1] in text.lower())):
        return True
    return str(value).lower() in text.lower()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_sentences_name_slots_that_exist_and_values_that_may_be(record):
    used = set()
    for pattern in (*record.openings, *record.continuations):
        for text in expansions(pattern):
            for slot, implied in SLOT.findall(text):
                if slot.startswith("!"):
                    assert draw_value("INT 1 9" if slot == "!INT" else slot[1:], values(0)).text
                    continue
                used.add(slot)
                allowed = record.slots[slot].options or ("true", "false")
                assert not implied or implied in allowed, text
    assert used == set(record.slots)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_texts_give_what_their_fields_say(record):
    for seed in range(60):
        passage = draw_passage(record, values(seed))
        assert passage.fields
        assert not passage.fields.keys() & set(passage.absent)
        for key, value in passage.fields.items():
            implied = isinstance(value, bool) or key in passage.options
            assert implied or all(stands_in(part, passage.text) for part in parts(value)), passage


def test_several_things_have_the_same_keys():
    (record,) = (record for record in RECORDS if record.name == "person")
    lists = [passage for seed in range(60) if (passage := draw_list(record, values(seed), 3))]
    assert len(lists) > 20
    for passage in lists:
        (entries,) = passage.fields.values()
        assert len(entries) == 3
        assert len({tuple(entry) for entry in entries}) == 1
        assert all(stands_in(part, passage.text) for part in parts(entries))


def test_a_line_of_no_known_kind_is_refused(tmp_path):
    (tmp_path / "r.txt").write_text("# fine\n[thing]\n@ name = PERSON\n")
    with pytest.raises(ValueError, match=r"r\.txt, line 3: '@ name = PERSON' is no slot, sentence or request"):
        read_records(tmp_path / "r.txt")


def test_requests_give_the_text_and_name_the_fields_or_ask_for_all_of_them():
    passage = Passage(
        about="person", text="Ana is 31.", fields={"first_name": "Ana", "ageYears": 31}, absent=("home_town",)
    )
    spelled = {"first_name": "first[_ ]name", "ageYears": "ageYears|age years", "home_town": "home[_ ]town"}
    named = missing = alone = 0
    for seed in range(500):
        asked = ask(passage, random.Random(seed))
        text = "\n".join(message["content"] for message in asked.messages)
        answer = json.loads(asked.answer)
        assert "Ana is 31." in text
        assert all(answer[key] == passage.fields.get(key) for key in answer)
        keys = {key for key, pattern in spelled.items() if re.search(pattern, text)}
        assert keys == answer.keys() or (not keys and answer == passage.fields), text
        named, missing, alone = named + bool(keys), missing + ("home_town" in answer), alone + (len(answer) == 1)
    assert min(named, missing, alone) > 5
    assert named < 500


def test_labels_are_told_with_their_options_or_asked_for_by_name():
    passage = Passage(
        about="review", text="Fine.", fields={"mood": "positive", "stars": 4},
        options={"mood": ("positive", "negative")}, requests=("Classify this.",),
    )  # fmt: skip
    asked = [ask(passage, random.Random(seed)) for seed in range(200)]
    classified = {a.answer for a in asked if "Classify this" in a.messages[0]["content"]}
    assert classified == {'{"mood": "positive"}'}
    assert any("(positive or negative)" in a.messages[0]["content"] for a in asked)
    assert any('"enum": ["positive", "negative"]' in a.messages[0]["content"] for a in asked)


def test_all_sources_are_drawn_and_every_answer_is_one_object():
    drawing = source()
    answers = [json.loads(drawing.draw().answer) for _ in range(300)]
    assert all(isinstance(answer, dict) and answer for answer in answers)
    assert any(isinstance(value, dict) for answer in answers for value in answer.values())
    assert any(value is None for answer in answers for value in answer.values())


def test_documents_fit_a_canvas_and_repeat_with_their_seed():
    template, tokenizer = ChatTemplate.from_folder(TINY), Tokenizer.from_folder(TINY)
    once, again = (list(documents(source(), 30, tokenizer, template)) for _ in range(2))
    assert [d.tokens.tolist() for d in once] == [d.tokens.tolist() for d in again]
    for document in once:
        tokens, length = document.tokens.tolist(), document.prompt_length
        prompt, answer = tokenizer.decode(tokens[:length]), tokenizer.decode(tokens[length:])
        assert prompt.endswith("<|turn>model\n")
        assert answer.endswith("<turn|>")
        assert len(tokens) <= 360
        assert len(tokens) - length <= 120
        assert json.loads(answer.removesuffix("<turn|>"))
