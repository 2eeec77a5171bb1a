"""Short texts about people, products, events and other things, together with what they say, as fields.

`extraction_data/records.txt` has the sentences, with slots for values; its head explains its lines. A text is an
opening and some sentences that continue it, none of which repeats a fact; or a list of labelled values.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from redraft.train.build.chat_text import expand, with_article
from redraft.train.build.tool_values import Drawn, Values
from redraft.train.build.word_forms import camel, capital

RECORDS = Path(__file__).parent / "extraction_data" / "records.txt"

_HEAD = re.compile(r"\[(?P<name>\w+)(?: \*(?P<weight>\d+))?\]")
_DECLARED = re.compile(r"(?P<slot>\w+): (?P<names>\S+) = (?P<kind>.+)")
_SLOT = re.compile(r"\{(?P<slot>!?\w+)(?:=(?P<implied>[\w ]+))?\}")
_ARTICLE = re.compile(r"\b([Aa]) (\w+)")
_CONTINUATIONS = (0, 0, 1, 1, 1, 2, 2, 3)
_LABELLED = 0.1
"""The share of texts that are labels and values, a line each."""
_IMPLIED = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A slot's possible keys and the kind of its values, as the file gives it: `INT 4 95`."""

    names: tuple[str, ...]
    kind: str

    @property
    def options(self) -> tuple[str, ...]:
        """The words that a request may list."""
        return tuple(self.kind.removeprefix("enum ").split("|")) if self.kind.startswith("enum ") else ()


