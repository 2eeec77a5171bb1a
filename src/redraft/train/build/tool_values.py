"""Argument values for synthetic tool calls, and how a person writes them in a request.

A model should learn to *copy* values from a request, not to remember a few dozen cities, so most kinds are composed
from parts, and a share of all words is made up from syllables. Every string belongs to one side of a split by its
checksum: training never sees a string that evaluation asks for, and vice versa.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redraft.train.build.tool_words import (
    ADJECTIVES,
    BUSINESSES,
    CITIES,
    COLORS,
    COUNTRIES,
    CURRENCIES,
    DEVICES,
    EXTENSIONS,
    FIRST_NAMES,
    FOODS,
    LANGUAGES,
    LAST_NAMES,
    MEDICINES,
    MONTHS,
    NOUNS,
    NUMBER_WORDS,
    PLACES,
    ROOMS,
    STREETS,
    TLDS,
    TOPICS,
    UNITS,
    VERBS,
    WEEKDAYS,
    listed,
)  # fmt: skip
from redraft.train.build.word_forms import capital

EVALUATION_SHARE = 10
"""One string in this many belongs to evaluation."""

_ONSETS = listed("""
    b, c, d, f, g, h, j, k, l, m, n, p, r, s, t, v, w, z, br, ch, cl, dr, fl, gr, kr, pl, pr, sh, sk, sl, st, th, tr
""")
_VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ou"]
_CODAS = ["", "", "", "n", "r", "s", "l", "m", "t", "k", "x", "nd", "rt", "sh"]
_SPELLED_OUT = NUMBER_WORDS[:13]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A value of an argument and the words that stand for it in the request."""

    value: object
    text: str


def made_up_word(rng: random.Random, low: int = 2, high: int = 3) -> str:
    """A pronounceable word that most likely does not exist."""
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(low, high))
    )


def is_evaluation_value(text: str) -> bool:
    """Whether a string belongs to the evaluation side of the split."""
    return zlib.crc32(text.lower().encode()) % EVALUATION_SHARE == 0


class Values:
    """Draws values of every kind for one side of the split, from one random stream."""

    def __init__(self, rng: random.Random, *, evaluation: bool = False) -> None:
        self.rng = rng
        self._evaluation = evaluation

    def string(self, kind: str) -> str:
        """A string of a named kind (``CITY``, ``PERSON``, …) from this side of the split."""
        draw = _STRINGS[kind]
        while True:
            text = draw(self.rng)
            # Short closed lists (units, colours, weekdays) are not split: one side might end up empty.
            if kind in _CLOSED or is_evaluation_value(text) == self._evaluation:
                return text

    def written(self, kind: str) -> Drawn:
        """A string and its form in a request: free text is quoted, names and the like mostly are not."""
        text = self.string(kind)
        quoted = kind in _QUOTED or (kind in _SOMETIMES_QUOTED and self.rng.random() < 0.4)
        if not quoted:
            return Drawn(value=text, text=text)
        mark = self.rng.choice('"""\'') if "'" not in text else '"'
        return Drawn(value=text, text=f"{mark}{text}{mark}")

    def integer(self, low: int, high: int) -> Drawn:
        """An integer; small ones are sometimes spelled out."""
        value = self.rng.randint(low, high)
        spelled = 0 < value < len(_SPELLED_OUT) and self.rng.random() < 0.15
        grouped = f"{value:,}" if value >= 10000 and self.rng.random() < 0.3 else str(value)
        return Drawn(value=value, text=_SPELLED_OUT[value] if spelled else grouped)

    def number(self, low: float, high: float) -> Drawn:
        """A number with up to two decimals; whole numbers are integers, as the call format writes them bare."""
        value = round(self.rng.uniform(low, high), self.rng.choice([0, 1, 1, 2]))
        plain = int(value) if value == int(value) else value
        plain = plain if plain >= low else int(low) + 1
        return Drawn(value=plain, text=str(plain))

    def money(self) -> Drawn:
        """A price in dollars or euros; the value is the bare number."""
        drawn = self.number(2, self.rng.choice([20, 100, 2000]))
        form = self.rng.choice(["${}", "${}", "{} dollars", "{} euros", "{}", "€{}"])
        return Drawn(value=drawn.value, text=form.format(drawn.text))

    def choice(self, options: list[str]) -> Drawn:
        """One of an enumeration; underscores read as spaces."""
        value = self.rng.choice(options)
        return Drawn(value=value, text=value.replace("_", " "))

    def several(self, draw: Callable[[], Drawn], low: int = 2, high: int = 4) -> Drawn:
        """A list of different values, enumerated the way people write."""
        drawn: list[Drawn] = []
        for _ in range(self.rng.randint(low, high)):
            item = draw()
            if all(item.value != other.value for other in drawn):
                drawn.append(item)
        return Drawn(value=[item.value for item in drawn], text=enumerated([item.text for item in drawn]))


