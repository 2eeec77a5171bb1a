"""The small talk: every pattern can be filled, every answer holds what is expected, nothing held out is trained."""

import json
import random
import re
from pathlib import Path

import pytest

from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer
from redraft.train.build.chat import ChatSource, all_tables, documents, shipped_items
from redraft.train.build.chat_rows import HELD, dictionary_entry, number_word
from redraft.train.build.chat_style import restyled
from redraft.train.build.chat_text import (
    DATA,
    Block,
    Row,
    Step,
    expand,
    expansions,
    fill,
    finished,
    normalised,
    punctuated,
    read_blocks,
    read_tables,
    with_article,
)

SOURCE = Path(__file__).parents[2] / "src" / "redraft"
TABLES = all_tables(None, seed=7)
BLOCKS = [
    block
    for name in ("smalltalk", "questions", "facts", "beyond", "scripts")
    for block in read_blocks(DATA / f"{name}.txt")
]
STEPS = [(block, step) for block in BLOCKS for step in block.steps]
SLOT = re.compile(r"\{(?:a )?(?:other\.)?(\w+)\}")


def holds_one(answer: str, expected: list[str]) -> bool:
    """Whether the answer holds one of the expected texts as whole words."""
    found = (re.search(rf"(?<!\w){re.escape(text)}(?!\w)", answer, re.IGNORECASE) for text in expected)
    return any(found)


def rows_of(block: Block) -> list[Row]:
    """The rows a block speaks about; one entry stands for the dictionary, which is not on every machine."""
    entry = {"word": "cat", "gloss": "an animal"}
    return list(TABLES.get(block.table, [entry])) if block.table else [{}]


def patterns(step: Step) -> list[str]:
    return [*step.questions, *step.held_out, *step.follow_ups, *step.answers, *step.short_answers, *step.expected]


def test_blocks_are_whole() -> None:
    for block in BLOCKS:
        columns = set(rows_of(block)[0])
        assert all(step.questions and step.answers for step in block.steps), block.name
        assert block.steps[-1].expected, block.name
        for text in [*block.systems, *(text for step in block.steps for text in patterns(step))]:
            assert text.count("(") == text.count(")"), (block.name, text)
            assert set(SLOT.findall(text)) <= columns, (block.name, text)


def test_every_answer_holds_what_is_expected() -> None:
    rng = random.Random(1)
    for block in BLOCKS:
        step, rows = block.steps[-1], rows_of(block)
        for row in rng.sample(rows, min(3, len(rows))):
            expected = [fill(text, row, row) for text in step.expected]
            for pattern in [*step.answers, *step.short_answers]:
                for answer in expansions(pattern)[:100]:
                    assert holds_one(fill(answer, row, row), expected), (block.name, answer, expected)


def test_texts_are_clean() -> None:
    rng = random.Random(2)
    for _, step in STEPS:
        for pattern in patterns(step):
            text = re.sub(r"\{[^}]*\}", "x", expand(pattern, rng))
            assert "  " not in text
            assert text == text.strip()
            assert not re.search(r"[.!?,][.!,]|\s[.!?,]|\|", text), text


def test_held_out_ways_to_ask_are_not_trained() -> None:
    trained = {normalised(text) for _, step in STEPS for pattern in step.questions for text in expansions(pattern)}
    held = [normalised(text) for _, step in STEPS for text in step.held_out]
    assert len(set(held)) == len(held) > 150
    assert not trained & set(held)


def test_evaluation_questions_never_occur_in_training() -> None:
    asked = {normalised(item["messages"][-1]["content"]) for item in shipped_items()}
    source = ChatSource(TABLES, seed=3)
    for _ in range(2000):
        assert not asked & {normalised(message["content"]) for message in source.draw().messages}


def test_held_out_sums_are_not_trained() -> None:
    held = {(row["a"], row["b"]) for row in TABLES["sums"] if HELD in row}
    source = ChatSource(TABLES, seed=4)
    sums = re.compile(r"(\d+) (?:plus|\+) (\d+)")
    found = [match for _ in range(2000) for m in source.draw().messages for match in sums.findall(m["content"])]
    assert len(held) >= 20
    assert len(found) > 20
    assert not held & set(found)