@dataclass(kw_only=True)
class Record:
    """A kind of thing: its slots by name, and the sentences and requests about it."""

    name: str
    weight: int
    slots: dict[str, Slot] = field(default_factory=dict)
    openings: list[str] = field(default_factory=list)
    continuations: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A text about a thing, and what it says.

    fields    values by key, in the order of the text
    options   the possible values of those keys that have few
    absent    keys of facts that the text does not give
    requests  requests that fit the thing alone
    """

    about: str
    text: str
    fields: dict[str, object]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()


def read_records(path: Path = RECORDS) -> list[Record]:
    """The records of a file. Raises ValueError with the line number for a line that is none of its kinds."""
    records: list[Record] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        mark, _, text = line.partition(" ")
        if head := _HEAD.fullmatch(line):
            records.append(Record(name=head["name"], weight=int(head["weight"] or 1)))
        elif mark == "@" and (declared := _DECLARED.fullmatch(text)):
            records[-1].slots[declared["slot"]] = Slot(names=tuple(declared["names"].split("|")), kind=declared["kind"])
        elif mark in _SENTENCES:
            _SENTENCES[mark](records[-1]).append(text)
        else:
            raise ValueError(f"{path.name}, line {number}: {line!r} is no slot, sentence or request")
    return records


_SENTENCES: dict[str, Callable[[Record], list[str]]] = {
    ">": lambda record: record.openings, "+": lambda record: record.continuations, "!": lambda record: record.requests,
}  # fmt: skip


def draw_passage(record: Record, values: Values) -> Passage:
    """A text about one thing of the kind `record`."""
    labelled = values.rng.random() < _LABELLED
    return (_labelled if labelled else _told)(record, values)


def draw_list(record: Record, values: Values, count: int) -> Passage | None:
    """A text about `count` things that gives the same facts of each, under one key; None if a fact is implied."""
    pattern = expand(values.rng.choice(record.openings), values.rng)
    slots = _slots(pattern)
    if len(slots) < 2 or "=" in pattern:
        return None
    keys = {slot: record.slots[slot].names[0] for slot in slots}
    texts, entries = [], []
    for _ in range(count):
        text, said = _filled(pattern, record, values)
        texts.append(text)
        entries.append({keys[slot]: value for slot, value in said.items()})
    return Passage(about=f"{record.name}s", text=" ".join(texts), fields={f"{record.name}s": entries})


def _told(record: Record, values: Values) -> Passage:
    rng = values.rng
    patterns = [expand(rng.choice(record.openings), rng)]
    known = _slots(patterns[0])
    for pattern in rng.sample(record.continuations, len(record.continuations))[: rng.choice(_CONTINUATIONS)]:
        expanded = expand(pattern, rng)
        if not known & _slots(expanded):
            patterns.append(expanded)
            known |= _slots(expanded)
    texts, said = [], {}
    for pattern in patterns:
        text, values_of = _filled(pattern, record, values)
        texts.append(text)
        said |= values_of
    if not said:
        return _told(record, values)
    return _passage(record, values, " ".join(texts), said)


def _labelled(record: Record, values: Values) -> Passage:
    """`Name: Ana Silva` and so on, a line or a clause each."""
    rng = values.rng
    plain = [slot for slot, declared in record.slots.items() if declared.kind not in ("BOOL", "ITEMS")]
    lines, said = [], {}
    for slot in rng.sample(plain, min(len(plain), rng.randint(2, 4))):
        drawn = draw_value(record.slots[slot].kind, values)
        said[slot] = drawn.value
        lines.append(f"{capital(rng.choice(record.slots[slot].names).replace('_', ' '))}: {drawn.text}")
    return _passage(record, values, rng.choice(("\n", "\n", ", ", "; ", " | ")).join(lines), said)


def _passage(record: Record, values: Values, text: str, said: dict[str, object]) -> Passage:
    rng, style = values.rng, _key_style(values.rng)
    keys: dict[str, str] = {}
    for slot, declared in record.slots.items():
        first = style(declared.names[0])
        chosen = first if rng.random() < 0.5 else style(rng.choice(declared.names))
        keys[slot] = chosen if chosen not in keys.values() else first
    if len(set(keys.values())) < len(keys):
        return _passage(record, values, text, said)
    return Passage(
        about=record.name,
        text=text,
        fields={keys[slot]: value for slot, value in said.items()},
        options={keys[slot]: declared.options for slot, declared in record.slots.items() if declared.options},
        absent=tuple(keys[slot] for slot in record.slots if slot not in said),
        requests=tuple(record.requests),
    )


def _key_style(rng: random.Random) -> Callable[[str], str]:
    """How keys are spelled: `birth_date`, `birthDate` or `Birth Date`."""
    return rng.choices((str, lambda name: camel(name.split("_")), _title), (85, 12, 3))[0]


def _title(name: str) -> str:
    return " ".join(map(capital, name.split("_")))


def _slots(pattern: str) -> set[str]:
    return {match["slot"] for match in _SLOT.finditer(pattern) if not match["slot"].startswith("!")}


def _filled(pattern: str, record: Record, values: Values) -> tuple[str, dict[str, object]]:
    """A sentence, and the values of the slots that it gives or implies."""
    said: dict[str, object] = {}

    def value(match: re.Match[str]) -> str:
        slot, implied = match["slot"], match["implied"]
        if implied:
            said[slot] = _IMPLIED.get(implied, implied)
            return ""
        if slot.startswith("!"):
            return draw_value("INT 2 90" if slot == "!INT" else slot[1:], values).text
        drawn = draw_value(record.slots[slot].kind, values)
        said[slot] = drawn.value
        return drawn.text

    text = _ARTICLE.sub(lambda found: found[1] + with_article(found[2])[1:], _SLOT.sub(value, pattern))
    text = capital(text)
    ends = text.endswith((".", "!", "?")) or (("|" in text or ":" in text) and values.rng.random() < 0.4)
    return text if ends else f"{text}.", said


def draw_value(kind: str, values: Values) -> Drawn:
    """A value of a `kind` of records.txt, and the words for it."""
    name, _, rest = kind.partition(" ")
    if name in ("one", "enum"):
        word = values.rng.choice(rest.split("|"))
        return Drawn(value=word, text=word)
    if name in ("INT", "NUM"):
        low, high = map(int, rest.split())
        return values.integer(low, high) if name == "INT" else values.number(low, high)
    if name == "LIST":
        return values.several(lambda: values.written(rest), values.rng.choice((1, 2, 2)), 4)
    return {"MONEY": values.money, "ITEMS": lambda: _items(values)}.get(name, lambda: values.written(name))()


def _items(values: Values) -> Drawn:
    """Products with their numbers: "2 blue lamps and 12 forks"."""

    def item() -> Drawn:
        count, product = values.integer(1, 20), values.string("PRODUCT").split()[-1]
        name = f"{product}s" if count.value != 1 else product
        return Drawn(value={"name": name, "quantity": count.value}, text=f"{count.text} {name}")

    return values.several(item, 1, 3)
