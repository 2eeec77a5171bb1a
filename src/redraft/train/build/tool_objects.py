"""What a composed tool acts on: the one parameter that a request names right after its verb."""

from __future__ import annotations

import random
from collections.abc import Callable

from redraft.train.build.tool_parts import Part, new_count, new_part
from redraft.train.build.word_forms import capital, plural
from redraft.train.build.wordnet import Lexicon

_REQUIRED = 0.9


def draw_object(rng: random.Random, words: Lexicon, thing: str) -> Part:
    """The value that says which thing, which sort, how many or how much; or what to do with it."""
    draw = rng.choices(tuple(_ODDS), tuple(_ODDS.values()))[0]
    return draw(rng, words, thing)


def draw_item(rng: random.Random, words: Lexicon, thing: str) -> Part:
    """The value that says which thing: a number or a name."""
    return rng.choice((_numbered, _named))(rng, words, thing)


def _numbered(rng: random.Random, words: Lexicon, thing: str) -> Part:
    names = [f"{thing}_id", thing, f"{thing}_{rng.choice(('code', 'number', 'ref', 'key'))}"]
    phrases = [f"{thing} {{x}}", f"the {thing} {{x}}", f"{thing} number {{x}}", "{x}"]
    kind = rng.choice(("ID", "ID", "ID", "HEX", "CODEWORD", "SLUG"))
    return new_part(rng, names, kind, _described(thing), phrases, required=_REQUIRED)


def _named(rng: random.Random, words: Lexicon, thing: str) -> Part:
    names = [thing, f"{thing}_name", f"{thing}_{rng.choice(('title', 'label', 'path', 'text'))}"]
    phrases = [f"the {thing} {{x}}", "{x}", f"the {thing} called {{x}}", f"the {thing} named {{x}}"]
    kind = rng.choice(("TITLE", "TITLE", "PRODUCT", "WORD", "PERSON", "PERSON", "PATH"))
    return new_part(rng, names, kind, _described(thing), phrases, required=_REQUIRED)


def _sort(rng: random.Random, words: Lexicon, thing: str) -> Part:
    """One of a few words that the declaration lists: "paint the bridge", where bridge is a `section`."""
    many = plural(thing)
    names = [f"{thing}_{rng.choice(('type', 'kind', 'part', 'model', 'section'))}", rng.choice(words.attributes), thing]
    phrases = ["the {x}", "the {x}", "{x}", f"the {{x}} {thing}", f"all {{x}} {many}", f"a {{x}} {thing}"]
    options = rng.sample(words.things, rng.randint(3, 5))
    return new_part(rng, names, "ENUM", _described(thing), phrases, options, required=_REQUIRED)


def _many(rng: random.Random, words: Lexicon, thing: str) -> Part:
    phrases = ["{x} {m}", "{x} {m}", "another {x} {m}", "{x} more {m}"]
    name = rng.choice(("count", "quantity", "number"))
    return new_count(rng, thing, name, phrases, (9, 40, 90, 500), required=_REQUIRED)


def _money(rng: random.Random, words: Lexicon, thing: str) -> Part:
    names = rng.sample(["amount", "sum", "price", "value", "total", "payment"], 3)
    phrases = ["{x}", "{x}", "a sum of {x}", f"{{x}} for the {thing}", f"the {thing} {{x}}"]
    return new_part(rng, names, "MONEY", "Amount|Sum of money|How much", phrases, required=_REQUIRED)


_SUBSTANCE_UNITS = ("liters", "gallons", "grams", "kilos", "cups", "boxes", "meters", "hours", "pages")


def _measured(rng: random.Random, words: Lexicon, thing: str) -> Part:
    unit = rng.choice(_SUBSTANCE_UNITS)
    names = [f"{thing}_{unit}", unit, rng.choice(("amount", "volume", "quantity"))]
    phrases = [f"{{x}} {unit} of {thing}", f"{{x}} {unit} of {thing}", f"{{x}} {unit} {thing}", f"{{x}} {unit}"]
    described = f"{capital(unit)}|{capital(unit)} of {thing}|How much {thing}"
    return new_part(rng, names, "NUM", described, phrases, (1, 600), required=_REQUIRED)


_CONTENTS = (
    "TEXT", "TASK", "TOPIC", "FOOD", "MEDICINE", "CITY", "ADDRESS", "URL", "EMAIL", "PATH", "COUNTRY", "PRODUCT",
)  # fmt: skip


def _content(rng: random.Random, words: Lexicon, thing: str) -> Part:
    names = [thing, f"{thing}_{rng.choice(('text', 'value', 'content', 'target', 'source'))}"]
    names.append(rng.choice(("item", "content", "target", "subject", "input", rng.choice(words.attributes))))
    phrases = ["{x}", "{x}", f"the {thing} {{x}}", f"{{x}} as the {thing}", f"a {thing} for {{x}}"]
    return new_part(rng, names, rng.choice(_CONTENTS), _described(thing), phrases, required=_REQUIRED)


def _described(thing: str) -> str:
    return f"{capital(thing)}|The {thing}|Which {thing}"


_ODDS: dict[Callable[[random.Random, Lexicon, str], Part], int] = {
    _numbered: 8, _named: 8, _sort: 5, _many: 4, _content: 4, _measured: 2, _money: 1
}  # fmt: skip
