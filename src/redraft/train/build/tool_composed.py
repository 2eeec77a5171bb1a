"""Tools composed at random: a verb, a thing, and parameters with the phrases that carry their values in a request.

Two hundred hand-written tools teach a small model those tools. Here every tool is a new one: "glaze the teapot" with a
`layer_count` ("in 3 layers"), a `potter` ("by Rosa Stone") and a `target_temperature`. Verbs come with their synonyms,
so the tool may be called `coat_teapot` and its description speak of surfacing one. What a value means is told by its
kind, its unit, its preposition or a noun beside it, never by having been seen before. The result is an :class:`.Action`
like the hand-written ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from redraft.train.build.tool_grammar import Action, heldout_actions, training_actions
from redraft.train.build.tool_parts import SORTS, Part, draw_object, past
from redraft.train.build.wordnet import Lexicon

ACTIONS_PER_DOMAIN = 6


def compose_domains(rng: random.Random, words: Lexicon, count: int) -> list[Action]:
    """The tools of `count` new domains."""
    return [action for _ in range(count) for action in _domain(rng, words)]


def _domain(rng: random.Random, words: Lexicon) -> list[Action]:
    """A few tools about the same two or three things, so that they are easily taken for one another."""
    things = [_thing(rng, words) for _ in range(rng.randint(2, 3))]
    name = things[0].replace(" ", "_")
    return [_action(rng, words, rng.choice(things), name) for _ in range(ACTIONS_PER_DOMAIN)]


def reserved_words() -> frozenset[str]:
    """Parts of names that only evaluation's tools have: no composed tool uses them."""
    return _name_words(heldout_actions()) - _name_words(training_actions())


def _name_words(actions: Sequence[Action]) -> frozenset[str]:
    names = (name for a in actions for name in (*a.names, *(n for p in a.parameters for n in p.names)))
    return frozenset(word for name in names for word in name.split("_"))


# --- an action ------------------------------------------------------------------------------------


def _thing(rng: random.Random, words: Lexicon) -> str:
    thing = rng.choice(words.things)
    return f"{rng.choice(words.things)} {thing}" if rng.random() < 0.2 else thing


def _action(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    if rng.random() < 0.2:
        return _question(rng, words, thing, domain)
    synonyms = list(rng.choice(words.verbs))
    rng.shuffle(synonyms)
    other = rng.choice(rng.choice(words.verbs)) if rng.random() < 0.15 else synonyms[-1]
    names = tuple(dict.fromkeys(f"{verb} {thing}".replace(" ", "_") for verb in (synonyms[0], other)))
    described = dict.fromkeys(
        f"{verb} {article} {thing}".capitalize() for verb, article in zip(synonyms, ("a", "the"), strict=False)
    )
    object_part, parts = _parts(rng, words, thing)
    return Action(
        domain=domain,
        group=domain,
        names=names,
        descriptions=tuple(described),
        parameters=tuple(part.parameter for part in (*object_part, *parts)),
        requests=tuple(
            _request(rng, rng.choice(synonyms), thing, object_part, parts) for _ in range(rng.randint(2, 4))
        ),
    )


def _parts(rng: random.Random, words: Lexicon, thing: str) -> tuple[list[Part], list[Part]]:
    """At most one part that names the object itself, and one to three (none only beside an object) of other sorts."""
    object_part = [draw_object(rng, words, thing)] if rng.random() < 0.7 else []
    count = rng.choices([0, 1, 2, 3], [2, 5, 5, 2])[0] if object_part else rng.randint(1, 3)
    parts: list[Part] = []
    names = {name for part in object_part for name in part.parameter.names}
    for sort in rng.sample(SORTS, count):
        part = sort(rng, words)
        if not names & set(part.parameter.names):
            names |= set(part.parameter.names)
            parts.append(part)
    if not object_part and not parts:  # every name was taken
        return [draw_object(rng, words, thing)], []
    return object_part, parts


_STATEMENTS = (
    "{Thing} should be {done}{tail}.", "Can I {do} {object}{tail}?", "We would like to {do} {object}{tail}.",
    "I want {object} to be {done}{tail}.", "Is it possible to {do} {object}{tail}?",
    "We need {object} {done}{tail}.", "Someone has to {do} {object}{tail}.", "{Thing}{tail}, please.",
    "It is time to {do} {object}{tail}.", "{Thing} was {done}{tail}, please enter that.",
)  # fmt: skip


def _request(rng: random.Random, verb: str, thing: str, object_part: list[Part], parts: list[Part]) -> tuple[str, str]:
    """One way to ask: an imperative or a sentence, optional parameters in brackets, parts in any order."""
    phrase = rng.choice(object_part[0].phrases) if object_part else f"{rng.choice(('the', 'a', 'my', 'our'))} {thing}"
    tail = "".join(
        f" {text}" if part.parameter.required else f"[ {text}]"
        for part in rng.sample(parts, len(parts))
        for text in [rng.choice(part.phrases)]
    )
    if rng.random() < 0.65:
        return "-", f"{verb} {phrase}{tail}"
    line = rng.choice(_STATEMENTS).replace("{do}", verb).replace("{done}", past(verb)).replace("{tail}", tail)
    return "?", line.replace("{object}", phrase).replace("{Thing}", phrase)


_ASKING = ("get", "find", "show", "check", "fetch", "lookup", "read", "query")


def _question(rng: random.Random, words: Lexicon, thing: str, domain: str) -> Action:
    """A tool that looks something up: "What is the <attribute> of <thing> X?"."""
    attribute = rng.choice(words.attributes)
    _, parts = _parts(rng, words, thing)
    item = draw_object(rng, words, thing)
    names = set(item.parameter.names)
    parts = [part for part in parts[:1] if not names & set(part.parameter.names)]
    verbs = rng.sample(_ASKING, 2)
    tail = "".join(f"[ {rng.choice(part.phrases)}]" for part in parts)
    phrase = rng.choice(item.phrases)
    lines = (
        ("?", f"What is the {attribute} of {phrase}{tail}?"), ("?", f"What {attribute} does {phrase} have{tail}?"),
        ("-", f"tell me the {attribute} of {phrase}{tail}"), ("-", f"look up the {attribute} of {phrase}{tail}"),
        ("?", f"Which {attribute} do we have for {phrase}{tail}?"), ("-", f"{verbs[1]} {phrase}'s {attribute}{tail}"),
    )  # fmt: skip
    return Action(
        domain=domain,
        group=domain,
        names=tuple(f"{verb} {thing} {attribute}".replace(" ", "_") for verb in verbs),
        descriptions=(f"Get the {attribute} of a {thing}", f"Returns the {attribute} of the {thing}"),
        parameters=(item.parameter, *(replace(part.parameter, required=False) for part in parts)),
        requests=tuple(rng.sample(lines, 3)),
    )
