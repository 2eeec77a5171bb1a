"""Tables that are computed or drawn: sums, counting, spelling, sentences, lists, and WordNet's definitions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from redraft.train.build.chat_text import Row, Table
from redraft.train.build.sources import debian_files
from redraft.train.build.tool_words import NUMBER_WORDS, WEEKDAYS, listed

HELD = "held"  # a row with this column is only asked in the evaluation

_MONTHS = (
    ("January", "31", "winter"),
    ("February", "28 or 29", "winter"),
    ("March", "31", "spring"),
    ("April", "30", "spring"),
    ("May", "31", "spring"),
    ("June", "30", "summer"),
    ("July", "31", "summer"),
    ("August", "31", "summer"),
    ("September", "30", "autumn"),
    ("October", "31", "autumn"),
    ("November", "30", "autumn"),
    ("December", "31", "winter"),
)
_ORDINALS = listed("""
    first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth
""")
_TENS = listed("twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety")
_NOT_COUNTED = listed("""
    colours, drinks, sports, metals, planets, months, days of the week, seasons, school subjects, spices,
    programming languages, countries in Europe, countries in Asia, countries in Africa, countries in South America
""")
_RUDE = re.compile(
    r"sex|genital|prostitut|offensive|disparag|slur|ethnic|race\b|racial|kill|murder|drug|penis|vagina|breast|anus|feces"
    r"|excre|urin|nazi|slave|terror|torture|suicid|\brape|contracept|intercourse|copulat|corpse|\bgod|religio|jew"
    r"|christ|muslim|negro|womb|amorous|fatness|sniper|marksman|execut|demure|female person",
    re.IGNORECASE,
)
_LEMMA = re.compile(r"[a-z]{3,12}")
# WordNet's files of things that can be counted: animals, artefacts, body parts, places, objects, persons, plants.
_COUNTED_FILES = frozenset({"05", "06", "08", "15", "17", "18", "20"})
_GLOSS = re.compile(r"(?:an?|the) [a-z ,'-]+")
_DEFINITION_WORDS = range(4, 17)


def number_word(number: int) -> str:
    """The English word for 0 … 100."""
    if number < 20:
        return NUMBER_WORDS[number]
    if number == 100:
        return "one hundred"
    tens, unit = _TENS[number // 10 - 2], number % 10
    return f"{tens}-{NUMBER_WORDS[unit]}" if unit else tens


def computed_tables(written: Mapping[str, Table], rng: random.Random) -> dict[str, Table]:
    """All tables that follow from rules, or are drawn with `rng` from the written ones."""
    return {
        **_arithmetic(),
        **_number_tables(rng),
        **_calendar(),
        "letters": list(_letters()),
        "sentences": list(_sentences(written, rng)),
        **_lists(written["categories"], rng),
        "pets": [{**kind, **name} for kind, name in product(written["pet_kinds"], written["pet_names"])],
        "ages": [{"age": str(age)} for age in range(5, 91)],
    }


def _row(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _hold(row: dict[str, str], held: bool) -> Row:
    return {**row, HELD: "yes"} if held else row


def _arithmetic() -> dict[str, Table]:
    """Sums and differences up to 20, every eleventh of them held out, and small products."""
    sums = [
        _hold(_row(a=a, b=b, c=a + b), (7 * a + 3 * b) % 11 == 5) for a in range(21) for b in range(21) if a + b <= 20
    ]
    differences = [_hold(_row(a=a, b=b, c=a - b), (5 * a + 3 * b) % 11 == 4) for a in range(21) for b in range(a + 1)]
    return {
        "sums": sums,
        "stories": [row for row in sums if int(row["a"]) > 1 and int(row["b"]) > 1],
        "differences": differences,
        "losses": [row for row in differences if int(row["b"]) > 1 and int(row["c"]) > 1],
        "products": [_row(a=a, b=b, c=a * b) for a in range(11) for b in range(11) if a * b <= 40],
        "doubles": [_row(a=a, c=2 * a) for a in range(1, 21)],
    }


def _number_tables(rng: random.Random) -> dict[str, Table]:
    pairs = [_pair(*rng.sample(range(101), 2)) for _ in range(600)]
    triples = [_triple(rng.sample(range(1, 51), 3)) for _ in range(600)]
    up = [(a, b, 1) for a in range(12) for b in range(a + 3, min(a + 12, 21))]
    down = [(b, a, -1) for a, b, _ in up if b <= 12]
    return {
        "numbers": [_number(number) for number in range(1, 100)],
        "pairs": pairs,
        "triples": triples,
        "counts": [_row(a=a, b=b, count=", ".join(map(str, range(a, b + step, step)))) for a, b, step in [*up, *down]],
    }


def _number(number: int) -> Row:
    parity = "odd" if number % 2 else "even"
    return _row(a=number, next=number + 1, previous=number - 1, word=number_word(number), parity=parity)


def _pair(a: int, b: int) -> Row:
    return _row(a=a, b=b, big=max(a, b), small=min(a, b))


def _triple(numbers: Sequence[int]) -> Row:
    a, b, c = numbers
    return _row(a=a, b=b, c=c, sorted=", ".join(map(str, sorted(numbers))), max=max(numbers), min=min(numbers))


def _calendar() -> dict[str, Table]:
    days = [
        _row(
            day=day,
            next=WEEKDAYS[(index + 1) % 7],
            previous=WEEKDAYS[index - 1],
            kind="part of the weekend" if index > 4 else "a weekday",
        )
        for index, day in enumerate(WEEKDAYS)
    ]
    months = [
        _row(
            month=month,
            next=_MONTHS[(index + 1) % 12][0],
            previous=_MONTHS[index - 1][0],
            days=length,
            season=season,
            ordinal=_ORDINALS[index],
        )
        for index, (month, length, season) in enumerate(_MONTHS)
    ]
    return {"days": days, "months": months}


def _letters() -> Iterator[Row]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for index in range(1, 25):
        yield _row(letter=alphabet[index], next=alphabet[index + 1], previous=alphabet[index - 1])


def _sentences(written: Mapping[str, Table], rng: random.Random) -> Iterator[Row]:
    parts = [
        [next(iter(row.values())) for row in written[f"sentence_{part}"]]
        for part in ("subjects", "verbs", "objects", "ends")
    ]
    for _ in range(3000):
        subject, verb, thing, end = (rng.choice(part) for part in parts)
        sentence = f"{subject} {verb} {thing}{rng.choice(['', f' {end}'])}."
        yield _row(sentence=sentence, upper=sentence.upper(), length=len(sentence.split()))


def _lists(categories: Table, rng: random.Random) -> dict[str, Table]:
    """Three members of a category at a time; `plurals` leaves out members without a plural (`water`, `Mars`)."""
    rows = [
        _row(category=row["category"], kind=row["kind"], x=x, y=y, z=z)
        for row in categories
        for x, y, z in (rng.sample(row["items"].split(", "), 3) for _ in range(60))
    ]
    return {"lists": rows, "plurals": [row for row in rows if row["category"] not in _NOT_COUNTED]}


def word_rows(words: Sequence[str]) -> list[Row]:
    """What can be asked about the letters of a word."""
    return [
        _row(word=word, spelled="-".join(word), first=word[0], last=word[-1], length=len(word), upper=word.upper())
        for word in words
    ]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A word's first definition, and whether "a" can stand before the word."""

    gloss: str
    countable: bool