def enumerated(texts: Sequence[str], joint: str = "and") -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {joint} {texts[-1]}"


# --- one function a kind --------------------------------------------------------------------------


def _word(rng: random.Random) -> str:
    return made_up_word(rng) if rng.random() < 0.3 else rng.choice(rng.choice((NOUNS, ADJECTIVES, VERBS)))


def _city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.75 else made_up_word(rng).capitalize()


def _person(rng: random.Random) -> str:
    first = rng.choice(FIRST_NAMES) if rng.random() < 0.85 else made_up_word(rng, 1, 2).capitalize()
    last = rng.choice(LAST_NAMES) if rng.random() < 0.8 else made_up_word(rng).capitalize()
    return first if rng.random() < 0.35 else f"{first} {last}"


def _date(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2034)
    name = MONTHS[month - 1]
    forms = (
        f"{year}-{month:02d}-{day:02d}",
        f"{year}-{month:02d}-{day:02d}",
        f"{name} {day}",
        f"{day} {name}",
        f"{name} {day}, {year}",
        f"{day}.{month}.{year}",
        f"{month:02d}/{day:02d}/{year}",
    )
    spoken = ("today", "tomorrow", "next " + rng.choice(WEEKDAYS), rng.choice(WEEKDAYS), "this " + rng.choice(WEEKDAYS))
    return rng.choice(forms) if rng.random() < 0.8 else rng.choice(spoken)


def _time(rng: random.Random) -> str:
    hour, minute = rng.randint(0, 23), rng.choice([0, 0, 5, 10, 15, 20, 30, 30, 40, 45, 50])
    half = rng.randint(1, 12)
    forms = (
        f"{hour:02d}:{minute:02d}",
        f"{half}:{minute:02d} {rng.choice(['am', 'pm'])}",
        f"{half} {rng.choice(['am', 'pm'])}",
        f"{half}pm",
    )
    return rng.choice(forms)


def _product(rng: random.Random) -> str:
    adjectives = rng.sample(ADJECTIVES, rng.choice([1, 1, 2]))
    noun = made_up_word(rng) if rng.random() < 0.15 else rng.choice(NOUNS)
    return " ".join([*adjectives, noun])


def _title(rng: random.Random) -> str:
    noun, other, adjective = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(ADJECTIVES)
    verb, name = rng.choice(VERBS), rng.choice(FIRST_NAMES)
    forms = (
        f"{adjective} {noun}",
        f"{noun} and {other}",
        f"the {adjective} {noun}",
        f"{verb} the {noun}",
        f"{noun} of {name}",
        f"{made_up_word(rng)} {noun}",
        f"{noun} {rng.randint(2, 99)}",
        f"a {noun} for {name}",
        f"{noun} meeting",
        f"{adjective} {noun} review",
    )
    text = rng.choice(forms)
    return text.title() if rng.random() < 0.5 else capital(text)


def _text(rng: random.Random) -> str:
    noun, other, adjective, verb = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(ADJECTIVES), rng.choice(VERBS)
    name, day, number = rng.choice(FIRST_NAMES), rng.choice(WEEKDAYS), rng.randint(2, 60)
    forms = (
        f"the {noun} is {adjective}", f"I will {verb} the {noun} on {day}", f"please {verb} the {adjective} {noun}",
        f"{name} has the {noun}",
        f"see you at the {noun}", f"we need {number} more {noun}s", f"{verb} the {noun} before {day}",
        f"the {noun} and the {other} are here",
        f"running {number} minutes late", f"do not {verb} the {noun}", f"can {name} {verb} the {other}?",
        f"thanks for the {adjective} {noun}",
        f"{adjective} {noun}, {adjective} {other}", f"{made_up_word(rng)} needs a {noun}", f"fix the {noun} {other}",
        f"add {adjective} {noun}",
        f"the {adjective} {noun} costs {number}", f"{name} will {verb} it", f"where is the {noun} of {name}?",
    )  # fmt: skip
    text = rng.choice(forms)
    return text if rng.random() < 0.5 else capital(text)


def _task(rng: random.Random) -> str:
    forms = (
        f"{rng.choice(VERBS)} the {rng.choice(NOUNS)}",
        f"{rng.choice(VERBS)} the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
        f"call {_person(rng)}",
        f"buy {rng.choice(FOODS)}",
        f"{rng.choice(VERBS)} {_person(rng)}'s {rng.choice(NOUNS)}",
    )
    return rng.choice(forms)


