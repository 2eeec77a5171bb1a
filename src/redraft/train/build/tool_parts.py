"""Parts of a composed tool: a parameter, and the phrases that carry its value in a request.

What a value means must follow from the request alone: from its kind (a date, a person), its unit, its preposition or a
noun next to it. :mod:`.tool_composed` puts the parts together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from redraft.train.build.tool_grammar import Parameter
from redraft.train.build.word_forms import capital, past, plural
from redraft.train.build.wordnet import Lexicon


@dataclass(frozen=True, kw_only=True)
class Part:
    """A parameter and the ways to say its value.

    The value follows the object ("in row {row_number}"); for some, `before` puts it before the noun ("a {color}
    teapot").
    """

    parameter: Parameter
    phrases: tuple[str, ...]
    before: tuple[str, ...] = ()


def new_part(
    rng: random.Random,
    names: Sequence[str],
    kind: str,
    descriptions: str,
    phrases: Sequence[str],
    options: Sequence[object] = ("",),
    *,
    required: float = 0.5,
    before: Sequence[str] = (),
) -> Part:
    """A part whose first name, the slot, is any of `names`; `{x}` in `phrases` and `before` stands for it."""
    ordered = list(dict.fromkeys(name.replace(" ", "_") for name in names))
    rng.shuffle(ordered)

    def written(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(text.replace("{x", f"{{{ordered[0]}") for text in texts)

    parameter = Parameter(
        names=tuple(ordered),
        required=rng.random() < required,
        kind=kind,
        options=tuple(str(option) for option in options),
        description=rng.choice(descriptions.split("|")),
    )
    return Part(parameter=parameter, phrases=written(phrases), before=written(before))


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something measured: what it is called, its units as (in a name, in speech), bounds and phrases with {u}."""

    names: str
    units: str
    low: float
    high: float
    phrases: str
    whole: bool = False


QUANTITIES = (
    Quantity(names="width height length thickness diameter gap", units="cm=centimeters cm=cm m=meters inch=inches",
             low=0.5, high=90, phrases="with a {n} of {x} {u}|at {x} {u}|{x} {u} in {n}|to {x} {u}|by {x} {u}"),
    Quantity(names="distance range offset reach", units="km=km m=meters miles=miles feet=feet", low=0.5, high=400,
             phrases="within {x} {u}|over {x} {u}|at a {n} of {x} {u}|{x} {u} away|for {x} {u}"),
    Quantity(names="duration delay timeout interval", units="seconds=seconds minutes=minutes hours=hours days=days",
             low=2, high=900, whole=True, phrases="for {x} {u}|after {x} {u}|every {x} {u}|within {x} {u}"),
    Quantity(names="weight mass load", units="kg=kg g=grams pounds=pounds tons=tons", low=0.2, high=900,
             phrases="with a {n} of {x} {u}|weighing {x} {u}|at {x} {u}|up to {x} {u}|with {x} {u}"),
    Quantity(names="temperature heat warmth", units="degrees=degrees fahrenheit=°F kelvin=kelvin", low=-20, high=500,
             phrases="at {x} {u}|to {x} {u}|up to {x} {u}|with {x} {u}|at a {n} of {x} {u}"),
    Quantity(names="volume capacity amount", units="gallons=gallons ml=milliliters cups=cups barrels=barrels", low=1,
             high=900, phrases="with {x} {u}|of {x} {u}|using {x} {u}|holding {x} {u}|{x} {u}"),
    Quantity(names="level intensity strength share ratio", units="percent=percent percent=%", low=1, high=100,
             whole=True, phrases="at {x} {u}|to {x} {u}|by {x} {u}|with a {n} of {x} {u}"),
    Quantity(names="power voltage current pressure force", units="volts=volts watts=watts bar=bar newtons=newtons",
             low=1, high=400, phrases="at {x} {u}|with {x} {u}|using {x} {u}|at a {n} of {x} {u}"),
    Quantity(names="frequency rate pace", units="hertz=hertz kmh=km/h knots=knots per_minute=per_minute", low=1,
             high=9000, phrases="at {x} {u}|with {x} {u}|at a {n} of {x} {u}"),
    Quantity(names="angle tilt slope", units="degrees=degrees deg=°", low=1, high=180, whole=True,
             phrases="at {x} {u}|by {x} {u}|tilted by {x} {u}"),
)  # fmt: skip


def _quantity(rng: random.Random, words: Lexicon) -> Part:
    quantity = rng.choice(QUANTITIES)
    name = rng.choice(quantity.names.split())
    suffix, spoken = rng.choice(quantity.units.split()).split("=")
    spoken = spoken.replace("_", " ")
    names = rng.sample([f"{name}_{suffix}", name, suffix, f"target_{name}", f"{suffix}_{name}"], 3)
    phrases = [text.replace("{u}", spoken).replace("{n}", name) for text in quantity.phrases.split("|")]
    descriptions = f"{capital(name)} in {spoken}|The {name} ({spoken})|{capital(spoken)}"
    bounds = (int(quantity.low), int(quantity.high)) if quantity.whole else (quantity.low, quantity.high)
    kind = "INT" if quantity.whole else "NUM"
    return new_part(rng, names, kind, descriptions, phrases, bounds, before=[f"{{x}} {spoken}"])


def _count(rng: random.Random, words: Lexicon) -> Part:
    noun = rng.choice(words.things)
    phrases = [f"{word} {{x}} {{m}}" for word in ("with", "in", "for", "using", "and")]
    return new_count(rng, noun, f"number_of_{plural(noun)}", phrases, (9, 30, 90, 500))


def new_count(
    rng: random.Random, noun: str, name: str, phrases: Sequence[str], most: Sequence[int], *, required: float = 0.5
) -> Part:
    """How many of `noun`, at most one of `most`; `name` is another name, `{m}` in the phrases is the plural."""
    many = plural(noun)
    names = [many, f"num_{many}", f"{noun}_count", name]
    bounds = (rng.choice((1, 2, 3)), rng.choice(most))
    described = f"Number of {many}|How many {many}|{capital(many)}"
    written = [phrase.replace("{m}", many) for phrase in phrases]
    return new_part(rng, names, "INT", described, written, bounds, required=required)


def _ordinal(rng: random.Random, words: Lexicon) -> Part:
    noun = rng.choice(words.things)
    names = [f"{noun}_number", noun, f"{noun}_index", f"{noun}_no"]
    phrases = [f"in {noun} {{x}}", f"at {noun} {{x}}", f"on {noun} number {{x}}", f"from {noun} {{x}}"]
    return new_part(rng, names, "INT", f"{capital(noun)}|Number of the {noun}|Which {noun}", phrases, (1, 99))


def _person(rng: random.Random, words: Lexicon) -> Part:
    role = rng.choice(words.persons)
    names = [role, f"{role}_name", rng.choice(("person", "recipient", "name", role))]
    plain = ["for {x}", "by {x}", "with {x}", "from {x}", "on behalf of {x}"]
    phrases = [*rng.sample(plain, 2), f"for the {role} {{x}}", f"with {{x}} as the {role}", f"by {role} {{x}}"]
    descriptions = f"{capital(role)}|The {role}|Name of the {role}|Who it is for"
    return new_part(rng, names, "PERSON", descriptions, phrases, before=["{x}'s"])


def _choice(rng: random.Random, words: Lexicon) -> Part:
    attribute = rng.choice((rng.choice(words.attributes), "mode", "kind", "style", "type", "status", "priority"))
    pool = rng.choice((words.things, words.attributes))
    options = rng.sample(pool, rng.randint(3, 5))
    names = [attribute, f"{attribute}_{rng.choice(('type', 'mode', 'option', 'class', 'value'))}", f"with_{attribute}"]
    phrases = [f"with {attribute} {{x}}", f"in {{x}} {attribute}", "as {x}", "in {x}", f"with the {attribute} {{x}}"]
    descriptions = f"{capital(attribute)}|The {attribute}|Which {attribute}"
    return new_part(rng, names, "ENUM", descriptions, phrases, options, before=["{x}"])


def _flag(rng: random.Random, words: Lexicon) -> Part:
    noun, verb = rng.choice(words.things), rng.choice(rng.choice(words.verbs))
    pairs = (
        (f"with_{noun}", f"with a {noun}", f"without a {noun}", f"Include a {noun}"),
        (f"keep_{plural(noun)}", f"keeping the {plural(noun)}", f"dropping the {plural(noun)}",
         f"Keep the {plural(noun)}"),
        (past(verb), f"{past(verb)}", f"not {past(verb)}", f"Whether it is {past(verb)}"),
        (f"{verb}_{noun}", f"and {verb} the {noun}", f"but do not {verb} the {noun}", f"{capital(verb)} the {noun}"),
    )  # fmt: skip
    name, yes, no, description = rng.choice(pairs)
    return new_part(rng, [name], "BOOL", description, [f"{{x:{yes}|{no}}}"], required=0.2)


# Kind; names; descriptions; phrases. {t} stands for one of the lexicon's things.
_PLAIN = (
    ("DATE", "date day {t}_date on_date due", "Date|Day|When",
     "on {x}|for {x}|until {x}|by {x}|from {x}|before {x}|due {x}|since {x}"),
    ("TIME", "time hour start_time {t}_time begin", "Time|Time of day|At what time",
     "at {x}|from {x}|before {x}|by {x}|starting at {x}|not later than {x}"),
    ("CITY", "city location place {t}_city", "City|Where|City of the {t}",
     "in {x}|to {x}|near {x}|from {x}|around {x}|outside {x}"),
    ("ADDRESS", "address location {t}_address place", "Address|Where", "at {x}|to {x}|from {x}"),
    ("COUNTRY", "country region origin {t}_country", "Country|Country of origin", "in {x}|from {x}|to {x}"),
    ("ROOM", "room area place {t}_room", "Room|Where in the house", "in the {x}|for the {x}|from the {x}"),
    ("LANGUAGE", "language locale {t}_language", "Language|Language to use", "in {x}|translated to {x}|with {x} text"),
    ("COLOR", "color shade {t}_color", "Colour|Colour of the {t}", "in {x}|with a {x} {t}|painted {x}"),
    ("TEXT", "note message comment text reason {t}_text", "Note|Text to keep|What to say",
     "with the note {x}|saying {x}|: {x}|because {x}|with the text {x}|and say {x}|that reads {x}"),
    ("TITLE", "title name label {t}_title heading", "Title|Name of the {t}|What to call it",
     "called {x}|titled {x}|named {x}|under the title {x}|as {x}|for {x}|in {x}|to the {t} {x}|from {x}"),
    ("TOPIC", "topic subject about {t}_topic", "Topic|What it is about", "about {x}|on {x}|concerning {x}"),
    ("FOOD", "food dish ingredient {t}_food", "Food|What is eaten", "with {x}|and {x}|on {x}|made of {x}|into {x}"),
    ("MEDICINE", "material powder {t}_material additive", "Material|What to add",
     "with {x}|of {x}|using {x}|in {x}|into {x}|against {x}"),
    ("MONEY", "price budget fee {t}_price value", "Price|Amount of money|What it costs", "for {x}|at {x}|under {x}"),
    ("EMAIL", "email contact {t}_email address", "E-mail address|Whom to write", "for {x}|and tell {x}|and inform {x}"),
    ("PATH", "file path source {t}_file output", "File|Path of the {t}",
     "from {x}|in {x}|using {x}|with the file {x}|and attach {x}|as seen in {x}|with the {t} {x}"),
    ("URL", "url link address {t}_url", "Link|Web address", "from {x}|at {x}|with the link {x}"),
    ("BUSINESS", "company shop supplier {t}_shop", "Company|Name of the shop", "at {x}|from {x}|through {x}|by {x}"),
    ("PRODUCT", "item product article {t}", "Item|Which item|Product", "with {x}|and {x}|using the {x}"),
    ("SLUG", "project folder tag {t}_tag workspace", "Project|Tag of the {t}", "in {x}|under {x}|for the {t} {x}"),
    ("ID", "account reference {t}_id {t}_number", "Reference|Number of the {t}",
     "with the {t} {x}|under {x}|using {t} {x}|for {t} {x}"),
    ("WEEKDAY", "weekday day {t}_day", "Day of the week|On which day", "on {x}|every {x}|until {x}"),
    ("UNIT", "unit measure {t}_unit", "Unit|Unit of measure", "in {x}|measured in {x}"),
    ("PHONE", "phone number {t}_phone", "Phone number|Whom to call", "and call {x}|with the number {x}|at {x}"),
)  # fmt: skip


_BEFORE_NOUN = {"LANGUAGE": "{x}", "COLOR": "{x}", "FOOD": "{x}", "CITY": "{x}", "BUSINESS": "{x}", "WEEKDAY": "{x}"}


def _plain(rng: random.Random, words: Lexicon) -> Part:
    kind, names, descriptions, phrases = rng.choice(_PLAIN)
    thing = rng.choice(words.things)
    filled = [text.replace("{t}", thing) for text in (names, descriptions, phrases)]
    before = [_BEFORE_NOUN[kind]] if kind in _BEFORE_NOUN else []
    return new_part(rng, rng.sample(filled[0].split(), 3), kind, filled[1], filled[2].split("|"), before=before)


def _several(rng: random.Random, words: Lexicon) -> Part:
    noun = rng.choice(words.things)
    many = plural(noun)
    phrases = [f"with the {many} {{x}}", "using {x}", f"for the {many} {{x}}", "with {x}"]
    names = [many, f"{noun}_list", f"{noun}_ids"]
    kind = rng.choice(("ID", "WORD", "PERSON", "FOOD", "SLUG", "CITY"))
    return new_part(rng, names, "LIST", f"{capital(many)}|The {many}|List of {many}", phrases, (kind,))


# Each is drawn as often as it is listed.
SORTS: tuple[Callable[[random.Random, Lexicon], Part], ...] = (
    _quantity, _quantity, _count, _ordinal, _person, _choice, _choice, _flag, _several,
    _plain, _plain, _plain, _plain, _plain, _plain,
)  # fmt: skip


# Names and prepositions that distinguish two values of one kind.
_PAIRS = (
    "source=from destination=to", "origin=from target=to", "old=from new=to", "first=from last=to", "start=from end=to",
    "sender=from receiver=to", "lower=above upper=below", "content=of container=in", "maker=by owner=for",
    "wanted=with unwanted=without", "part=with whole=into", "after=after before=before", "giver=from helper=with",
)  # fmt: skip
_PAIRED_KINDS = ("CITY", "DATE", "TIME", "PERSON", "PATH", "ID", "MEDICINE", "FOOD", "WORD", "INT", "PRODUCT", "ENUM")


def draw_pair(rng: random.Random, words: Lexicon) -> list[Part]:
    """Two required values of one kind that only a preposition distinguishes: "from Oslo to Bergen"."""
    kind, thing = rng.choice(_PAIRED_KINDS), rng.choice(words.things)
    parts = []
    for role in rng.choice(_PAIRS).split():
        name, preposition = role.split("=")
        options = {"INT": (1, 500), "ENUM": rng.sample(words.things, 4)}.get(kind, ("",))
        names = [name, f"{name}_{thing}", f"{preposition}_{thing}"]
        described = f"{capital(name)}|{capital(name)} {thing}|The {thing} {preposition} which"
        parts.append(new_part(rng, names, kind, described, [f"{preposition} {{x}}"], options, required=1.0))
    return parts


def draw_parts(rng: random.Random, words: Lexicon, count: int, taken: Collection[str] = ()) -> list[Part]:
    """At most `count` parts of different sorts, none with a parameter name in `taken`; sometimes two are a pair."""
    paired = draw_pair(rng, words) if count > 1 and rng.random() < 0.2 else []
    names, parts = set(taken), []
    for part in (*paired, *(sort(rng, words) for sort in rng.sample(SORTS, count - len(paired)))):
        if not names & set(part.parameter.names):
            names |= set(part.parameter.names)
            parts.append(part)
    return parts