def dictionary(cache: Path) -> dict[str, Entry]:
    """Common nouns and their first definitions by WordNet, the most used first.

    Only single words that WordNet's own tagged texts use at least twice, with plain and short definitions.
    """
    texts = {path.rsplit("/", 1)[-1]: text for path, text in debian_files("wordnet-base", cache, _WORDNET_FILES)}
    uses = dict(_noun_uses(texts["cntlist.rev"]))
    synsets = {line[:8]: line for line in texts["data.noun"].splitlines()}
    first_senses = dict(_first_senses(texts["index.noun"]))
    common = sorted((word for word, count in uses.items() if count >= 2), key=lambda word: (-uses[word], word))
    found = {word: dictionary_entry(word, synsets[first_senses[word]]) for word in common if word in first_senses}
    return {word: entry for word, entry in found.items() if entry}


_WORDNET_FILES = ("/data.noun", "/index.noun", "/cntlist.rev")


def _noun_uses(text: str) -> Iterator[tuple[str, int]]:
    """Words and how often their first noun sense was tagged: lines `word%1:… sense count`."""
    for line in text.splitlines():
        key, sense, count = line.split(" ")
        if "%1:" in key and sense == "1":
            yield key.split("%")[0], int(count)


def _first_senses(text: str) -> Iterator[tuple[str, str]]:
    """Words and the offset of their first synset: `word n senses pointers … senses tagged offset …`."""
    for line in text.splitlines():
        if not line.startswith(" "):
            fields = line.split()
            yield fields[0], fields[6 + int(fields[3])]


def dictionary_entry(word: str, synset: str) -> Entry | None:
    """A synset's first definition if it is plain, short, fit for everybody and does not use the word itself."""
    text = re.split(r"[;:]", synset.partition("| ")[2])[0].strip()
    if not (_LEMMA.fullmatch(word) and _GLOSS.fullmatch(text)) or _RUDE.search(text) or _RUDE.search(word):
        return None
    short = len(text.split()) in _DEFINITION_WORDS
    if not short or re.search(rf"\b{word[:5]}", text):
        return None
    is_plural = word.endswith("s") and not word.endswith("ss")
    is_counted = synset.split(" ")[1] in _COUNTED_FILES and not text.startswith("the ")
    return Entry(gloss=text, countable=is_counted and not is_plural)
