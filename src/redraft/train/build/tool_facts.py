"""Facts as a tool returns them and as a person says them: `"wind_speed_kmh": 14` is "the wind speed is 14 km/h".

The sentence follows from the fields by rule, so a model has one right sentence to learn, made of words and values that
precede it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from redraft.train.build.tool_parts import QUANTITIES, Quantity
from redraft.train.build.tool_values import Values, enumerated
from redraft.train.build.word_forms import camel, capital, past, plural
from redraft.train.build.wordnet import Lexicon


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Fields of a result, the first of which determines its order among others, and a phrase: "the price is 12 EUR"."""

    fields: dict[str, object]
    clause: str

    @property
    def key(self) -> str:
        return next(iter(self.fields))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Draws facts in one spelling of keys: `wind_speed`, or `windSpeed` where `camel` is set."""

    values: Values
    words: Lexicon
    camel: bool

    @property
    def rng(self) -> random.Random:
        return self.values.rng

    def draw(self, count: int) -> list[Fact]:
        """`count` facts that share no field."""
        facts: list[Fact] = []
        while len(facts) < count:
            fact = self.rng.choice(_SORTS)(self)
            if not any(fact.fields.keys() & other.fields.keys() for other in facts):
                facts.append(fact)
        return facts

    def key(self, name: str) -> str:
        """The key of what people call `name`."""
        words = name.split()
        return camel(words) if self.camel else "_".join(words)

    def thing(self) -> str:
        """A noun."""
        return self.rng.choice(self.words.things)

    def past(self) -> str:
        """What may have been done to a thing: a participle."""
        return past(self.rng.choice(self.rng.choice(self.words.verbs)))

    def of(self, name: str, value: object, unit: str = "", extra: tuple[str, object] | None = None) -> Fact:
        """The fact that `name` is `value`; its unit may be in the key or in an `extra` field."""
        said = f"{said_value(value)} {unit}".rstrip()
        verb = "are" if isinstance(value, list) and len(value) > 1 else "is"
        fields = {self.key(name): value} | ({self.key(extra[0]): extra[1]} if extra else {})
        return Fact(fields=fields, clause=f"the {name} {verb} {said}")


def said_value(value: object) -> str:
    """A value in a sentence: lists are enumerated, a missing value is not known."""
    if value is None:
        return "not known"
    return enumerated([said_value(item) for item in value]) if isinstance(value, list) else str(value)


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop if it lacks them."""
    return capital(text) + ("" if text.endswith((".", "?", "!")) else ".")


# What values of a kind are called; {t} stands for one of the lexicon's things, {p} for one of its persons.
_NAMED = tuple(
    (kind, tuple(names.split("|")))
    for kind, names in {
        "CITY": "city|location|place|departure city|{t} city|next stop",
        "PERSON": "name|owner|author|{p}|{p} name|contact|assigned to|winner",
        "DATE": "date|due date|arrival date|next {t}|last {t}|{t} date|deadline|created at|expires on",
        "TIME": "time|start time|end time|opening time|closing time|arrival time|{t} time|next {t}",
        "ADDRESS": "address|street address|{t} address|pickup point",
        "COUNTRY": "country|country of origin|{t} country",
        "LANGUAGE": "language|original language",
        "COLOR": "color|{t} color|background color",
        "TITLE": "title|name|{t} name|{t} title|label|subject",
        "TEXT": "note|description|summary|comment|advice|text|reason|{t} text|headline",
        "PHONE": "phone|phone number|{p} phone",
        "EMAIL": "email|contact email|{p} email",
        "URL": "url|link|website|{t} url|tracking link",
        "PATH": "file|path|{t} file|output file",
        "ID": "id|{t} id|{t} number|reference|booking code|ticket|order number|case number|tracking number",
        "BUSINESS": "company|shop|hotel|restaurant|supplier|carrier|airline|store",
        "PRODUCT": "item|product|{t}|spare part",
        "WEEKDAY": "weekday|day|{t} day|best day",
        "FLIGHT": "flight|flight number|train",
        "VERSION": "version|latest version|{t} version",
        "TOPIC": "topic|theme|category",
        "FOOD": "dish|main ingredient|meal",
        "ROOM": "room|location|{t} room",
        "WORD": "status|condition|state|type|kind|mood|level|trend|sky|priority|{a}|{t} {a}",
        "REPO": "repository|project",
        "TICKER": "symbol|ticker",
        "HEX": "checksum|hash|token",
    }.items()
)
_COUNTED = (
    "count", "total", "quantity", "stock", "rating", "score", "rank", "floor", "platform", "position", "pages",
    "number of {m}", "{m}", "{t} count", "remaining {m}", "{a}", "free seats", "points", "gate", "age", "year",
    "humidity", "uv index", "step", "visitors", "calories",
)  # fmt: skip
_FLAGS = (
    "available", "open", "active", "confirmed", "paid", "valid", "online", "enabled", "full", "delivered", "ready",
    "closed", "locked", "public", "private", "running", "complete", "approved", "visible", "free", "urgent",
    "refundable", "in stock", "sold out", "on time", "delayed", "broken", "safe", "raining", "charging", "busy",
    "overdue", "mandatory", "archived", "empty", "correct", "legal", "vegetarian",
)  # fmt: skip
_MEASURED = (
    *QUANTITIES,
    Quantity(names="price cost fee total balance", units="usd=USD eur=EUR gbp=GBP dollars=dollars euros=euros", low=1,
             high=3000, phrases=""),
    Quantity(names="temperature high low dew_point", units="c=°C f=°F celsius=°C celsius=celsius", low=-20, high=40,
             phrases=""),
    Quantity(names="wind speed wind_speed top_speed", units="kmh=km/h mph=mph kph=km/h ms=m/s", low=1, high=130,
             phrases="", whole=True),
    Quantity(names="rain snow rainfall chance_of_rain cloud_cover humidity battery progress discount", whole=True,
             units="percent=percent percent=% pct=percent", low=0, high=100, phrases=""),
    Quantity(names="travel_time runtime wait eta duration delay", units="minutes=minutes min=minutes hours=hours",
             low=1, high=240, phrases="", whole=True),
)  # fmt: skip