def test_the_shipped_evaluation_is_what_the_builder_writes() -> None:
    lines = (SOURCE / "eval" / "data" / "smalltalk.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == shipped_items()
    assert len(lines) == len({json.loads(line)["messages"][-1]["content"] for line in lines}) == 200


def test_conversations_are_well_formed() -> None:
    source = ChatSource(TABLES, seed=5)
    for _ in range(500):
        chat = source.draw()
        roles = "".join(message["role"][0] for message in chat.messages)
        assert re.fullmatch(r"s?(ua)*u", roles)
        for text in [chat.answer, *(message["content"] for message in chat.messages)]:
            assert text.strip() == text != ""
            assert not re.search(r"[{}|]|  |\(|\)", text), text


def test_conversations_follow_their_seed() -> None:
    first, again, other = (ChatSource(TABLES, seed) for seed in (1, 1, 2))
    drawn = [first.draw() for _ in range(20)]
    assert drawn == [again.draw() for _ in range(20)] != [other.draw() for _ in range(20)]


def test_documents() -> None:
    tiny = SOURCE / "assets" / "tiny"
    tokenizer, template = Tokenizer.from_folder(tiny), ChatTemplate.from_folder(tiny)
    made = list(documents(ChatSource(TABLES, seed=6), 200, tokenizer, template))
    assert len({document.tokens.tobytes() for document in made}) == 200
    for document in made:
        prompt, answer = document.tokens[: document.prompt_length], document.tokens[document.prompt_length :]
        assert prompt[0] == tokenizer.bos_id
        assert tokenizer.decode(prompt.tolist()).endswith("<|turn>model\n")
        assert answer[-1] == tokenizer.turn_end_id
        assert not set(answer[:-1].tolist()) & set(tokenizer.special_ids.values())


def test_facts_are_consistent() -> None:
    for table, column in (("countries", "country"), ("countries", "capital"), ("animals", "animal"), ("verbs", "verb")):
        values = [row[column] for row in TABLES[table]]
        assert len(values) == len(set(values))
    ends = {row[word]: row["kind"] for row in TABLES["rhymes"] for word in ("word", "rhyme")}
    assert all(ends[row["word"]] == ends[row["rhyme"]] == row["kind"] for row in TABLES["rhymes"])
    assert [number_word(n) for n in (0, 13, 20, 45, 100)] == ["zero", "thirteen", "twenty", "forty-five", "one hundred"]
    assert all(int(row["a"]) + int(row["b"]) == int(row["c"]) <= 20 for row in TABLES["sums"])


def test_pattern_language() -> None:
    assert sorted(expansions("(a|b(c|))d")) == ["ad", "bcd", "bd"]
    assert expand("(x|x) y", random.Random(0)) == "x y"
    assert fill("{a x} and {other.x}", {"x": "owl"}, {"x": "dog"}) == "an owl and dog"
    assert [with_article(noun) for noun in ("hour", "unit", "egg", "ewe", "cat")] == [
        "an hour",
        "a unit",
        "an egg",
        "a ewe",
        "a cat",
    ]
    assert finished("one. two! three / four") == "One. Two! Three\nfour"
    assert finished("c-a-t") == "c-a-t"
    assert [punctuated(text) for text in ("What is it.", "Tell me?", "Hi. Who?")] == [
        "What is it?",
        "Tell me.",
        "Hi. Who?",
    ]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("[a]\n? q\nnonsense\n")
    with pytest.raises(ValueError, match=r"x\.txt, line 3"):
        read_blocks(file)
    file.write_text("[a: x | y]\n1 | 2 | 3\n")
    with pytest.raises(ValueError, match="3 values for 2 columns"):
        read_tables(file)


@pytest.mark.parametrize(
    ("synset", "gloss", "countable"),
    [
        ('00000000 05 n 01 cat 0 000 | a small animal with soft fur; "a cat"', "a small animal with soft fur", True),
        ("00000000 04 n 01 cat 0 000 | a small act of great kindness", "a small act of great kindness", False),
        ("00000000 05 n 01 cat 0 000 | the animal that people like best", "the animal that people like best", False),
    ],
)
def test_dictionary_entries(synset: str, gloss: str, countable: bool) -> None:
    entry = dictionary_entry("cat", synset)
    assert entry is not None
    assert (entry.gloss, entry.countable) == (gloss, countable)


@pytest.mark.parametrize(
    "gloss",
    [
        "short one",
        "a cat that is a cat itself",
        "a thing (with brackets) that is not plain",
        "a place to kill an animal",
    ],
)
def test_unclean_glosses_are_left_out(gloss: str) -> None:
    assert dictionary_entry("cat", f"00000000 05 n 01 cat 0 000 | {gloss}") is None


def test_people_put_a_question_in_many_ways_and_mean_the_same() -> None:
    question, rng = "What is the capital of Peru?", random.Random(7)
    ways = [restyled(question, rng, first=True) for _ in range(2000)]
    assert 0.45 < ways.count(question) / len(ways) < 0.6
    assert len(set(ways)) > 150
    assert all(way.strip() == way for way in ways)
    assert sum("peru" in way.lower() and "capital" in way.lower() for way in ways) > 0.95 * len(ways)
    assert not any(
        way.startswith(("Hi", "Hello", "Good")) for way in (restyled(question, rng, first=False) for _ in ways)
    )
    numbers = [restyled("How much is 12 plus 7?", rng, first=False) for _ in range(500)]
    assert all(re.findall(r"\d+", way) == ["12", "7"] for way in numbers)