def _slug(rng: random.Random) -> str:
    joint = rng.choice(["-", "-", "_"])
    parts = [_word(rng) for _ in range(rng.choice([1, 2, 2, 3]))]
    return joint.join(parts) + (f"{joint}{rng.randint(1, 99)}" if rng.random() < 0.25 else "")


def _email(rng: random.Random) -> str:
    user = rng.choice(
        [rng.choice(FIRST_NAMES).lower(), f"{rng.choice(FIRST_NAMES)}.{rng.choice(LAST_NAMES)}".lower(), _word(rng)]
    )
    return f"{user}{rng.choice(['', '', rng.randint(1, 99)])}@{_word(rng)}.{rng.choice(TLDS)}"


def _folder(rng: random.Random) -> str:
    root = rng.choice(
        ["", "", "/", "~/", "./", "/home/" + rng.choice(FIRST_NAMES).lower() + "/", "/var/", "src/", "data/"]
    )
    return root + "/".join(_word(rng) for _ in range(rng.randint(1, 2)))


def _path(rng: random.Random) -> str:
    name = f"{_slug(rng)}.{rng.choice(EXTENSIONS)}"
    return name if rng.random() < 0.4 else f"{_folder(rng)}/{name}"


def _url(rng: random.Random) -> str:
    return f"https://{rng.choice(['', 'www.', 'docs.'])}{_word(rng)}.{rng.choice(TLDS)}" + rng.choice(
        ["", f"/{_slug(rng)}", f"/{_path(rng).lstrip('~./')}"]
    )


def _identifier(rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=rng.randint(1, 3)))
    forms = (
        f"{letters}-{rng.randint(10, 99999)}",
        f"{rng.randint(1000, 9999999)}",
        f"{letters}{rng.randint(100, 9999)}",
        "".join(rng.choices("0123456789abcdef", k=8)),
        f"{letters.lower()}_{rng.randint(1, 999)}",
    )
    return rng.choice(forms)


def _address(rng: random.Random) -> str:
    return f"{rng.randint(1, 480)} {_street(rng)}" + (f", {_city(rng)}" if rng.random() < 0.5 else "")


def _street(rng: random.Random) -> str:
    name = rng.choice(LAST_NAMES) if rng.random() < 0.5 else rng.choice(NOUNS).capitalize()
    return f"{name} {rng.choice(STREETS)}"


def _place(rng: random.Random) -> str:
    forms = (
        rng.choice(PLACES),
        f"{_city(rng)} {rng.choice(['Airport', 'Station', 'Museum', 'Zoo', 'Cathedral', 'Stadium'])}",
        _address(rng),
        _city(rng),
    )
    return rng.choice(forms)


def _business(rng: random.Random) -> str:
    name = rng.choice(
        [
            rng.choice(LAST_NAMES),
            rng.choice(FIRST_NAMES),
            made_up_word(rng).capitalize(),
            rng.choice(NOUNS).capitalize(),
        ]
    )
    return rng.choice(
        [
            f"{name}'s {rng.choice(BUSINESSES)}",
            f"{name} {rng.choice(BUSINESSES)}",
            f"The {rng.choice(ADJECTIVES).capitalize()} {name}",
        ]
    )


def _phone(rng: random.Random) -> str:
    forms = (
        f"+{rng.randint(1, 98)} {rng.randint(100, 999)} {rng.randint(1000000, 9999999)}",
        f"555-{rng.randint(100, 999)}-{rng.randint(1000, 9999)}",
        f"0{rng.randint(100, 999)} {rng.randint(100000, 999999)}",
    )
    return rng.choice(forms)


def _expression(rng: random.Random) -> str:
    a, b, c = rng.randint(2, 999), rng.randint(2, 99), rng.randint(2, 40)
    forms = (
        f"{a} + {b}",
        f"{a} * {b}",
        f"({a} + {b}) * {c}",
        f"{a} / {b} - {c}",
        f"sqrt({a})",
        f"{a} - {b} * {c}",
        f"{b} ** {rng.randint(2, 5)}",
        f"log({a}) + {c}",
    )
    return rng.choice(forms)


def _equation(rng: random.Random) -> str:
    a, b, c = rng.randint(2, 40), rng.randint(1, 90), rng.randint(2, 400)
    v = rng.choice("xyzt")
    return rng.choice([f"{a}{v} + {b} = {c}", f"{a}{v} - {b} = {c}", f"{v}^2 = {c}", f"{a}({v} + {b}) = {c}"])


def _table(rng: random.Random) -> str:
    noun = rng.choice(NOUNS)
    return rng.choice([noun + "s", noun, f"{noun}_{rng.choice(NOUNS)}s", f"{_word(rng)}_{noun}"])


