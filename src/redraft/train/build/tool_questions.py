"""Composed tools that look something up: an attribute of a thing, things by an attribute, or what something shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from redraft.train.build.tool_grammar import Action
from redraft.train.build.tool_objects import draw_item
from redraft.train.build.tool_parts import Part, draw_parts, new_part
from redraft.train.build.tool_phrases import IMPERATIVE, SENTENCE, placed
from redraft.train.build.word_forms import past, plural
from redraft.train.build.wordnet import Lexicon

_ASKING = ("get", "find", "show", "check", "fetch", "lookup", "read", "query")
_PLAIN = (
    "What is the {a} of {o}{t}?", "What {a} does {o} have{t}?", "Which {a} do we have for {o}{t}?",
    "-tell me the {a} of {o}{t}", "-look up the {a} of {o}{t}", "-check {o}'s {a}{t}", "What about the {a} of {o}{t}?",
)  # fmt: skip
# What the attribute is called, and how a person asks about it without naming it.
_SPOKEN = {
    "location position place whereabouts": "Where is {o}{t}?|Where can I find {o}{t}?|-locate {o}{t}|-find {o}{t}",
    "date time schedule": "When is {o}{t}?|When was {o} {done}{t}?|When will {o} be {done}{t}?",
    "owner author holder": "Who has {o}{t}?|Who {done} {o}{t}?|Whose is {o}{t}?",
    "price cost fee": "How much is {o}{t}?|What does {o} cost{t}?|What do I pay for {o}{t}?",
    "stock amount level": "How much is left of {o}{t}?|Is there any of {o} left{t}?",
    "size length height": "How long is {o}{t}?|How big is {o}{t}?|-measure {o}{t}",
    "age history": "How old is {o}{t}?|-tell me about {o}{t}|What happened to {o}{t}?",
    "status state condition": "How is {o}{t}?|Is {o} all right{t}?|Has {o} been {done}{t}?|What is {o} doing{t}?",
    "info details description": "-tell me about {o}{t}|-describe {o}{t}|What do we know about {o}{t}?",
}


def question(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    """One of the three kinds of lookup."""
    return rng.choice((_attribute, _attribute, _search, _recognition))(rng, words, thing, domain)


def _attribute(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    item = draw_item(rng, words, thing)
    parts = [optional(part) for part in draw_parts(rng, words, rng.randint(0, 1), item.parameter.names)]
    lines, attribute = list(_PLAIN), rng.choice(words.attributes)
    if rng.random() < 0.4:
        names, spoken = rng.choice(tuple(_SPOKEN.items()))
        attribute = rng.choice(names.split())
        lines = [*spoken.split("|"), rng.choice(_PLAIN)]
    done = past(rng.choice(rng.choice(words.verbs)))
    phrase = rng.choice([phrase for phrase in item.phrases if not phrase.startswith("{")] or item.phrases)
    tail = placed(rng, "", thing, parts)[1]
    return Action(
        domain=domain,
        group=domain,
        names=_names(rng, rng.sample(_ASKING, 2), thing, attribute),
        descriptions=(f"Get the {attribute} of a {thing}", f"Returns the {attribute} of the {thing}"),
        parameters=(item.parameter, *(part.parameter for part in parts)),
        requests=tuple(
            _line(line, a=attribute, o=phrase, t=tail, done=done) for line in rng.sample(lines, min(3, len(lines)))
        ),
    )


_SEARCHING = ("search", "find", "list", "lookup", "browse", "query")
_SEARCHES = (
    "-find {m}{t}", "-search for {m}{t}", "-show me all {m}{t}", "Are there any {m}{t}?", "Do we have {m}{t}?",
    "Which {m} do you have{t}?", "I am looking for {m}{t}.", "How many {m} are there{t}?", "-list the {m}{t}",
    "Does the {other} have {m}{t}?", "Can I see the {m}{t}?", "Is there one of our {m}{t}?",
)  # fmt: skip


def _search(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    many = plural(thing)
    first, *others = draw_parts(rng, words, rng.randint(1, 3))
    parts = [replace(first, parameter=replace(first.parameter, required=True)), *map(optional, others)]
    lines = []
    for line in rng.sample(_SEARCHES, 3):
        phrase, tail = placed(rng, many, many, rng.sample(parts, len(parts)))
        lines.append(_line(line, m=phrase, t=tail, other=rng.choice(words.things)))
    return Action(
        domain=domain,
        group=domain,
        names=_names(rng, rng.sample(_SEARCHING, 2), rng.choice((thing, many)), ""),
        descriptions=(f"Search the {many}", f"Find {many}", f"Look for a {thing}"),
        parameters=tuple(part.parameter for part in parts),
        requests=tuple(lines),
    )


_RECOGNISING = ("identify", "recognize", "detect", "classify", "extract", "read")
_RECOGNITIONS = (
    "-{v} the {n} in {x}{t}", "Which {n} is in {x}{t}?", "What {n} does {x} show{t}?", "Is there a {n} in {x}{t}?",
    "-tell me the {n} of {x}{t}", "What kind of {n} is this: {x}{t}?", "Which {n} belongs to {x}{t}?",
)  # fmt: skip


def _recognition(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    source = rng.choice(("image", "photo", "file", "text", "link", "recording", "page", "message", "scan"))
    kind = {"link": "URL", "page": "URL", "text": "TEXT", "message": "TEXT"}.get(source, "PATH")
    names = [source, f"{source}_{'url' if kind == 'URL' else 'path' if kind == 'PATH' else 'content'}", "input"]
    shown = new_part(rng, names, kind, f"The {source}|{source} to look at", ["{x}"], required=1.0)
    many = plural(thing)
    bounds = [rng.choice(("limit", "max_results", "results")), f"max_{many}", f"{thing}_count"]
    count_phrases = [
        f"and give {{x}} {many}",
        f"with {{x}} {many}",
        "and return {x} results",
        "with at most {x} results",
    ]
    count = new_part(rng, bounds, "INT", f"Number of {many}|How many", count_phrases, (1, 20), required=0.0)
    parts = [count] if rng.random() < 0.5 else draw_parts(rng, words, rng.randint(0, 1), shown.parameter.names)
    parts = [optional(part) for part in parts]
    verbs = rng.sample(_RECOGNISING, 2)
    tail = placed(rng, "", thing, parts)[1]
    return Action(
        domain=domain,
        group=domain,
        names=_names(rng, verbs, thing, ""),
        descriptions=(f"Find the {thing} in a {source}", f"{verbs[0].capitalize()} a {thing} from a {source}"),
        parameters=(shown.parameter, *(part.parameter for part in parts)),
        requests=tuple(
            _line(line, v=verbs[1], n=thing, x=shown.phrases[0], t=tail) for line in rng.sample(_RECOGNITIONS, 3)
        ),
    )


def optional(part: Part) -> Part:
    return replace(part, parameter=replace(part.parameter, required=False))


def _names(rng: random.Random, verbs: Sequence[str], noun: str, attribute: str) -> tuple[str, ...]:
    """`verb_noun_attribute` with two verbs, or nouns alone."""
    whole = "_".join(filter(None, (noun, attribute))).replace(" ", "_")
    named = [f"{verb}_{whole}" for verb in verbs]
    return (*named[:1], whole if attribute and rng.random() < 0.3 else named[1])


def _line(frame: str, **words: str) -> tuple[str, str]:
    """A frame with its words filled in, as an imperative if it begins with a dash."""
    kind = IMPERATIVE if frame.startswith("-") else SENTENCE
    text = frame.removeprefix("-")
    for key, word in words.items():
        text = text.replace(f"{{{key}}}", word)
    return kind, text