def _named(facts: Facts) -> Fact:
    kind, names = facts.rng.choice(_NAMED)
    return facts.of(_filled(facts, facts.rng.choice(names)), facts.values.string(kind))


def _anything(facts: Facts) -> Fact:
    """A word, a name or a number under any noun at all."""
    words = facts.words
    name = facts.rng.choice((facts.thing(), f"{facts.thing()} {facts.rng.choice(words.attributes)}"))
    kind = facts.rng.choice(("WORD", "WORD", "PRODUCT", "PERSON", "CITY", "TITLE", "CODEWORD", "INT", "INT", "NUM"))
    value = _number(facts, kind) if kind in ("INT", "NUM") else facts.values.string(kind)
    return facts.of(name, value)


def _number(facts: Facts, kind: str) -> object:
    high = facts.rng.choice((9, 100, 2000, 50_000))
    return (facts.values.integer(0, high) if kind == "INT" else facts.values.number(0, high)).value


def _counted(facts: Facts) -> Fact:
    return facts.of(_filled(facts, facts.rng.choice(_COUNTED)), _number(facts, facts.rng.choice(("INT", "INT", "NUM"))))


def _measured(facts: Facts) -> Fact:
    """A number with its unit in the key, in a separate field, or in a string with it."""
    rng = facts.rng
    quantity = rng.choice(_MEASURED)
    name = rng.choice(quantity.names.split()).replace("_", " ")
    suffix, spoken = rng.choice(quantity.units.split()).split("=")
    spoken = spoken.replace("_", " ")
    drawn = facts.values.integer if quantity.whole else facts.values.number
    value = drawn(int(quantity.low), int(quantity.high)).value
    form = rng.random()
    if form < 0.45:
        return Fact(fields={facts.key(f"{name} {suffix}"): value}, clause=facts.of(name, value, spoken).clause)
    if form < 0.7:
        holder = "currency" if quantity.names.startswith("price") else rng.choice(("unit", f"{name} unit"))
        return facts.of(name, value, spoken, (holder, spoken))
    return facts.of(name, f"{value} {spoken}") if form < 0.85 else facts.of(name, value)


def _flag(facts: Facts) -> Fact:
    """Whether something is the case: "it is available", "it is not available"."""
    rng = facts.rng
    adjective = facts.past() if rng.random() < 0.25 else rng.choice(_FLAGS)
    key = facts.key(f"is {adjective}" if rng.random() < 0.35 else adjective)
    yes = rng.random() < 0.55
    return Fact(fields={key: yes}, clause=f"it is {adjective}" if yes else f"it is not {adjective}")


def _several(facts: Facts) -> Fact:
    kind = facts.rng.choice(("WORD", "PERSON", "CITY", "FOOD", "TITLE", "ID", "LANGUAGE", "COLOR"))
    values = list(dict.fromkeys(facts.values.string(kind) for _ in range(facts.rng.randint(1, 4))))
    return facts.of(plural(facts.thing()), values)


def _unknown(facts: Facts) -> Fact:
    return facts.of(_filled(facts, facts.rng.choice(facts.rng.choice(_NAMED)[1])), None)


def _filled(facts: Facts, name: str) -> str:
    thing, rng = facts.thing(), facts.rng
    filled = name.replace("{t}", thing).replace("{m}", plural(thing))
    return filled.replace("{p}", rng.choice(facts.words.persons)).replace("{a}", rng.choice(facts.words.attributes))


# Each is drawn as often as it is listed.
_SORTS: tuple[Callable[[Facts], Fact], ...] = (
    *[_named] * 7, *[_measured] * 5, *[_counted] * 3, *[_anything] * 3, *[_flag] * 2, _several, _unknown,
)  # fmt: skip