def _condition(rng: random.Random) -> str:
    column = rng.choice(NOUNS)
    return rng.choice(
        [
            f"{column} > {rng.randint(1, 900)}",
            f"{column} = {rng.randint(1, 99)}",
            f"{column} < {rng.randint(2, 500)}",
            f"{column} is null",
        ]
    )


def _sql(rng: random.Random) -> str:
    table = _table(rng)
    forms = (
        f"SELECT * FROM {table}",
        f"SELECT {rng.choice(NOUNS)} FROM {table} WHERE {_condition(rng)}",
        f"DELETE FROM {table} WHERE {_condition(rng)}",
        f"SELECT COUNT(*) FROM {table}",
        f"DROP TABLE {table}",
    )
    return rng.choice(forms)


def _command(rng: random.Random) -> str:
    forms = (
        f"ls -l {_folder(rng)}",
        f"cat {_path(rng)}",
        f"make {_word(rng)}",
        f"python {_slug(rng)}.py",
        f"git checkout {_slug(rng)}",
        f"du -sh {_folder(rng)}",
        f"npm run {_word(rng)}",
        f"tail -n {rng.randint(5, 200)} {_path(rng)}",
        f"echo {_word(rng)}",
    )
    return rng.choice(forms)


def _topic(rng: random.Random) -> str:
    forms = (
        rng.choice(TOPICS),
        f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}s",
        f"{rng.choice(TOPICS)} in {_city(rng)}",
        f"{made_up_word(rng)} {rng.choice(NOUNS)}s",
    )
    return rng.choice(forms)


def _food(rng: random.Random) -> str:
    return rng.choice(FOODS) if rng.random() < 0.75 else f"{rng.choice(ADJECTIVES)} {rng.choice(FOODS)}"


def _letters(rng: random.Random, low: int, high: int) -> str:
    return "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randint(low, high)))


_STRINGS: dict[str, Callable[[random.Random], str]] = {
    "CITY": _city, "PERSON": _person, "DATE": _date, "TIME": _time, "PRODUCT": _product, "TITLE": _title,
    "TEXT": _text, "TASK": _task,
    "WORD": _word, "SLUG": _slug, "EMAIL": _email, "FOLDER": _folder, "PATH": _path, "URL": _url, "ID": _identifier,
    "ADDRESS": _address,
    "STREET": _street, "PLACE": _place, "BUSINESS": _business, "PHONE": _phone, "EXPR": _expression,
    "EQUATION": _equation, "TABLE": _table,
    "CONDITION": _condition, "SQL": _sql, "COMMAND": _command, "TOPIC": _topic, "FOOD": _food,
    "COUNTRY": lambda rng: rng.choice(COUNTRIES),
    "ROOM": lambda rng: rng.choice(ROOMS),
    "DEVICE": lambda rng: rng.choice(DEVICES),
    "COLOR": lambda rng: rng.choice(COLORS),
    "CURRENCY": lambda rng: rng.choice(CURRENCIES),
    "LANGUAGE": lambda rng: rng.choice(LANGUAGES),
    "UNIT": lambda rng: rng.choice(UNITS),
    "WEEKDAY": lambda rng: rng.choice(WEEKDAYS),
    "MEDICINE": lambda rng: rng.choice(MEDICINES) if rng.random() < 0.6 else made_up_word(rng),
    "TICKER": lambda rng: _letters(rng, 2, 4),
    "FLIGHT": lambda rng: f"{_letters(rng, 2, 2)}{rng.randint(10, 9999)}",
    "CODEWORD": lambda rng: f"{_word(rng).upper()}{rng.randint(5, 90)}",
    "VERSION": lambda rng: f"{rng.randint(0, 12)}.{rng.randint(0, 30)}" + rng.choice(["", f".{rng.randint(0, 20)}"]),
    "REPO": lambda rng: f"{_word(rng)}/{_slug(rng)}",
    "GLOB": lambda rng: rng.choice(["*.", "*.", f"{_word(rng)}*."]) + rng.choice(EXTENSIONS),
    "HEX": lambda rng: "".join(rng.choices("0123456789abcdef", k=rng.choice([8, 12]))),
}  # fmt: skip

STRING_KINDS = frozenset(_STRINGS)
_CLOSED = {"ROOM", "DEVICE", "COLOR", "CURRENCY", "LANGUAGE", "UNIT", "WEEKDAY", "COUNTRY", "GLOB"}
_QUOTED = {"TEXT", "SQL", "COMMAND"}
_SOMETIMES_QUOTED = {"TITLE", "TASK", "TOPIC", "WORD", "PRODUCT", "SLUG", "BUSINESS", "PATH"}
